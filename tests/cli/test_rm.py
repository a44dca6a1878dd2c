"""`pellucid rm`: only what Pellucid pulled, and only when told."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from fakehub import FakeHub, Repo
from pellucid.cli import main
from pellucid.models import store
from pellucid.models.pull import resolve


def rm(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as e:
        main(["rm", *options])
    out, err = capsys.readouterr()
    return e.value.code, out, err


@pytest.fixture
def model(fake_hub: FakeHub) -> Path:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": b"GGUF" + bytes(4_996)})
    return resolve("org/m", progress=False)


@pytest.mark.parametrize("name", ["org/m:Q4_K_M", "org/m", "org/m/m-Q4_K_M.gguf", "org--m--Q4_K_M"])
def test_by_any_of_its_names(model: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = rm(capsys, name, "--yes")
    assert code == 0
    assert out.startswith("removed org/m:Q4_K_M: 5 kB")
    assert not model.parent.exists()
    assert store.entries() == []


def test_by_its_path(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rm(capsys, str(model), "-y")[0] == 0
    assert store.entries() == []


def test_it_asks(model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = rm(capsys, "org/m")
    assert code == 2
    assert "--yes" in err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def refuse(*_: object, **__: object) -> None:
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", refuse)
    assert rm(capsys, "org/m")[0] == 130
    assert model.exists()
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: True)
    assert rm(capsys, "org/m")[0] == 0
    assert not model.exists()


def test_paths_outside_the_store_are_refused(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"GGUF")
    for name in (str(mine), str(tmp_path), str(model.parents[1]), "/", "."):
        code, _, err = rm(capsys, name, "--yes")
        assert code == 2
        assert "not in Pellucid's store" in err
    assert mine.exists()
    assert model.exists()


def test_names_cannot_lead_out_of_the_store(model: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("../../x", "..", "org/../../m", ".partial", ".locks"):
        assert rm(capsys, name, "--yes")[0] in (2, 4)
    assert model.exists()


def test_what_is_not_here(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = rm(capsys, "qwen3-4b", "--yes")
    assert code == 4
    assert "no model 'qwen3-4b' is here" in err
    # One wrong name among several: nothing is removed.
    assert rm(capsys, "org/m", "nothing", "--yes")[0] == 4
    assert model.exists()


def test_an_unfinished_pull(store_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store.stage("qwen3-4b") / "part").write_bytes(bytes(1000))
    code, out, _ = rm(capsys, "qwen3-4b", "-y")
    assert code == 0
    assert "1 kB freed" in out
    assert store.partials() == []
