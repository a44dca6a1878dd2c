"""Raw connections: half requests, slow ones, ones that never read. None may hold a place for long."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from pellucid.server import transport
from pellucid.server.limits import Limits, nests_deeper
from pellucid.server.transport import bind
from serving import Live, running, slow, until
from toymodel import toy_llm

FAST = Limits(header_time=0.3, body_time=0.3, write_stall=0.3, connections=20, deadline=1.0, body_bytes=1 << 16)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def strict() -> Iterator[Live]:
    with slow(toy_llm(), 0.002) as llm, running(llm, limits=FAST) as live:
        yield live


@pytest.mark.parametrize(
    ("text", "limit", "deeper"),
    [
        (b"", 0, False),
        (b"1", 0, False),
        (b"[]", 1, False),
        (b"[[]]", 1, True),
        (b'[{"a":[]}]', 2, True),
        (b'[{"a":[]}]', 3, False),
        (b'["[[[[[[", "]]]]", "\\"[[["]', 1, False),
        (b'["\\\\", [[', 2, True),
        (b'["unclosed [[[[', 1, False),
        (b"]]]][[", 2, False),
    ],
)
def test_depth(text: bytes, limit: int, deeper: bool) -> None:
    assert nests_deeper(text, limit) is deeper


def test_answers_are_sent_at_once() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # else asyncio leaves Nagle's algorithm on: 40 ms an answer


@pytest.mark.parametrize("start", [b"", b"G", b"GET / HTTP/1.1\r\nHost: lo", HEAD, b"\r\n" * 3])
def test_half_a_head_is_closed(strict: Live, start: bytes) -> None:
    began = time.monotonic()
    assert b"200 OK" not in strict.raw(start)
    took = time.monotonic() - began
    assert took < 3 and (took > 0.2 or start.isspace())


def test_a_head_that_drips_is_closed(strict: Live) -> None:
    with socket.create_connection(("127.0.0.1", strict.port)) as s:
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            for byte in HEAD * 10:
                s.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - began < 2


def test_half_a_head_after_a_whole_request_is_closed(strict: Live) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
        answer = b""
        while not answer.endswith(b"}"):
            answer += s.recv(65536)
        s.sendall(b"lth HT")
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            assert s.recv(65536) == b""
            raise ConnectionError
        assert time.monotonic() - began < 3


def test_half_a_body_is_answered_408(strict: Live) -> None:
    answer = strict.raw(HEAD + b"Content-Length: 100\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408") and b"request_timeout" in answer


@pytest.mark.parametrize(
    "head",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 4000 + b"\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1x\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(strict: Live, head: bytes) -> None:
    answer = strict.raw(head, wait=1)
    assert not answer or (answer.split()[1][:1] == b"4" and b'{"error":' in answer)
    assert strict.http.get("/health").status_code == 200


def test_a_body_that_is_too_large_is_refused_before_it_comes(strict: Live) -> None:
    assert strict.raw(HEAD + b"Content-Length: 70000\r\n\r\n").startswith(b"HTTP/1.1 413")
    assert strict.raw(HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n").startswith(b"HTTP/1.1 4")
    chunk = b"2000\r\n" + b" " * 0x2000 + b"\r\n"
    answer = strict.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 9)
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_body_that_goes_wrong_after_its_answer(strict: Live, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as s:
        s.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"2000\r\n" + b" " * 0x2000 + b"\r\n") * 9)
        assert s.recv(65536).startswith(b"HTTP/1.1 413")
        s.sendall(b"zz\r\n\r\n")
        time.sleep(0.2)
    assert strict.http.get("/health").status_code == 200
    assert not caplog.records


def head_of(kind: str, size: int) -> bytes:
    if kind == "url":
        return b"GET /" + b"a" * size + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    lines = b"X: " + b"a" * size + b"\r\n" if kind == "header" else b"X: a\r\n" * (size // 6)
    return b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n"


@pytest.mark.parametrize(("kind", "status"), [("url", 414), ("header", 431), ("lines", 431)])
@pytest.mark.parametrize("size", [17_000, 100_000, 1_000_000])
def test_a_large_head_is_refused_by_its_limit(strict: Live, kind: str, status: int, size: int) -> None:
    answer = strict.raw(head_of(kind, size), wait=3)
    assert answer.startswith(b"HTTP/1.1 %d" % status)
    assert b"16384 bytes" in answer and b"connection: close" in answer.lower()


@pytest.mark.parametrize(("kind", "status"), [("url", 414), ("header", 431)])
def test_a_large_head_in_pieces_is_refused_alike(strict: Live, kind: str, status: int) -> None:
    head = head_of(kind, 17_000)
    with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as s:
        for i in range(0, len(head), 1000):
            s.sendall(head[i : i + 1000])
            time.sleep(0.001)
        assert s.recv(65536).startswith(b"HTTP/1.1 %d" % status)


@pytest.mark.parametrize("kind", ["url", "header", "lines"])
def test_a_head_within_the_limit_is_served(strict: Live, kind: str) -> None:
    answer = strict.raw(head_of(kind, 16_000).replace(b"Host:", b"Connection: close\r\nHost:"))
    assert answer.startswith(b"HTTP/1.1 404" if kind == "url" else b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("version", "length"), [(b"1.1", b"Content-Length: 6\r\n"), (b"1.0", b"Content-Length: 6\r\n"), (b"1.0", b"")]
)
@pytest.mark.parametrize("first", [True, False])
def test_a_body_of_two_lengths_is_refused(strict: Live, version: bytes, length: bytes, first: bool) -> None:
    coding = b"Transfer-Encoding: chunked\r\n"
    lengths = length + coding if first else coding + length
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/" + version) + lengths + b"\r\n"
    answer = strict.raw(head + b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", wait=3)
    assert answer.count(b"HTTP/1.1 ") == 1 and b"200 OK" not in answer
    assert answer.startswith(b"HTTP/1.1 400") and b"invalid_http" in answer and b"in doubt" in answer


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
@pytest.mark.parametrize("length", [b"Content-Length: 9000000\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_client_that_writes_it_all_first_still_gets_its_answer(
    strict: Live, close: bytes, length: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    body = b" " * 9_000_000 if b"Length" in length else (b"2000\r\n" + b" " * 0x2000 + b"\r\n") * 1100 + b"0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as s:
        s.sendall(HEAD + close + length + b"\r\n" + body)
        assert s.recv(65536).startswith(b"HTTP/1.1 413")
    assert not caplog.records


def test_a_broken_body_is_answered_once(strict: Live, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as s:
        s.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + b" " * 1_000_000)
        answer = b""
        while part := s.recv(65536):
            answer += part
        assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
        time.sleep(0.5)  # longer than the body may take
    until(lambda: len(strict.server.server_state.connections) < 5)
    assert not caplog.records


def test_what_is_thrown_away_is_bounded(strict: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LINGER", 0.3)
    with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as s:
        s.sendall(b"NONSENSE\r\n\r\n")
        assert s.recv(65536).startswith(b"HTTP/1.1 400")
        with pytest.raises(ConnectionError):
            for _ in range(100):
                s.sendall(b"x")
                time.sleep(0.02)
    monkeypatch.setattr(transport, "LINGER", 30.0)
    monkeypatch.setattr(transport, "LINGER_BYTES", 1 << 20)
    for close in (b"", b"Connection: close\r\n"):
        with socket.create_connection(("127.0.0.1", strict.port), timeout=5) as s, pytest.raises(ConnectionError):
            s.sendall(HEAD + close + b"Content-Length: 900000000\r\n\r\n")
            for _ in range(10_000):
                s.sendall(bytes(1 << 16))


def test_a_body_nobody_wants_does_not_hold_the_connection(strict: Live) -> None:
    began = time.monotonic()
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    assert strict.raw(head).startswith(b"HTTP/1.1 200")
    assert time.monotonic() - began < 4


def test_a_client_that_never_reads_is_cut_off() -> None:
    limits = Limits(write_stall=0.3)
    with toy_llm(ctx=4096, kv_pages=512) as llm, running(llm, limits=limits) as live:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        s.connect(("127.0.0.1", live.port))
        body = json.dumps({"prompt": ["l>"] * 8, "max_tokens": 3900, "temperature": 0, "stream": True, "logprobs": 20})
        s.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        until(lambda: not live.service.idle.is_set())
        live.settles(20)
        assert llm.engine.stats.finished["abort"] > 0
        s.close()


def test_connections_are_bounded(strict: Live, caplog: pytest.LogCaptureFixture) -> None:
    sockets = [socket.create_connection(("127.0.0.1", strict.port)) for _ in range(40)]
    try:
        closed = 0
        for s in sockets:
            s.settimeout(0.05)
            try:
                closed += s.recv(1) == b""
            except TimeoutError:
                pass
            except ConnectionError:
                closed += 1
        assert closed >= 20
        assert [r.getMessage()[:32] for r in caplog.records] == ["all 20 connections are taken; ne"]
    finally:
        for s in sockets:
            s.close()
    until(lambda: len(strict.server.server_state.connections) < 5)
    assert strict.http.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_the_deadline(strict: Live, stream: bool) -> None:
    body = {"prompt": "l>", "max_tokens": 500, "temperature": 0, "ignore_eos": True, "stream": stream}
    slow(strict.llm, 0.01)
    response = strict.post("/v1/completions", body)
    if stream:
        assert response.status_code == 200
        *_, last, end = response.text.split("\n\n")
        assert end == "" and json.loads(last[6:])["error"]["code"] == "deadline_exceeded"
    else:
        assert response.status_code == 408 and response.json()["error"]["code"] == "deadline_exceeded"
    strict.settles()
