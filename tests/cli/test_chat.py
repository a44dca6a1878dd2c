"""`pellucid chat`: over a pipe in this process, and in a terminal of its own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.conftest import Cli
from pellucid.cli.conversation import Conversation
from pellucid.sampling.params import SamplingParams
from toymodel import toy_llm

toy_model = pytest.mark.usefixtures("toy")


@toy_model
def test_lines_are_turns(cli: Cli) -> None:
    got = cli("chat", "--temperature", "0", stdin="a\n\nb\n")
    assert (got.code, got.out, got.err) == (0, "apples and pears\napples and pears\n", "")


@toy_model
def test_reset_begins_anew(cli: Cli) -> None:
    got = cli("chat", "--temperature", "0", stdin="a\n/reset\nb\n")
    assert got.out == "apples and pears\none. two. three.\n"


@toy_model
def test_system(cli: Cli) -> None:
    got = cli("chat", "--temperature", "0", stdin="/system b\nx\n/system\n/system none\na\n")
    assert got.out == "one. two. three.\napples and pears\n"
    assert "\nb\n" in got.err


@toy_model
def test_set(cli: Cli) -> None:
    got = cli("chat", stdin="/set temperature 0\n/set max_tokens=3\na\n/set stop pp\n/set max-tokens none\na\n/set\n")
    assert got.out == "app\na\n"
    assert "temperature = 0.0" in got.err
    assert "(cut after 3 tokens: /set max_tokens N allows more)" in got.err
    assert re.search(r"^stop +pp$", got.err, re.MULTILINE)


@toy_model
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/set temperature hot", "temperature='hot' is not a number"),
        ("/set temperature -1", "out of range"),
        ("/set temperature none", "must be a number"),
        ("/set top_k 1.5", "not a whole number"),
        ("/set nothing 1", "cannot be set"),
        ("/set seed", "give a value"),
        ("/set max_tokens 0", "at least 1"),
        ("/nothing", "no command /nothing"),
        ("/save", "give a file"),
        ("/save /no/such/folder/x", "cannot be written"),
    ],
)
def test_commands_that_cannot_be(cli: Cli, line: str, says: str) -> None:
    got = cli("chat", "--temperature", "0", stdin=f"{line}\na\n")
    assert got.out == "apples and pears\n"
    assert says in got.err
    assert got.err.startswith("error: ")
    assert got.code == 2


@toy_model
def test_stats_and_help(cli: Cli) -> None:
    got = cli("chat", "--temperature", "0", stdin="/stats\na\n/stats\n/help\n/exit\nb\n")
    assert got.out == "apples and pears\n"
    assert "(nothing has been said yet)" in got.err
    assert "17 generated" in got.err
    assert "20 of 512 tokens of the context used" in got.err
    for name in Conversation.COMMANDS:
        assert f"/{name}" in got.err


@toy_model
def test_save(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    got = cli("chat", "--temperature", "0", "--system", "Sys", stdin=f"a\n/save {file}\n/save {file}\n")
    roles = [(m["role"], m["content"]) for m in json.loads(file.read_text())["messages"]]
    assert roles == [("system", "Sys"), ("user", "a"), ("assistant", "?")]
    assert "exists already" in got.err


@toy_model
def test_a_conversation_that_is_too_long(cli: Cli) -> None:
    got = cli("chat", "--temperature", "0", "--ctx", "64", stdin=f"{'a' * 70}\nb\n")
    assert got.code == 2
    assert "the conversation is 72 tokens long and the context 64; /reset begins anew" in got.err
    assert got.out == "one. two. three.\n"


@toy_model
def test_a_context_that_runs_full(cli: Cli) -> None:
    got = cli("chat", "--temperature", "0", "--ctx", "64", stdin="l\n")
    assert "the context is full" in got.err


@toy_model
def test_no_template(cli: Cli, toy: Callable[..., None]) -> None:
    toy(template=None)
    got = cli("chat", stdin="a\n")
    assert got.code == 2
    assert "no chat template" in got.err


def test_a_stopped_answer_is_kept_as_far_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def write(chunk: object) -> None:
        seen.append(chunk.text)  # type: ignore[attr-defined]
        if seen[-1]:
            raise KeyboardInterrupt

    with toy_llm() as llm:
        talk = Conversation(llm, SamplingParams(temperature=0, max_tokens=None), None, None)
        with monkeypatch.context() as patch:
            patch.setattr("pellucid.cli.conversation.write", write)
            with pytest.raises(KeyboardInterrupt):
                talk.turn("l")
        assert [message["role"] for message in talk.messages] == ["user", "assistant"]
        assert talk.messages[1]["content"] == "".join(seen)


# -- in a terminal ----------------------------------------------------------------------------------------------------


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        pid, self._fd = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, env)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.pid = pid
        self.text = ""

    def send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, pattern: str, timeout: float = 60.0) -> str:
        """What is shown up to the pattern, which is then gone."""
        end = time.monotonic() + timeout
        while (found := re.search(pattern, self.text)) is None:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                pytest.fail(f"{pattern!r} did not come; there is {self.text!r}")
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                data = b""
            if not data:
                pytest.fail(f"the program ended before {pattern!r}; there is {self.text!r}")
            # A terminal answers when it is asked where the cursor is.
            if b"\x1b[6n" in data:
                os.write(self._fd, b"\x1b[1;1R")
            self.text += re.sub(
                r"\x1b(\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[()][A-Z0-9]|[=>78])", "", data.decode("utf-8", "replace")
            )
        before, self.text = self.text[: found.end()], self.text[found.end() :]
        return before

    def ended(self, timeout: float = 30.0) -> int:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if select.select([self._fd], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    os.read(self._fd, 65536)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return pytest.fail("the program did not end")


@pytest.fixture
def terminal(smollm2_path: Path, tmp_path: Path) -> Iterator[Terminal]:
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    program = "from pellucid.cli import main; main()"
    yield Terminal(
        [sys.executable, "-c", program, "chat", "-m", str(smollm2_path), "--temperature", "0"], env, tmp_path
    )


def test_terminal(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until("Ctrl-D to leave")
    terminal.until(">>>")
    terminal.send("/set max_tokens 4\r")
    terminal.until("max_tokens = 4")
    terminal.until(">>>")
    terminal.send("What is the capital of France?\r")
    terminal.until("cut after 4 tokens")
    terminal.until(">>>")
    terminal.send("/set max_tokens 3000\r")
    terminal.until("max_tokens = 3000")
    terminal.until(">>>")
    terminal.send("Write a very long story about the sea.\r")
    terminal.until("[a-z]+ [a-z]+ [a-z]+ [a-z]+ [a-z]+ [a-z]+ [a-z]+ [a-z]+ [a-z]+")
    terminal.send("\x03")
    terminal.until("stopped")
    terminal.until(">>>")
    terminal.send("half a line\x03")
    terminal.until("Ctrl-D or /exit leaves")
    terminal.until(">>>")
    terminal.send("/stats\r")
    terminal.until("tokens of the context used")
    terminal.until(">>>")
    terminal.send("\x04")
    assert terminal.ended() == 0
    history = tmp_path / "state" / "pellucid" / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "capital of France" in history.read_text()


def test_a_paste_of_several_lines_is_one_turn(terminal: Terminal, tmp_path: Path) -> None:
    terminal.until(">>>")
    terminal.send("/set max_tokens 4\r")
    terminal.until(">>>")
    terminal.send("\x1b[200~Here is a list:\none\ntwo\nHow many items are in it?\x1b[201~")
    time.sleep(0.3)
    terminal.send("\r")
    terminal.until("cut after 4 tokens")
    terminal.until(">>>")
    terminal.send("/save talk.json\r")
    terminal.until("saved 2 messages")
    terminal.until(">>>")
    terminal.send("\x04")
    assert terminal.ended() == 0
    asked = json.loads((tmp_path / "talk.json").read_text())["messages"][0]["content"]
    assert asked == "Here is a list:\none\ntwo\nHow many items are in it?"


def test_pipe_of_the_real_model(smollm2_path: Path) -> None:
    command = [sys.executable, "-c", "from pellucid.cli import main; main()", "chat", "-m", str(smollm2_path)]
    lines = "/system Answer in one word.\nHello!\nHow are you?\n"
    done = subprocess.run(
        [*command, "--temperature", "0", "--max-tokens", "8"], input=lines, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line]) >= 2
