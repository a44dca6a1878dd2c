"""The audit log: chained, whole after crashes and rotation, without texts, and loud where it cannot be written."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pellucid.errors import ConfigError
from pellucid.server import auditlog
from pellucid.server.auditchain import BrokenError, verify
from pellucid.server.auditlog import AuditLog
from pellucid.server.keyfile import add
from pellucid.server.keys import Keyring
from serving import Live, running, slow, until
from toymodel import toy_llm

PATH = "/v1/completions"


def written(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@contextmanager
def logged(file: Path, **options: Any) -> Iterator[tuple[Live, AuditLog]]:
    """A server that writes an audit log, over the toy model."""
    log = AuditLog(file)
    try:
        with toy_llm(max_seqs=16, kv_pages=256) as llm, running(llm, audit_log=log, **options) as live:
            yield live, log
    finally:
        log.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A log of ten lines."""
    file = tmp_path / "audit.jsonl"
    log = AuditLog(file)
    for number in range(10):
        log.write("test", number=number)
    log.close()
    return file


def test_a_request_leaves_a_line_and_probes_leave_none(tmp_path: Path) -> None:
    file, keys = tmp_path / "audit.jsonl", tmp_path / "keys.toml"
    alice = add(keys, "alice", ["infer"], {})
    bring = {"authorization": f"Bearer {alice.reveal()}"}
    count = 0
    with logged(file, keys=Keyring(file=keys), inspect=True) as (live, log):

        def ask(method: str, path: str, body: Any = None, headers: Any = bring) -> httpx.Response:
            nonlocal count
            count += 1
            answer = live.http.request(method, path, json=body, headers=headers)
            until(lambda: log.number == count)  # the line comes after the answer
            return answer

        live.http.get("/health")
        live.http.get("/ready")
        body = {"prompt": ["a>", "b>"], "max_tokens": 3, "temperature": 0, "logprobs": 2, "cache_salt": "mine"}
        answer = ask("POST", PATH, body, bring | {"x-request-id": "known"})
        stream = ask("POST", PATH, {"prompt": "a>", "stream": True, "max_tokens": 40})
        ask("POST", PATH, body, {})
        ask("POST", PATH, body, {"authorization": "Bearer pk-wrong"})
        ask("GET", "/metrics")
        ask("POST", PATH, {"prompt": "a>", "temperature": "hot"})
        ask("SPELL", "/inspect/requests/of-others")
        ask("GET", "/inspect/requests/of-others")
        ask("GET", "/none/such?prompt=words")
    lines = written(file)
    assert answer.status_code == stream.status_code == 200
    assert [(line["status"], line["refused"]) for line in lines if line["event"] == "request"] == [
        (200, None),
        (200, None),
        (401, "invalid_api_key"),
        (401, "invalid_api_key"),
        (403, "insufficient_scope"),
        (400, "invalid_type"),
        (405, "method_not_allowed"),
        (403, "insufficient_scope"),
        (404, "not_found"),
    ]
    first, second, *refused, unknown = (line for line in lines if line["event"] == "request")
    assert first["request_id"] == "known" and first["route"] == PATH and first["method"] == "POST"
    assert first["client"] == "127.0.0.1" and first["client_port"] > 0 and first["seconds"] > 0
    assert first["key"] == first["tenant"] == "alice"
    assert first["key_sha256"] == hashlib.sha256(alice.reveal().encode()).hexdigest()[:8]
    usage = answer.json()["usage"]
    assert first["answer"] | {"id": "", "pooling": "", "grammar": ""} == {
        "id": "",
        "stream": False,
        "shown": False,
        "tools": 0,
        "prompts": 2,
        "n": 1,
        "max_tokens": 3,
        "priority": 0,
        "salted": True,
        "logprobs": 2,
        "prompt_logprobs": None,
        "grammar": "",
        "pooling": "",
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": 0,
        "completion_tokens": usage["completion_tokens"],
        "finish_reason": "length",
    }
    assert second["answer"]["stream"] and second["answer"]["finish_reason"] == "stop"
    assert refused[0]["key"] is None and refused[2]["key"] == "alice" and refused[0]["answer"] is None
    assert refused[4]["method"] is None and refused[5]["target"] is None  # it was refused before it was routed
    assert unknown["route"] is None and "words" not in file.read_text()
    assert lines[-1]["event"] == "drain" and lines[-1]["running"] == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert verify([file]).lines == len(lines)


def test_faults_and_clients_that_leave_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "audit.jsonl"
    log = AuditLog(file)
    with slow(toy_llm(fail_at=30), 0.01) as llm, running(llm, audit_log=log) as live:
        long = {"prompt": "l>", "max_tokens": 400, "temperature": 0}
        assert live.post(PATH, long | {"stream": True}).status_code == 200  # a step fails in the middle
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(live.url + PATH, json=long, timeout=0.1)
        live.settles()
        monkeypatch.setattr(live.service, "check_model", lambda name: 1 / 0)
        assert live.post(PATH, {"prompt": "a>"}).status_code == 500
    log.close()
    failed, left, fault = (line for line in written(file) if line["event"] == "request")
    assert failed["status"] == 200 and failed["answer"]["finish_reason"] == "error"
    assert left["status"] is None and left["answer"]["finish_reason"] == "abort"
    assert fault["status"] == 500 and fault["refused"] == "internal_error"


def test_requests_at_once_make_one_chain_without_their_words(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    planted = [f"Seed{secrets.token_hex(8)}" for _ in range(60)]

    def ask(number: int) -> int:
        secret = planted[number]
        body: dict[str, Any] = {"prompt": f"a{secret}>", "max_tokens": 2, "user": secret, "stop": secret}
        more = [
            {"stream": True},
            {"temperature": secret},
            {"guided_regex": f"({secret}"},
            {"response_format": {"type": "json_schema", "json_schema": {"name": secret, "schema": {"title": secret}}}},
            {"cache_salt": secret},
            {"logit_bias": {secret: 1}},
        ][number % 6]
        headers = {"user-agent": secret, "x-request-id": f"{secret}!", "authorization": f"Bearer {secret}"}
        return live.post(f"{PATH}?key={secret}", body | more, headers=headers).status_code

    with logged(file) as (live, log), ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(ask, range(60)))
    lines = [line for line in written(file) if line["event"] == "request"]
    assert sorted(line["status"] for line in lines) == sorted(statuses) and {200, 400} <= set(statuses)
    assert not [secret for secret in planted if secret in file.read_text()]
    intact = verify([file], log.head)
    assert intact.lines == 61 and intact.first == 1 and intact.head == log.head


def changed(lines: list[bytes]) -> None:
    lines[4] = lines[4].replace(b'"number":4', b'"number":5')


def forged(lines: list[bytes]) -> None:
    """Changed, with the digest that it then has."""
    body = lines[4].partition(b',"digest"')[0].replace(b'"number":4', b'"number":5')
    lines[4] = body + b',"digest":"%s"}\n' % hashlib.sha256(body + b"}").hexdigest().encode()


def deleted(lines: list[bytes]) -> None:
    del lines[4]


def reordered(lines: list[bytes]) -> None:
    lines[4], lines[5] = lines[5], lines[4]


def repeated(lines: list[bytes]) -> None:
    lines.insert(5, lines[4])


def spaced(lines: list[bytes]) -> None:
    lines[4] = lines[4].replace(b'"number":4', b'"number": 4')


def blank(lines: list[bytes]) -> None:
    lines.insert(4, b"\n")


def beheaded(lines: list[bytes]) -> None:
    lines[0] = lines[1].replace(b'"line":2', b'"line":1')


def torn(lines: list[bytes]) -> None:
    lines[9] = lines[9][:-9]


@pytest.mark.parametrize(
    ("attack", "line"),
    [
        (changed, 5),
        (forged, 6),
        (deleted, 5),
        (reordered, 5),
        (repeated, 6),
        (spaced, 5),
        (blank, 5),
        (beheaded, 1),
        (torn, 10),
    ],
)
def test_what_was_tampered_with_is_found(file: Path, attack: Callable[[list[bytes]], None], line: int) -> None:
    assert verify([file]).lines == 10
    lines = file.read_bytes().splitlines(keepends=True)
    attack(lines)
    file.write_bytes(b"".join(lines))
    with pytest.raises(BrokenError, match=rf"audit\.jsonl, line {line} "):
        verify([file])


def test_a_cut_tail_shows_by_a_head_that_was_noted(file: Path) -> None:
    head = verify([file]).head
    lines = file.read_bytes().splitlines(keepends=True)
    noted = json.loads(lines[6])["digest"]
    assert verify([file], noted).lines == 10
    file.write_bytes(b"".join(lines[:8]))
    assert verify([file], noted).lines == 8
    with pytest.raises(BrokenError, match=head):
        verify([file], head)


def test_it_goes_on_after_a_restart_and_a_torn_line_is_sealed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(file.read_bytes()[:-30])
    file.chmod(0o644)
    log = AuditLog(file)
    assert "the last line is torn" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="another server"):
        AuditLog(file)
    log.write("after")
    log.close()
    assert file.stat().st_mode & 0o777 == 0o600
    intact = verify([file])
    assert intact.lines == 11 and intact.sealed == (f"{file}, line 10",) and intact.head == log.head
    lines = file.read_bytes().splitlines(keepends=True)
    lines[9] = lines[9].replace(b"test", b"best")
    file.write_bytes(b"".join(lines))
    with pytest.raises(BrokenError, match="line 10 was changed"):
        verify([file])


def test_what_is_no_audit_log_is_left_alone(tmp_path: Path, file: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("a letter\n")
    for path in (notes, tmp_path, tmp_path / "none" / "audit.jsonl"):
        with pytest.raises(ConfigError, match=path.name):
            AuditLog(path)
    assert notes.read_text() == "a letter\n"
    text = file.read_bytes()
    file.write_bytes(text.replace(b'"number":9', b'"number":8'))
    with pytest.raises(ConfigError, match="pellucid audit-log verify"):
        AuditLog(file)


def test_it_follows_rotation(file: Path) -> None:
    log = AuditLog(file)
    old = file.rename(file.with_suffix(".1"))
    log.write("moved")
    until(file.exists)
    log.write("after")
    log.close()
    assert file.stat().st_mode & 0o777 == 0o600
    assert verify([old, file]).lines == 12
    assert verify([file]).first == 11
    with pytest.raises(BrokenError, match="a file between is missing"):
        verify([file, old])


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files")
def test_a_full_disk_is_told_and_nothing_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    monkeypatch.setattr(auditlog, "RETRY", 0.01)
    file = tmp_path / "audit.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with logged(file) as (live, log):
        assert live.post(PATH, {"prompt": "a>"}).status_code == 200
        until(lambda: file.read_bytes().endswith(b"\n"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 100, hard))  # a line fits in part
        try:
            assert live.post(PATH, {"prompt": "a>"}).status_code == 200
            until(lambda: log.fault is not None)
            answer = live.post(PATH, {"prompt": "a>"})
            assert answer.status_code == 503 and "audit log" in answer.json()["error"]["message"]
            assert "audit log" in live.http.get("/ready").text and live.http.get("/health").status_code == 200
            assert file.read_bytes().count(b"\n") == 1 and not file.read_bytes().endswith(b"\n")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        until(lambda: log.fault is None)
        assert live.post(PATH, {"prompt": "a>"}).status_code == 200
    said = capsys.readouterr().err
    assert said.count("cannot be written") == 1 and "is written again" in said
    assert [line["event"] for line in written(file)].count("omitted") == 1
    assert next(line for line in written(file) if line["event"] == "omitted")["requests"] == 1
    assert verify([file]).lines == 5


def test_an_end_without_room_is_not_waited_for(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditlog, "PATIENCE", 0.05)
    monkeypatch.setattr(auditlog, "RETRY", 0.01)
    log = AuditLog(file)
    folder = file.rename(file.with_suffix(".1"))
    file.mkdir()  # nothing can be written there
    log.write("lost")
    log.close()
    assert "1 lines of" in capsys.readouterr().err
    assert verify([folder]).lines == 10


SERVER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from toymodel import toy_llm
from pellucid.server.serve import serve
serve(toy_llm, port=0, audit_log=Path({file!r}), api_key_file=Path({keys!r}),
      ready=lambda llm, host, port: print(port, flush=True))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_what_the_operator_does_is_written_down(tmp_path: Path) -> None:
    file, keys = tmp_path / "audit.jsonl", tmp_path / "keys.toml"
    alice = add(keys, "alice", ["infer"], {})
    code = SERVER.format(tests=str(Path(__file__).parents[1]), file=str(file), keys=str(keys))
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        port = int(process.stdout.readline())
        add(keys, "bob", ["admin"], {})
        process.send_signal(signal.SIGHUP)
        until(lambda: "reload" in file.read_text())
        keys.write_text(f"[keys.{alice.reveal()}]\n")
        process.send_signal(signal.SIGHUP)
        until(lambda: file.read_text().count("reload") == 2)
        answer = httpx.post(
            f"http://127.0.0.1:{port}{PATH}",
            json={"prompt": "a>"},
            headers={"authorization": f"Bearer {alice.reveal()}"},
        )
        process.terminate()
        assert process.wait(20) == 0 and answer.status_code == 200
        said = process.stderr.read()
    start, reload, failed, request, drain, stop = written(file)
    assert start["event"] == "start" and start["pid"] == process.pid and start["port"] == port
    assert [key["key"] for key in start["keys"]] == ["alice"] and not start["tls"]
    assert reload["ok"] and [(k["key"], k["scopes"]) for k in reload["keys"]] == [
        ("alice", ["infer"]),
        ("bob", ["admin"]),
    ]
    assert not failed["ok"] and len(failed["keys"]) == 2
    assert request["key"] == "alice" and drain["event"] == "drain"
    assert stop["event"] == "stop" and stop["error"] is None
    assert alice.reveal() not in file.read_text()
    assert f"6 lines, head {stop['digest']}" in said


def test_the_command_says_what_holds(file: Path) -> None:
    def run(*args: str) -> tuple[int, str]:
        command = [sys.executable, "-c", "from pellucid.cli import main; main()", "audit-log", "verify", *args]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})
        return done.returncode, done.stdout + done.stderr

    head = verify([file]).head
    assert run(str(file), "--head", head) == (0, f"intact: 10 lines, head {head}\n")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3] + lines[4:]))
    code, said = run(str(file))
    assert code == 1 and said.startswith(f"broken: {file}, line 4 does not follow")
    code, said = run(str(file), "--json")
    assert code == 1 and json.loads(said)["intact"] is False
    code, said = run(str(file.with_name("none")))
    assert code == 2 and said.startswith("error: cannot read")
