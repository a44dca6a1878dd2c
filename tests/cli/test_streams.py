"""Standard streams that are closed, full, endless or left, and interrupts that come at the wrong time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from cli.conftest import Cli
from pellucid.cli import inputs

PROGRAM = [sys.executable, "-c", "from pellucid.cli import main; main()"]


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `pellucid` is this one."""
    script = f'pellucid() {{ "{sys.executable}" -c "from pellucid.cli import main; main()" "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("pellucid ls >&-", 2, "error: cannot write to standard output: it is closed\n"),
        ("pellucid run - <&-", 2, "error: standard input is closed; give the text as an argument\n"),
        ("pellucid chat <&-", 2, "error: standard input is closed; give the text as an argument\n"),
        ("pellucid --help >/dev/full", 6, "error: cannot write to standard output: no space left on device\n"),
        ("pellucid ls >/dev/full", 6, "error: cannot write to standard output: no space left on device\n"),
        ("pellucid nothing 2>&-", 2, ""),
    ],
)
def test_streams_that_cannot_be_used(line: str, code: int, says: str) -> None:
    done = shell(line)
    assert (done.returncode, done.stderr, done.stdout) == (code, says, "")


@pytest.mark.parametrize("command", ["run", "tokens", "score -"])
def test_endless_input_is_refused(command: str) -> None:
    done = shell(f"yes | pellucid {command}")
    assert done.returncode == 2
    assert done.stderr == "error: standard input holds more than 16 MiB of text, the most that is read; give less\n"


def test_endless_file_is_refused(cli: Cli) -> None:
    got = cli("score", "/dev/zero")
    assert (got.code, got.err.count("\n")) == (2, 1)
    assert "/dev/zero holds more than 16 MiB" in got.err


@pytest.mark.usefixtures("toy")
def test_endless_line_of_a_conversation_is_refused(cli: Cli) -> None:
    got = cli("chat", stdin=b"a" * (inputs.MOST_LINE + 1))
    assert (got.code, got.err) == (
        2,
        "error: a line of standard input is longer than 1 MiB, the most that is read\n",
    )


@pytest.mark.usefixtures("toy")
def test_a_text_that_cannot_fit_is_not_encoded(cli: Cli) -> None:
    began = time.monotonic()
    got = cli("run", stdin="a" * (8 << 20))
    assert time.monotonic() - began < 3
    assert got.code == 2
    assert "your prompt has" in got.err


@pytest.mark.parametrize("delay", [0.05, 0.15, 0.3])
def test_interrupts_in_a_row_are_quiet(delay: float) -> None:
    with subprocess.Popen(
        [*PROGRAM, "score", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        # Python itself comes first: nothing of ours can hear a signal before.
        time.sleep(delay + 0.5)
        for _ in range(3):
            child.send_signal(signal.SIGINT)
            time.sleep(0.02)
        _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (130, b"")


@pytest.mark.parametrize(("args", "says"), [(("help",), "Begin with"), (("help", "run"), "--max-tokens")])
def test_help_by_name(cli: Cli, args: tuple[str, ...], says: str) -> None:
    got = cli(*args)
    assert got.code == 0
    assert says in got.out


def test_version_by_name(cli: Cli) -> None:
    assert cli("version").out == cli("-V").out == cli("--version").out


@pytest.mark.usefixtures("toy")
def test_the_newline_of_echo_is_no_prompt(cli: Cli) -> None:
    import json

    assert json.loads(cli("run", "--json", stdin="a\n").out)["prompt"] == "a"


@pytest.mark.usefixtures("toy")
def test_a_stop_that_is_no_unicode(cli: Cli) -> None:
    got = cli("run", "a", "--stop", "\udcff")
    assert got.code == 2
    assert "not valid Unicode" in got.err


def test_a_pipe_is_no_model(cli: Cli, tmp_path) -> None:
    os.mkfifo(tmp_path / "f.gguf")
    for path in (str(tmp_path / "f.gguf"), "/dev/zero"):
        got = cli("run", "hi", "-m", path)
        assert (got.code, "is not a regular file" in got.err) == (4, True)
