"""Requests nobody thought of: never a 5xx, never a hang, and the next request is right.

schemathesis makes them from the schema that the server publishes, valid ones and such as break it; hypothesis changes a
few fields of sound ones, which gets deeper.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from pellucid.server.openai import ChatRequest, CompletionRequest, EmbeddingRequest
from serving import Live

HEALTH = list(HealthCheck)
NAMES = sorted({*ChatRequest.model_fields, *CompletionRequest.model_fields, *EmbeddingRequest.model_fields, "foo"})
ODD = st.sampled_from([float("nan"), float("inf"), -0.0])
NUMBERS = st.one_of(st.integers(-3, 40), st.integers(-(2**70), 2**70), st.floats(-2, 2), ODD)
KEYS = st.sampled_from(["role", "content", "type", "text", "1", "include_usage"])
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["user", "a>", "text"]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=8,
)
CHANGES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)
GOOD: dict[str, Any] = {"max_tokens": 3, "prompt": "a>", "input": "a", "messages": [{"role": "user", "content": "a"}]}


def change_bodies(live: Live, count: int, number: int) -> Counter[int]:
    """Send `count` bodies with a few fields changed; return how often each status came. Raises AssertionError."""
    seen: Counter[int] = Counter()

    @seed(number)
    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=HEALTH)
    @given(path=st.sampled_from(["chat/completions", "completions", "embeddings"]), change=CHANGES)
    def ask(path: str, change: dict[str, Any]) -> None:
        body = json.dumps(GOOD | change)
        response = live.http.post(f"/v1/{path}", content=body, headers={"content-type": "application/json"})
        seen[response.status_code] += 1
        assert response.status_code in (200, 400, 404), (body, response.text)
        if response.status_code != 200:
            assert response.json()["error"]["message"]
        elif json.loads(body).get("stream") and path != "embeddings":
            assert response.text.endswith("data: [DONE]\n\n")

    ask()
    after = live.post("/v1/completions", {"prompt": "a>", "temperature": 0})
    assert after.json()["choices"][0]["text"] == "apples and pears"
    return seen


def fuzz(live: Live, each: int, number: int) -> Counter[int]:
    """Send `each` requests of both kinds to every operation; return how often each status came.

    Raises AssertionError for a 5xx (but 503 with Retry-After), for an answer of another type than promised, and if the
    request after those of an operation is not answered right.
    """
    schema = schemathesis.openapi.from_url(live.url + "/openapi.json", headers=dict(live.http.headers))
    seen: Counter[int] = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in GenerationMode:
            strategy: Any = operation.as_strategy(generation_mode=mode)

            @seed(number)
            @settings(
                max_examples=each, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=HEALTH
            )
            @given(case=strategy)
            def ask(case: Any) -> None:
                response = case.call(base_url=live.url, headers=dict(live.http.headers), timeout=30)
                seen[response.status_code] += 1
                said = (case.method, case.path, repr(case.body)[:1000], response.status_code, response.text[:500])
                assert response.status_code < 500 or "retry-after" in response.headers, said
                kind = response.headers.get("content-type", [])
                assert kind or not response.content, said
                if response.status_code >= 400:
                    assert kind == ["application/json"] and response.json()["error"]["message"], said

            with suppress(Unsatisfiable):  # where there is nothing to break
                ask()
        after = live.post("/v1/completions", {"prompt": "a>", "temperature": 0})
        assert after.json()["choices"][0]["text"] == "apples and pears", operation.label
    return seen
