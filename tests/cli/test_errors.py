"""Whatever goes wrong is one line on stderr and an exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import pellucid
from cli.conftest import Cli
from pellucid.cli import COMMANDS
from pellucid.errors import ModelFileError


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["rum"], 2, "No such command 'rum'; see pellucid --help"),
        (["--wrong"], 2, "No such option: --wrong"),
        (["run", "a", "--wrong"], 2, "see pellucid run --help"),
        (["run", "a", "--max-tokens", "many"], 2, "--max-tokens"),
        (["run", "a", "--max-tokens", "0"], 2, "--max-tokens"),
        (["run", "a", "--temperature", "-1"], 2, "temperature=-1.0 is out of range"),
        (["run", "a", "--top-p", "nan"], 2, "top_p"),
        (["run", "a", "--logprobs", "21"], 2, "logprobs"),
        (["run", "a", "--raw", "--system", "b"], 2, "--system"),
        (["run", ""], 2, "the text is empty; give some: pellucid run"),
        (["run"], 2, "the text is empty; give some: pellucid run"),
        (["run", "a", "-m", "no-such-model"], 4, "no-such-model"),
        (["run", "a", "-m", "./no-such-file.gguf"], 4, "no-such-file.gguf"),
        (["run", "a", "--kv", "f64"], 2, "kv='f64'"),
        (["score"], 2, "Missing argument"),
        (["score", "no-such-file"], 2, "no-such-file cannot be read"),
        (["score", "x", "--chunk", "64", "--stride", "65"], 2, "--stride 65"),
        (["score", "x", "--chunk", "64", "--context", "63"], 2, "--context 63"),
        (["tokens", "a", "-m", "no-such-model"], 4, "no-such-model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_errors(cli: Cli, args: list[str], code: int, says: str) -> None:
    got = cli(*args)
    assert got.code == code
    assert got.out == ""
    assert got.err.startswith("error: ")
    assert says in got.err
    assert got.err.count("\n") == 1


def test_a_file_that_is_no_model(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "not.gguf"
    file.write_bytes(b"GGUF" + bytes(40))
    got = cli("run", "a", "-m", str(file))
    assert got.code == 3
    assert got.err.startswith("error: ")
    assert "not.gguf" in got.err
    assert got.err.count("\n") == 1


def test_stdin_that_is_no_text(cli: Cli) -> None:
    got = cli("run", stdin=b"abc\xff")
    assert (got.code, got.err) == (2, "error: standard input is not UTF-8 text (byte 3)\n")


def test_too_long(cli: Cli, toy: Callable[..., None]) -> None:
    got = cli("run", "a" * 600)
    assert got.code == 2
    assert "maximum context length is 512 tokens" in got.err


def fail(error: BaseException) -> Callable[..., None]:
    def load(*_: object, **__: object) -> None:
        raise error

    return load


def test_errors_of_several_lines_become_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.cli.options.load", fail(ModelFileError("first\n  second")))
    got = cli("run", "a")
    assert (got.code, got.err) == (3, "error: first second\n")


def test_what_was_not_foreseen(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.cli.options.load", fail(ZeroDivisionError("by zero")))
    got = cli("run", "a")
    assert got.code == 1
    assert got.err.count("\n") == 1
    assert "ZeroDivisionError: by zero" in got.err
    assert "PELLUCID_DEBUG=1" in got.err
    monkeypatch.setenv("PELLUCID_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        pellucid.cli.main(["run", "a"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (MemoryError(), 6)])
def test_interrupts_and_memory(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int) -> None:
    monkeypatch.setattr("pellucid.cli.options.load", fail(error))
    assert cli("run", "a").code == code


def test_version(cli: Cli) -> None:
    got = cli("--version")
    assert (got.code, got.out) == (0, f"pellucid {pellucid.__version__}\n")


def test_help(cli: Cli) -> None:
    bare, asked = cli(), cli("--help")
    assert bare.code == asked.code == 0
    assert bare.out == asked.out
    for theme in COMMANDS.values():
        for name, about in theme:
            assert f"{name:<9} {about}" in asked.out


@pytest.mark.parametrize("name", [name for theme in COMMANDS.values() for name, _ in theme])
def test_help_of_each_command(cli: Cli, name: str) -> None:
    got = cli(name, "--help")
    assert got.code == 0
    assert f"pellucid {name}" in got.out
