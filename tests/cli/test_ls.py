"""`pellucid ls`, `--all` and `--suggest`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakehub import FakeHub, Repo
from pellucid.cli import main
from pellucid.cli.ls import CONTEXT, SHARE, fits
from pellucid.cli.machine import Machine, machine, read_bandwidth
from pellucid.models import registry, store
from pellucid.models.pull import resolve


def ls(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as e:
        main(["ls", *options])
    assert e.value.code == 0
    return capsys.readouterr().out


def test_nothing_here_teaches(store_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ls(capsys)
    for command in ("pellucid pull smollm2", "pellucid ls --suggest", "pellucid ls --all", "org/repo:Q4_K_M"):
        assert command in out
    assert json.loads(ls(capsys, "--json"))["models"] == []
    assert not store_home.exists()


def test_what_is_here(fake_hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": b"GGUF" + bytes(2_000_000)})
    fake_hub.repos["Qwen/Qwen3-4B-GGUF"] = Repo({"Qwen3-4B-Q4_K_M.gguf": b"GGUF"})
    path = resolve("org/m", progress=False)
    resolve("qwen3-4b", progress=False)
    (store.stage("org--n--Q8_0") / "n").write_bytes(bytes(3000))
    header, first, second, unfinished = ls(capsys).splitlines()
    assert header.split() == ["NAME", "SIZE", "QUANT", "FAMILY", "PATH"]
    assert first.split() == ["org/m:Q4_K_M", "2", "MB", "Q4_K_M", "?", str(path)]
    assert second.split()[:5] == ["qwen3-4b", "4", "B", "Q4_K_M", "qwen3"]
    assert "org--n--Q8_0 (3 kB)" in unfinished
    data = json.loads(ls(capsys, "--json"))
    assert [m["name"] for m in data["models"]] == ["org/m:Q4_K_M", "qwen3-4b"]
    assert [m["quant"] for m in data["models"]] == ["Q4_K_M", "Q4_K_M"]
    assert data["models"][0]["path"] == str(path)
    assert data["unfinished"] == [{"key": "org--n--Q8_0", "bytes": 3000}]


def test_all_lists_the_registry(store_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ls(capsys, "--all")
    for row in registry.MODELS:
        assert row.name in out
    rows = json.loads(ls(capsys, "--all", "--json"))["models"]
    assert [r["name"] for r in rows] == [m.name for m in registry.MODELS]


def test_suggest_names_one_with_its_reasons(store_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ls(capsys, "--suggest")
    assert "memory" in out
    assert "tokens/s" in out
    data = json.loads(ls(capsys, "--suggest", "--json"))
    assert data["suggested"] in registry.BY_NAME
    assert data["cores"] == machine().cores


def of(gigabytes: float) -> Machine:
    return Machine("a processor", (), 8, 8, int(2e9 * gigabytes), int(1e9 * gigabytes))


@pytest.mark.parametrize(
    ("gigabytes", "bandwidth", "disk", "best"),
    [
        (64.0, 100e9, 1e12, "qwen3-8b"),
        (64.0, 15e9, 1e12, "qwen3-4b"),
        (5.0, 100e9, 1e12, "qwen3-4b"),
        (64.0, 100e9, 2e9, "smollm3-3b"),
        (0.8, 100e9, 1e12, "smollm2"),
        (0.1, 100e9, 1e12, None),
    ],
)
def test_the_suggestion_follows_the_machine(gigabytes: float, bandwidth: float, disk: float, best: str | None) -> None:
    every = fits(of(gigabytes), bandwidth, int(disk), set())
    good = next((f for f in every if f.against is None), None)
    assert (good.model.name if good else None) == best
    if good is not None:
        assert good.memory <= SHARE * 1e9 * gigabytes
        assert good.memory > good.model.nbytes + good.model.kv_bytes * min(CONTEXT, good.model.context)


def test_gated_models_are_suggested_only_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    gated = {f.model.name for f in fits(of(64), 100e9, 10**12, set()) if "gated" in (f.against or "")}
    assert gated == {m.name for m in registry.MODELS if m.gated}
    monkeypatch.setenv("HF_TOKEN", "x")
    assert all(f.against is None for f in fits(of(64), 100e9, 10**12, set()))


def test_a_model_that_is_here_needs_no_disk() -> None:
    found = {f.model.name: f.against for f in fits(of(64), 100e9, 0, {"qwen3-8b"})}
    assert found["qwen3-8b"] is None
    assert "of disk" in (found["qwen3-4b"] or "")


def test_bandwidth_is_a_plausible_figure() -> None:
    assert 1e8 < read_bandwidth(1) < 1e12
