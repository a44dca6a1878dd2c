"""Bodies and bytes that nobody thought of: never a 5xx, never a hang, and the next request is right."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pellucid.server.openai import ChatRequest, CompletionRequest
from serving import Live

NAMES = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, "tools", "response_format", "foo"})
ODD = st.sampled_from([float("nan"), float("inf"), -0.0])
NUMBERS = st.one_of(st.integers(-3, 40), st.integers(-(2**70), 2**70), st.floats(-2, 2), ODD)
KEYS = st.sampled_from(["role", "content", "type", "text", "1", "include_usage"])
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["user", "a>", "text"]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=8,
)
GOOD: dict[str, Any] = {"max_tokens": 3, "prompt": "a>", "messages": [{"role": "user", "content": "a"}]}


CHANGES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(["chat/completions", "completions"]), change=CHANGES)
def test_bodies(live: Live, path: str, change: dict[str, Any]) -> None:
    body = json.dumps(GOOD | change)
    response = live.http.post(f"/v1/{path}", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        assert response.json()["error"]["message"]
    elif json.loads(body).get("stream"):
        assert response.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("seed", range(40))
def test_bytes(live: Live, seed: int) -> None:
    chance = random.Random(seed)
    body = json.dumps({"prompt": "a>", "max_tokens": 2}).encode()
    whole = bytearray(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    for _ in range(chance.randint(1, 4)):
        where = chance.randrange(len(whole))
        whole[where : where + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
    cut = chance.choice([len(whole), chance.randrange(len(whole))])
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as s:
        s.sendall(whole[:cut])
        s.settimeout(0.1 if cut < len(whole) else 0.5)
        try:
            answer = s.recv(65536)
        except (TimeoutError, ConnectionError):
            answer = b""
    assert not answer or answer.split()[1][:1] in (b"2", b"4"), answer
    good = live.post("/v1/completions", {"prompt": "a>", "temperature": 0})
    assert good.json()["choices"][0]["text"] == "apples and pears"
