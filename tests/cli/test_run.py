"""`pellucid run`: what is on stdout, and what is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("toy")


def test_the_answer_and_nothing_else_is_on_stdout(cli: Cli) -> None:
    got = cli("run", "a", "--temperature", "0")
    assert (got.code, got.out, got.err) == (0, "apples and pears\n", "")


def test_prompt_from_stdin(cli: Cli) -> None:
    assert cli("run", "--temperature", "0", stdin="b").out == "one. two. three.\n"
    assert cli("run", "-", "--temperature", "0", stdin="b").out == "one. two. three.\n"


def test_raw(cli: Cli) -> None:
    assert cli("run", "--raw", "a>", "--temperature", "0").out == "apples and pears\n"
    assert cli("run", "--raw", "a>app", "--temperature", "0").out == "les and pears\n"


def test_a_model_without_a_template_continues_text_and_says_so(cli: Cli, toy: Callable[..., None]) -> None:
    toy(template=None)
    got = cli("run", "a>app", "--temperature", "0")
    assert got.out == "les and pears\n"
    assert got.err == "note: toy has no chat template; the prompt is continued as raw text\n"
    got = cli("run", "a>", "--system", "Be brief.")
    assert (got.code, got.out) == (2, "")
    assert "--system" in got.err


def test_system_goes_through_the_template(cli: Cli) -> None:
    assert cli("run", "x", "--system", "a", "--temperature", "0").out == "apples and pears\n"


def test_stop_and_limit(cli: Cli) -> None:
    assert cli("run", "b", "--temperature", "0", "--stop", "two", "--stop", "zebra").out == "one. \n"
    got = cli("run", "b", "--temperature", "0", "--max-tokens", "3")
    assert (got.out, got.err) == ("one\n", "")


def test_an_answer_cut_by_the_context_says_so(cli: Cli) -> None:
    got = cli("run", "l", "--temperature", "0", "--ctx", "64")
    assert got.out == "x" * 61 + "\n"
    assert got.err == "note: cut after 61 tokens; --max-tokens and --ctx allow more\n"


def test_json(cli: Cli) -> None:
    got = cli("run", "b", "--temperature", "0", "--json", "--seed", "7", "--stop", "two", "--logprobs", "1")
    result = json.loads(got.out)
    assert result["text"] == "one. "
    assert result["prompt"] == "b"
    assert (result["finish_reason"], result["stop_reason"]) == ("stop", "two")
    assert result["seed"] == 7
    assert result["usage"] == {"prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 8}
    assert result["logprobs"][0] == [{"id": 111, "token": "o", "logprob": pytest.approx(0, abs=0.01), "rank": 1}]
    assert got.out.count("\n") == 1


def test_stats_and_logprobs_go_to_stderr(cli: Cli) -> None:
    got = cli("run", "a", "--temperature", "0", "--stats", "--seed", "3", "--logprobs", "2", "--max-tokens", "2")
    assert got.out == "ap\n"
    first, second, stats = got.err.splitlines()
    assert first.split()[:2] == ["97", "'a'"]
    assert second.split()[:2] == ["112", "'p'"]
    for part in (
        "s to load",
        "3 prompt tokens",
        "s to first token",
        "2 generated",
        "tok/s",
        "ended by length",
        "seed 3",
    ):
        assert part in stats


def test_same_seed_same_answer(cli: Cli) -> None:
    one = cli("run", "a", "--temperature", "3", "--seed", "4", "--max-tokens", "20", "--json")
    two = cli("run", "a", "--temperature", "3", "--seed", "4", "--max-tokens", "20", "--json")
    assert json.loads(one.out)["token_ids"] == json.loads(two.out)["token_ids"]


def test_control_characters_are_visible_on_a_terminal() -> None:
    from pellucid.cli.inputs import visible

    assert visible("a\x1b[31mb\x07\x7f\x9b\r\n\tä") == "a␛[31mb␇␡\ufffd␍\n\tä"


# -- the real model ---------------------------------------------------------------------------------------------------


def pellucid(*args: str) -> list[str]:
    return [sys.executable, "-c", "from pellucid.cli import main; main()", *args]


def test_real_model(smollm2_path: Path) -> None:
    prompt, options = "The capital of France is", ("--raw", "--temperature", "0", "--max-tokens", "8")
    command = pellucid("run", prompt, "-m", str(smollm2_path), *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert done.stderr == ""


def test_ctrl_c_stops_cleanly(smollm2_path: Path) -> None:
    command = pellucid("run", "Tell me a long story.", "-m", str(smollm2_path), "--max-tokens", "2000")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert os.read(child.stdout.fileno(), 1)
        child.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, err = child.communicate(timeout=60)
        assert time.monotonic() - began < 5
    assert child.returncode == 130
    assert err == b""


def test_a_reader_that_leaves_ends_it_quietly(smollm2_path: Path) -> None:
    command = pellucid("run", "Tell me a long story.", "-m", str(smollm2_path), "--max-tokens", "2000")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert os.read(child.stdout.fileno(), 1)
        child.stdout.close()
        err = child.stderr.read()
        child.wait(timeout=60)
    assert child.returncode == 141
    assert err == b""
