"""Who may come in: keys, Host and Origin, addresses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pellucid.errors import ConfigError
from pellucid.secret import Secret
from pellucid.server.auth import host_of, is_loopback
from pellucid.server.keys import Keyring
from serving import Live, running
from toymodel import toy_llm

KEY = "sk-test-0123456789"


@pytest.fixture(scope="module")
def keyed() -> Iterator[Live]:
    with toy_llm() as llm, running(llm, api_key=KEY) as live:
        yield live


def test_every_route_but_the_probes_needs_the_key(keyed: Live) -> None:
    paths = keyed.http.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/metrics", "/version"} <= set(paths)
    wrong = [{}, {"authorization": ""}, {"authorization": f"Bearer {KEY}x"}, {"authorization": f"Bearer {KEY[:-1]}"}]
    wrong += [{"authorization": KEY}, {"authorization": f"Basic {KEY}"}, {"authorization": "Bearer"}]
    beside = {path: {"get": {}} for path in ("/openapi.json", "/nowhere", "/index.html")}
    for path, methods in {**paths, **beside}.items():
        for method in methods:
            for headers in wrong:
                headers = {"authorization": "none"} | headers
                response = keyed.http.request(method, path.replace("{model}", "toy"), headers=headers)
                if path in ("/health", "/ready"):
                    assert response.status_code == 200
                else:
                    assert response.status_code == 401, (path, headers)
                    error = response.json()["error"]
                    assert error.get("code") == "invalid_api_key" or error["type"] == "authentication_error"
                    assert response.headers["www-authenticate"] == "Bearer"


def test_the_key_opens(keyed: Live) -> None:
    assert keyed.http.get("/v1/models").status_code == 200
    assert keyed.http.get("/v1/models", headers={"authorization": f"bearer {KEY}"}).status_code == 200
    assert keyed.post("/v1/completions", {"prompt": "a>", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/%68ealth", "//health", "/health/", "/HEALTH", "/health%2f", "/./health", "/v1//models"]
)
def test_tricks_with_the_path_open_nothing(keyed: Live, path: str) -> None:
    answer = keyed.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 401")


def test_what_a_key_may_not_be() -> None:
    for bad in ("", "short", "with space in it", "línguistic-key", "tab\tin-the-key"):
        with pytest.raises(ConfigError, match="API key"):
            Keyring(Secret(bad))


GOOD = ["localhost", "localhost:8000", "LOCALHOST", "127.0.0.1", "127.0.0.1:80", "127.8.9.1", "[::1]", "[::1]:8000"]
BAD = ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "10.0.0.1", "0.0.0.0", "", "localhost@evil", "a b"]
BAD += ["evil.example#localhost", "[::2]", "localhost:x", "127.0.0.1:80/x", "[", "127.1", "0x7f.1"]


def test_hosts(live: Live) -> None:
    for host, status in [(host, b"200") for host in GOOD] + [(host, b"403") for host in BAD]:
        answer = live.raw(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert answer.split()[1] == status, host
    assert live.raw(b"GET /health HTTP/1.0\r\n\r\n").split()[1] == b"403"
    two = b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert live.raw(two).split()[1] in (b"400", b"403")


def test_allowed_host() -> None:
    with toy_llm() as llm, running(llm, allowed_hosts=["models.example"]) as live:
        assert live.http.get("/health", headers={"host": "Models.example"}).status_code == 200
        assert live.http.get("/health", headers={"host": "other.example"}).status_code == 403
    with toy_llm() as llm, running(llm, api_key=KEY, allowed_hosts=None) as live:
        assert live.http.get("/health", headers={"host": "any.example"}).status_code == 200
        headers = {"host": "any.example", "origin": "https://any.example"}
        assert live.http.get("/v1/models", headers=headers).status_code == 200
        assert live.http.get("/v1/models", headers=headers | {"origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("[", 403),
    ],
)
def test_origins(live: Live, origin: str, status: int) -> None:
    response = live.http.get("/v1/models", headers={"origin": origin})
    assert response.status_code == status
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_what_loopback_is() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "[::1]", "::ffff:127.0.0.1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "example.com", "", "128.0.0.1"))
    assert host_of("[::1]:80") == "::1" and host_of("a.b.:80") == "a.b"
