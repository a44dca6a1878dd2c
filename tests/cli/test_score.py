"""`pellucid score`: windows, and what they add up to."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from cli.conftest import Cli
from pellucid.cli.score import Window, windows
from toymodel import toy_llm


def test_windows_side_by_side() -> None:
    assert windows(30, 10, 10, 5) == [Window(0, 10, 6), Window(10, 20, 16), Window(20, 30, 26)]
    assert windows(29, 10, 10, 5) == [Window(0, 10, 6), Window(10, 20, 16)]


def test_windows_that_overlap_score_each_token_once() -> None:
    cut = windows(26, 10, 4, 0)
    scored = [i for window in cut for i in range(window.first, window.stop)]
    assert scored == list(range(1, 26))


@pytest.mark.parametrize("tokens", [2, 9])
def test_a_short_text_is_one_window(tokens: int) -> None:
    assert windows(tokens, 10, 10, 5) == [Window(0, tokens, 1)]


@pytest.mark.parametrize("chunk", [8, 16, 33])
@pytest.mark.parametrize("tokens", [40, 41, 64, 100])
def test_no_token_is_scored_twice(chunk: int, tokens: int) -> None:
    for stride in range(1, chunk + 1):
        for context in (0, 3, chunk // 2):
            scored = [i for w in windows(tokens, chunk, stride, context) for i in range(w.first, w.stop)]
            assert len(scored) == len(set(scored))
            assert all(w.first > w.start + context for w in windows(tokens, chunk, stride, context))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("a>apples and pears " * 12)
    return file


@pytest.mark.usefixtures("toy")
def test_perplexity_is_that_of_the_scores(cli: Cli, text: Path) -> None:
    got = cli("score", str(text), "--chunk", "32", "--json")
    result = json.loads(got.out)
    with toy_llm() as llm:
        ids = llm.tokenize(text.read_text())
        losses: list[float] = []
        for start in range(0, len(ids) - 31, 32):
            losses += [-v for v in llm.score(ids[start : start + 32]).logprobs[17:] if v is not None]
    assert result["scored"] == len(losses) == 15 * (len(ids) // 32)
    assert result["perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)))
    assert result["tokens"] == len(ids)
    assert result["tokens_per_second"] > 0


@pytest.mark.usefixtures("toy")
def test_text_output(cli: Cli, text: Path) -> None:
    got = cli("score", str(text), "--chunk", "32", "--stride", "16")
    assert got.code == 0
    first, second, third = got.out.splitlines()
    assert first.startswith("perplexity ")
    assert "tokens scored" in second
    assert "tokens/s" in third
    assert got.err == ""


@pytest.mark.usefixtures("toy")
def test_stdin(cli: Cli) -> None:
    assert json.loads(cli("score", "-", "--json", stdin="a>apples").out)["scored"] == 7
    got = cli("score", "-", stdin="a")
    assert (got.code, got.err) == (2, "error: the text is 1 token long; it takes two to score one\n")


def test_real_model_predicts_english_better_than_noise(cli: Cli, smollm2_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("The rain had stopped by the time the train came in, and the platform was bright with water.")
    english = json.loads(cli("score", str(file), "-m", str(smollm2_path), "--json").out)["perplexity"]
    file.write_text("water bright the rain platform in was train came stopped by had and time the with The the")
    noise = json.loads(cli("score", str(file), "-m", str(smollm2_path), "--json").out)["perplexity"]
    assert 1 < english < noise / 3
