"""`pellucid batch`: the server's answers, each request once, whatever happens between."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Cli
from pellucid.cli import options
from serving import running
from toymodel import toy_llm

pytestmark = pytest.mark.usefixtures("toy")

BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "seed": 3, "colour": "red"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "u"}], "temperature": 2, "seed": 5, "n": 3}),
    ("/v1/completions", {"prompt": ["a>", "b>"], "temperature": 0, "logprobs": 2, "echo": True}),
    ("/v1/completions", {"prompt": [97, 62], "temperature": 0, "max_tokens": 3, "model": "toy"}),
    ("/v1/responses", {"input": "é", "temperature": 0}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "b"}], "max_tokens": 9}),
    ("/tokenize", {"prompt": "pears"}),
    ("/v1/completions", {"prompt": "a>", "top_p": 7}),
    ("/v1/completions", {"prompt": "a>", "model": "other"}),
]


def line(custom_id: str, url: str, body: Any, **more: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more})


def chat(custom_id: str, text: str = "a", **more: Any) -> str:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}
    return line(custom_id, "/v1/chat/completions", body)


@pytest.fixture
def requests(tmp_path: Path) -> Callable[..., Path]:
    def write(*lines: str) -> Path:
        file = tmp_path / "in.jsonl"
        file.write_text("".join(one + "\n" for one in lines), encoding="utf-8")
        return file

    return write


def answers(file: Path) -> dict[str, Any]:
    """custom_id → its line; each occurs once."""
    lines = [json.loads(one) for one in file.read_text().splitlines()]
    found = {one["custom_id"]: one for one in lines}
    assert len(found) == len(lines)
    return found


def text(answer: dict[str, Any]) -> str:
    return answer["response"]["body"]["choices"][0]["message"]["content"]


def same(value: Any) -> Any:
    """A body without what is new each time."""
    if isinstance(value, dict):
        return {k: same(v) for k, v in value.items() if k not in ("id", "created", "created_at", "completed_at")}
    return [same(item) for item in value] if isinstance(value, list) else value


def test_answers_are_the_servers(cli: Cli, requests: Callable[..., Path], tmp_path: Path) -> None:
    file, out = requests(*(line(f"r{i}", url, body) for i, (url, body) in enumerate(BODIES))), tmp_path / "out.jsonl"
    got = cli("batch", str(file), "-o", str(out), "-m", "toy")
    assert (got.code, got.out) == (1, "")  # two of them are refused
    found = answers(out)
    assert len(found) == len(BODIES)
    with toy_llm() as llm, running(llm) as server:
        for i, (url, body) in enumerate(BODIES):
            served, answer = server.post(url, body), found[f"r{i}"]
            assert set(answer) == {"id", "custom_id", "response", "error"} and answer["error"] is None
            assert answer["response"]["status_code"] == served.status_code
            assert answer["response"]["request_id"]
            assert same(answer["response"]["body"]) == same(served.json())
    assert [found[f"r{i}"]["response"]["status_code"] for i in range(9)] == [200] * 7 + [400, 404]
    assert "line 8: top_p" in got.err and "line 9: The model `other`" in got.err
    assert "7 of 9 answered · 2 failed" in got.err


def test_the_body_stands_there_byte_for_byte(cli: Cli, requests: Callable[..., Path]) -> None:
    file = requests(line("é", "/detokenize", {"tokens": [195, 169, 34]}))
    got = cli("batch", str(file))
    assert got.code == 0
    assert '"custom_id":"é","response":{"status_code":200,' in got.out
    assert got.out.endswith(',"body":{"prompt":"é\\""}},"error":null}\n')


BAD = {
    "nope": "not valid JSON",
    "[1]": "not a JSON object",
    json.dumps({"method": "POST", "url": "/v1/completions", "body": {}}): "custom_id: give a string",
    line("m", "/v1/completions", {}, method="GET"): "method: give POST",
    line("u", "/v1/files", {}): "url: give one of",
    line("u2", "/inspect/kv", {}): "url: give one of",
    line("b", "/v1/completions", "text"): "body: give a JSON object",
    line("s", "/v1/completions", {"prompt": "a>", "stream": True}): "body.stream",
    "[" * 100_000: "not valid JSON",
    r'{"custom_id": "\ud800"}': "not valid JSON",
}


def test_bad_lines_are_errors_with_their_number_and_end_nothing(
    cli: Cli, requests: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    lines = [chat("first"), "", *BAD, chat("last")]
    got = cli("batch", str(requests(*lines)), "-o", str(out))
    assert got.code == 1
    assert got.err.count("\nline ") + got.err.startswith("line ") == len(BAD)
    written = [json.loads(one) for one in out.read_text().splitlines()]
    faults = [one for one in written if one["error"]]
    assert [one["error"]["line"] for one in faults] == list(range(3, 3 + len(BAD)))
    for fault, what in zip(faults, BAD.values(), strict=True):
        assert what in fault["error"]["message"] and fault["response"] is None
    assert {text(one) for one in written if one["response"]} == {"apples and pears"}
    assert [fault["custom_id"] for fault in faults] == [None] * 3 + ["m", "u", "u2", "b", "s", None, None]
    again = cli("batch", str(tmp_path / "in.jsonl"), "-o", str(out))
    assert "2 of 12 are answered" in again.err
    assert len(out.read_text().splitlines()) == len(written)


def test_a_custom_id_that_occurs_twice(cli: Cli, requests: Callable[..., Path]) -> None:
    got = cli("batch", str(requests(chat("x"), chat("y"), chat("x", "b"))))
    assert got.code == 1
    assert "line 3: custom_id is that of line 1" in got.err
    assert [json.loads(one)["error"] is None for one in got.out.splitlines()].count(True) == 2


def test_a_line_that_is_too_long_is_not_held(
    cli: Cli, requests: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.server.batchfiles.MAX_LINE", 1000)
    for length in (1001, 2000, 2001, 5000):
        got = cli("batch", str(requests(chat("long", "x" * length), chat("short"))))
        assert "line 1: longer than 1000 bytes" in got.err and got.code == 1
        assert text(json.loads(got.out.splitlines()[-1])) == "apples and pears"


def test_stdin_and_stdout(cli: Cli) -> None:
    got = cli("batch", "-", stdin=chat("x", "b"))
    assert got.code == 0 and text(json.loads(got.out)) == "one. two. three."
    assert got.err.startswith("1 of 1 answered · ")


def test_bytes_that_are_no_text(cli: Cli) -> None:
    got = cli("batch", "-", stdin=b'{"custom_id": "\xff"}\n\x00\n' + chat("x").encode())
    assert got.code == 1 and "line 1: not valid JSON" in got.err and "line 2: not valid JSON" in got.err
    assert text(json.loads(got.out.splitlines()[-1])) == "apples and pears"


def test_what_was_answered_is_not_asked_again(
    cli: Cli, requests: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    file = requests(chat("x"), chat("y", "b"))
    assert cli("batch", str(file), "-o", str(out)).code == 0
    before = out.read_bytes()
    requests(chat("x"), chat("y", "b"), chat("z", "é", model="renamed"))
    got = cli("batch", str(file), "-o", str(out))
    assert got.code == 1 and got.err.startswith(f"2 of 3 are answered in {out} already\n")
    assert out.read_bytes().startswith(before)
    requests(chat("x"), chat("y", "b"))
    assert cli("batch", str(file), "-o", str(out)).code == 0
    assert out.read_bytes() == before  # the line that failed is gone, and those that did not are as they were
    monkeypatch.setattr(options, "load", lambda *_, **__: pytest.fail("there is nothing to load a model for"))
    assert cli("batch", str(file), "-o", str(out)).code == 0
    assert out.read_bytes() == before


@pytest.mark.parametrize("cut", [1, 30, 300])
def test_a_torn_last_line_is_mended(cli: Cli, requests: Callable[..., Path], tmp_path: Path, cut: int) -> None:
    out, file = tmp_path / "out.jsonl", requests(*(chat(f"r{i}", "ab"[i % 2]) for i in range(6)))
    cli("batch", str(file), "-o", str(out))
    whole, mode = answers(out), out.stat().st_mode
    out.write_bytes(out.read_bytes()[:-cut])
    assert cli("batch", str(file), "-o", str(out)).code == 0
    assert {k: text(v) for k, v in answers(out).items()} == {k: text(v) for k, v in whole.items()}
    assert out.stat().st_mode == mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize("content", ["notes\n", "notes", '{"id": 3}\n', '{"id":"batch_req_1"}\n', "[]\n"])
def test_a_file_of_something_else_is_left_alone(
    cli: Cli, requests: Callable[..., Path], tmp_path: Path, content: str
) -> None:
    other = tmp_path / "notes.txt"
    other.write_text(content)
    got = cli("batch", str(requests(chat("x"))), "-o", str(other))
    assert got.code == 2 and "line 1: this is not the answers of a batch" in got.err
    assert other.read_text() == content


def test_answers_to_other_requests_are_left_alone(cli: Cli, requests: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    cli("batch", str(requests(chat("x"))), "-o", str(out), "-m", "toy")
    before = out.read_bytes()
    for model, body in (("toy", "b"), ("another", "a")):
        got = cli("batch", str(requests(chat("y"), chat("x", body))), "-o", str(out), "-m", model)
        assert got.code == 2 and "line 2:" in got.err and "custom_id 'x'" in got.err
    got = cli("batch", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "in.jsonl"))
    assert got.code == 2 and "holds the requests" in got.err
    got = cli("batch", str(tmp_path / "in.jsonl"), "-o", str(tmp_path))
    assert got.code == 2 and "is not a file" in got.err
    got = cli("batch", str(tmp_path / "none.jsonl"))
    assert got.code == 2 and "cannot be read" in got.err
    got = cli("batch", str(requests("", " ")))
    assert got.code == 2 and "has no requests" in got.err
    assert out.read_bytes() == before


def test_two_batches_do_not_write_one_file(cli: Cli, requests: Callable[..., Path], tmp_path: Path) -> None:
    from pellucid.server.batchfiles import Answers

    out = tmp_path / "out.jsonl"
    with Answers(out):
        got = cli("batch", str(requests(chat("x"))), "-o", str(out))
    assert got.code == 2 and "being written by another batch" in got.err
    assert cli("batch", str(requests(chat("x"))), "-o", str(out)).code == 0


def test_a_full_disk_loses_nothing(
    cli: Cli, requests: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, file = tmp_path / "out.jsonl", requests(*(chat(f"r{i}") for i in range(5)))
    write, left = os.write, [1000]

    def full(fd: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= (size := write(fd, data[: left[0]]))
        return size

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        got = cli("batch", str(file), "-o", str(out))
    assert got.code == 6 and "No space left on device; make room" in got.err
    assert out.stat().st_size == 1000
    assert cli("batch", str(file), "-o", str(out)).code == 0
    assert set(answers(out)) == {f"r{i}" for i in range(5)}


def test_more_than_there_is_room_for(
    cli: Cli, requests: Callable[..., Path], toy: Callable[..., None], tmp_path: Path
) -> None:
    toy(max_queue=0, kv_pages=20)
    lines = [chat(f"r{i}", "ab"[i % 2], n=1 + i % 8, max_tokens=20) for i in range(60)]
    lines.insert(7, chat("never", "l", max_tokens=400))  # more than all pages hold
    out = tmp_path / "out.jsonl"
    got = cli("batch", str(requests(*lines)), "-o", str(out), "--max-seqs", "8")
    assert got.code == 1
    found = answers(out)
    assert found.pop("never")["response"]["status_code"] == 429
    for i in range(60):
        choices = found[f"r{i}"]["response"]["body"]["choices"]
        assert len(choices) == 1 + i % 8
        assert {c["message"]["content"] for c in choices} == {("apples and pears", "one. two. three.")[i % 2]}


def test_dry_run(cli: Cli, requests: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "load", lambda *_, **__: pytest.fail("no model is loaded"))
    file, out = requests(*(line(f"r{i}", url, body) for i, (url, body) in enumerate(BODIES))), tmp_path / "out.jsonl"
    got = cli("batch", str(file), "-o", str(out), "-m", "toy", "--dry-run")
    assert got.code == 1 and "line 8: top_p" in got.err and "line 9: The model" in got.err
    assert "7 of 9 could be asked · 2 failed" in got.err
    assert not out.exists()
    assert cli("batch", "-", "--dry-run", stdin=chat("x")).code == 0


# -- the real model ---------------------------------------------------------------------------------------------------


def test_stopped_and_taken_up_again(smollm2_path: Path, tmp_path: Path, requests: Callable[..., Path]) -> None:
    lines = [chat(f"r{i}", f"Name {i + 2} cities.", max_tokens=12 + i) for i in range(10)]
    file, out, whole = requests(*lines), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    program = [sys.executable, "-c", "from pellucid.cli import main; main()"]
    command = [*program, "batch", str(file), "-m", str(smollm2_path), "-o"]
    written = 0
    for how in (signal.SIGKILL, signal.SIGINT):
        before = answers(out) if written else {}
        with subprocess.Popen([*command, str(out), "--max-seqs", "1"], stderr=subprocess.PIPE, text=True) as child:
            end = time.monotonic() + 60
            while not out.exists() or out.read_bytes().count(b"\n") <= written:
                assert time.monotonic() < end and child.poll() is None
                time.sleep(0.01)
            child.send_signal(how)
            _, err = child.communicate(timeout=60)
        part = answers(out)
        assert written < len(part) < 10
        assert before.items() <= part.items()
        written = len(part)
    assert child.returncode == 130
    assert err.endswith(f"stopped: {written} of 10 are answered; the same command goes on from there\n")
    for file in (out, whole):
        done = subprocess.run([*command, str(file)], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert {k: text(v) for k, v in answers(out).items()} == {k: text(v) for k, v in answers(whole).items()}
    assert len(answers(out)) == 10
    assert part.items() <= answers(out).items()
