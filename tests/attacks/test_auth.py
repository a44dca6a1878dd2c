"""Ways around the key: other spellings of paths, hosts and methods, headers of proxies. None opens a thing."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from pellucid.server import keys
from serving import Live, running
from toymodel import toy_llm

KEY = "sk-attack-0123456789"
OPEN = {"/health", "/ready"}


@pytest.fixture(scope="module")
def keyed() -> Iterator[Live]:
    with toy_llm() as llm, running(llm, api_key=KEY, inspect=True) as live:
        yield live


def status(live: Live, line: str, *headers: str, body: str = "") -> int:
    """Status of the answer to a raw request line, without a key; 0 if there is none."""
    head = [line, *headers, "Connection: close", f"Content-Length: {len(body)}"]
    if not any(h.lower().startswith("host:") for h in headers):
        head.insert(1, "Host: localhost")
    answer = live.raw(("\r\n".join(head) + "\r\n\r\n" + body).encode("latin-1"))
    return int(answer.split()[1]) if answer else 0


TRICKS = [
    "/{path}",
    "//localhost{path}",
    "http://localhost{path}",
    "http://localhost/health{path}",
    "{path}/",
    "{path}?x=/health",
    "{path}#/health",
    "{path};/health",
    "{path}%00",
    "{path}%20",
    "/.{path}",
    "/health/..{path}",
    "/health/%2e%2e{path}",
    "/health/..%2f..{path}",
    "/health%2f..{path}",
    "/health;{path}",
    "/health?{path}",
    "/health//..{path}",
    "/ready\\..{path}",
    "{upper}",
    "{percent}",
    "/v1/%2e%2e{path}",
    "*",
]


def paths(live: Live) -> list[str]:
    spec = live.http.get("/openapi.json").json()
    found = [path.replace("{model}", "toy").replace("{id}", "x") for path in spec["paths"]]
    return [path for path in [*found, "/openapi.json"] if path not in OPEN]


def test_no_spelling_of_a_path_opens_it(keyed: Live) -> None:
    known = paths(keyed)
    assert len(known) > 10
    for path in known:
        percent = "".join(f"%{ord(c):02x}" if c != "/" else c for c in path)
        for trick in TRICKS:
            target = trick.format(path=path, upper=path.upper(), percent=percent)
            for method in ("GET", "POST"):
                got = status(keyed, f"{method} {target} HTTP/1.1")
                opened = trick == "/health?{path}" and method == "GET"  # it is /health, with a query
                assert (got == 200) == opened, (method, target, got)
                assert got in (200, 400, 401, 403, 404, 405), (method, target, got)


@pytest.mark.parametrize(
    "headers",
    [
        ["X-Original-URL: /health"],
        ["X-Rewrite-URL: /health"],
        ["X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1"],
        ["X-Forwarded-Host: localhost", "X-Forwarded-Prefix: /health"],
        ["Forwarded: for=127.0.0.1;host=localhost"],
        ["X-HTTP-Method-Override: GET"],
        ["Authorization: Bearer"],
        ["Authorization: Bearer null"],
        ["Authorization: Bearer " + "\xff" * 40],
        ["Authorization: Bearer x", f"Authorization: Bearer {KEY}x"],
        [f"Authorization: Basic {KEY}"],
        [f"Authorization: {KEY}"],
        [f"Proxy-Authorization: Bearer {KEY}"],
        [f"Cookie: key={KEY}; authorization=Bearer {KEY}"],
        ["X-API-Key:"],
        [f"X-API-Key: {KEY},{KEY}"],
    ],
)
def test_no_header_stands_for_the_key(keyed: Live, headers: list[str]) -> None:
    for path in ("/v1/models", "/metrics", "/openapi.json"):
        assert status(keyed, f"GET {path} HTTP/1.1", *headers) == 401
    assert status(keyed, f"GET /v1/models?api_key={KEY}&key={KEY} HTTP/1.1", *headers) == 401


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1@evil", "evil#localhost", ""])
def test_no_host_of_another_name_is_answered(keyed: Live, host: str) -> None:
    key = f"Authorization: Bearer {KEY}"
    assert status(keyed, "GET /v1/models HTTP/1.1", f"Host: {host}", key) in (400, 403)
    assert status(keyed, "GET /v1/models HTTP/1.1", "Host: localhost", f"Host: {host}", key) in (400, 403)
    assert status(keyed, "GET http://localhost/v1/models HTTP/1.1", f"Host: {host}", key) in (400, 403)
    assert status(keyed, f"GET http://{host}/v1/models HTTP/1.1", "Host: localhost") in (400, 401, 403)
    forwarded = ("Host: evil.example", "X-Forwarded-Host: localhost", key)
    assert status(keyed, "GET /v1/models HTTP/1.1", *forwarded) == 403


def test_a_request_smuggled_behind_another_needs_its_own_key(keyed: Live) -> None:
    inner = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    outer = f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", keyed.port), timeout=5) as s:
        s.sendall((outer + inner).encode())
        answer = b""
        while part := s.recv(65536):
            answer += part
    assert answer.count(b"HTTP/1.1 200") == 1 and answer.count(b"HTTP/1.1 401") == 1


def test_keys_are_compared_in_constant_time(keyed: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    same, compared = hmac.compare_digest, list[tuple[Any, Any]]()

    def compare(a: Any, b: Any) -> bool:
        compared.append((a, b))
        return same(a, b)

    monkeypatch.setattr(keys.hmac, "compare_digest", compare, raising=True)
    for given in (KEY, "x", KEY[:-1] + "x"):
        keyed.http.get("/v1/models", headers={"authorization": f"Bearer {given}"})
    assert len(compared) >= 3
    assert {len(a) for a, _ in compared} == {len(b) for _, b in compared} and len({len(a) for a, _ in compared}) == 1
