"""The store holds whole models only, and gives local paths as they are."""

from __future__ import annotations

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pellucid.errors import DownloadError, ModelNotFoundError, UnsupportedModelError
from pellucid.models import store
from pellucid.models.pull import resolve
from pellucid.models.sources import HubSource, PathSource
from pellucid.models.store import StoredFile


def put(repo: str, file: str = "m-Q4_K_M.gguf", nbytes: int = 10) -> store.Entry:
    source = HubSource(repo, file=file)
    key = store.key_of(source)
    (store.stage(key) / file).write_bytes(b"x" * nbytes)
    return store.commit(
        key, source=source, main=file, files=[StoredFile(file, nbytes, None)], licence=None, revision=None
    )


def test_the_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PELLUCID_HOME", str(tmp_path / "h"))
    assert store.root() == tmp_path / "h" / "models"
    monkeypatch.delenv("PELLUCID_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    monkeypatch.setattr("sys.platform", "linux")
    assert store.root() == tmp_path / "x" / "pellucid" / "models"
    monkeypatch.setattr("sys.platform", "darwin")
    assert store.root() == Path.home() / "Library" / "Caches" / "pellucid" / "models"


def test_in_and_out(store_home: Path) -> None:
    assert store.entries() == []
    entry = put("org/b")
    put("org/a", nbytes=20)
    assert [e.name for e in store.entries()] == ["org/a/m-Q4_K_M.gguf", "org/b/m-Q4_K_M.gguf"]
    assert store.find(HubSource("org/b")) == entry
    assert store.find(PathSource(Path("org/b"))) is None
    again = put("org/b", nbytes=30)
    assert again.nbytes == 30
    assert store.remove(again) > 30
    assert [e.name for e in store.entries()] == ["org/a/m-Q4_K_M.gguf"]


def test_what_is_not_whole_is_no_model(store_home: Path) -> None:
    entry = put("org/a")
    broken = store.root() / "broken"
    broken.mkdir()
    for text in ("", "{}", "[]", "null", '{"source": "./x", "main": "a", "files": []}', '{"source": 1}', "\0"):
        (broken / "model.json").write_text(text)
        assert store.entries() == [entry]
    (store.root() / "loose").mkdir()
    assert store.entries() == [entry]


def test_a_store_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PELLUCID_HOME", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="PELLUCID_HOME"):
        resolve("smollm2", progress=False)


def test_local_paths(tmp_path: Path, store_home: Path) -> None:
    one = tmp_path / "one"
    one.mkdir()
    with pytest.raises(ModelNotFoundError, match=r"neither config.json nor"):
        resolve(str(one))
    (one / "a.gguf").write_bytes(b"GGUF")
    assert resolve(str(one)) == one / "a.gguf"
    assert resolve(one / "a.gguf") == one / "a.gguf"
    (one / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match="2 GGUF files"):
        resolve(str(one))
    (one / "config.json").write_text("{}")
    assert resolve(one) == one
    for name in ("w.bin", "w.pt"):
        (one / name).write_bytes(b"x")
        with pytest.raises(UnsupportedModelError, match="pickle"):
            resolve(str(one / name))
    (one / "w.safetensors").write_bytes(b"x")
    with pytest.raises(UnsupportedModelError, match="give its folder"):
        resolve(str(one / "w.safetensors"))


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (98_362_432, "98 MB"),
        (999_700_000, "1.00 GB"),
        (1_117_320_768, "1.12 GB"),
        (5e12, "5.00 TB"),
    ],
)
def test_sizes_read_well(nbytes: int, text: str) -> None:
    assert store.size_text(nbytes) == text


def test_a_lock_is_held_by_one_and_leaves_nothing(store_home: Path) -> None:
    holders, most, waits = 0, 0, 0
    guard = threading.Lock()

    def waiting() -> None:
        nonlocal waits
        with guard:
            waits += 1

    def work() -> None:
        nonlocal holders, most
        for _ in range(20):
            with store.lock("m", waiting):
                with guard:
                    holders += 1
                    most = max(most, holders)
                store.stage("m")
                time.sleep(0.0005)
                with guard:
                    holders -= 1

    with ThreadPoolExecutor(4) as pool:
        for worker in [pool.submit(work) for _ in range(4)]:
            worker.result()
    assert most == 1 and waits
    assert not list(store.root().iterdir())


def test_a_disk_without_room_for_a_lock(store_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(DownloadError, match="disk is full") as e, store.lock("m"):
        pytest.fail("locked")
    assert e.value.exit_code == 6
