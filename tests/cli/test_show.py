"""`pellucid show`: the card of a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pellucid.cli import main


def show(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as e:
        main(["show", *options])
    out, err = capsys.readouterr()
    assert e.value.code == 0, err
    return out


def test_the_default_model(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = json.loads(show(capsys, "--json"))
    assert about["name"] == "smollm2"
    assert about["family"] == "llama"
    assert about["licence"] == "Apache-2.0"
    assert about["path"] == str(smollm2_path)
    assert about["shape"]["layers"] == 30
    assert about["shape"]["width"] == 576
    assert about["shape"]["tied"] is True
    parameters = about["parameters"]
    assert parameters.pop("total") == sum(parameters.values()) == 134_515_008
    assert parameters["embedding"] == 49152 * 576
    assert about["weights"] == sum(f["bytes"] for f in about["formats"].values())
    assert 0.9 * smollm2_path.stat().st_size < about["weights"] < smollm2_path.stat().st_size
    assert about["memory"]["ctx"] == 4096
    assert about["memory"]["kv_per_token"] == {"f16": 30 * 2 * 3 * 64 * 2, "q8_0": 30 * 2 * 3 * 2 * 34}
    assert about["memory"]["total"]["f16"] == about["weights"] + 4096 * 23040
    assert about["template"].startswith("{% for message in messages %}")


def test_for_people(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = show(capsys, "smollm2", "--ctx", "1000")
    for needle in (
        "30 layers",
        "9 heads of 64, 3 for K and V",
        "1000 TOKENS",
        "q4_1",
        "<|im_end|> (2)",
        "chat template",
    ):
        assert needle in out
    assert "\x1b" not in out


def test_a_context_longer_than_the_models_is_cut(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(show(capsys, "--ctx", "999999", "--json"))["memory"]["ctx"] == 8192


def test_the_template_alone(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = show(capsys, "smollm2", "--template")
    assert out.startswith("{% for message in messages %}")


def test_a_model_that_is_not_here_is_described(store_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = show(capsys, "gemma3-1b-qat")
    assert "Not here yet: pellucid pull gemma3-1b-qat" in out
    assert "an open one: gemma3-1b" in out
    assert json.loads(show(capsys, "gemma3-1b-qat", "--json"))["here"] is False
    with pytest.raises(SystemExit) as e:
        main(["show", "org/repo"])
    assert e.value.code == 4
    assert "pellucid pull org/repo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "family", "parameters"),
    [("gemma3-270m", "gemma3", 268_098_176), ("qwen-0.5b", "qwen2", None), ("qwen-1.5b", "qwen2", None)],
)
def test_the_other_real_models(
    real_model: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    name: str,
    family: str,
    parameters: int | None,
) -> None:
    path = real_model(name)
    about = json.loads(show(capsys, str(path), "--json"))
    assert about["family"] == family
    assert parameters is None or about["parameters"]["total"] == parameters
    assert about["source"] is None
    assert "a file of yours" in show(capsys, str(path))
