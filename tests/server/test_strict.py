"""Fields that nobody knows: named in the answer, or refused where a request or the server is strict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from serving import Live, running
from toymodel import toy_llm

CHAT = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "charm": 1}}
REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": (
        {"messages": [CHAT[0] | {"beauty": 1}], "tools": [TOOL], "response_format": {"type": "text", "up": 1}},
        "messages[0].beauty tools[0].function.charm response_format.up",
    ),
    "/v1/completions": (
        {"prompt": "a>", "structured_outputs": {"choice": ["x"], "down": 1}, "stream_options": {"up": 1}},
        "structured_outputs.down stream_options.up",
    ),
    "/v1/embeddings": ({"input": "a"}, ""),
    "/v1/responses": (
        {"input": [CHAT[0] | {"beauty": 1}], "text": {"format": {"type": "text", "up": 1}, "down": 1}},
        "input[0].beauty text.format.up text.down",
    ),
    "/v1/messages": (
        {
            "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "beauty": 1}]}],
            "tools": [{"name": "f", "input_schema": {"type": "object", "anything": 1}, "charm": 1}],
            "max_tokens": 3,
        },
        "messages[0].content[0].beauty tools[0].charm",
    ),
    "/tokenize": ({"messages": [CHAT[0] | {"beauty": 1}]}, "messages[0].beauty"),
    "/detokenize": ({"tokens": [97]}, ""),
}
"""Path → a good body but for fields that nobody knows, and their names; `top_quark` is added to each."""


@pytest.fixture(scope="module")
def strict() -> Iterator[Live]:
    with toy_llm() as llm, running(llm, strict_requests=True, inspect=True) as server:
        yield server


def fault(server: Live, path: str, body: dict[str, Any]) -> str:
    answer = server.post(path, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    if path != "/v1/messages":
        assert error["code"] == "unknown_parameter" and error["param"] == "top_quark"
    return error["message"]


@pytest.mark.parametrize("path", REQUESTS)
def test_unknown_fields(live: Live, strict: Live, path: str) -> None:
    body, inside = REQUESTS[path]
    body = body | {"top_quark": 1}
    names = ["top_quark", *inside.split()]
    answer = live.post(path, body)
    assert answer.status_code == 200, answer.text
    assert sorted(answer.json()["warnings"]) == sorted(f"unknown field {name!r} was ignored" for name in names)
    told = [fault(live, path, body | {"strict": True})]
    told += [fault(strict, path, body | more) for more in ({}, {"strict": False}, {"strict": None})]
    assert len(set(told)) == 1
    assert all(repr(name) in told[0] for name in names) and told[0].count("'") == 2 * len(names)


def test_what_is_known_or_changes_nothing_is_served(strict: Live) -> None:
    body = {"messages": CHAT, "best_of": 1, "n_predict": 3, "typ_p": 1.0, "function_call": "none", "seed": None}
    body |= {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x-y": 1}}}]}
    answer = strict.post("/v1/chat/completions", body)
    assert answer.status_code == 200 and "warnings" not in answer.json()
    assert strict.post("/v1/completions", {"prompt": "a>", "max_tokens": 1, "strict": True}).status_code == 200
    assert strict.post("/v1/responses", {"input": "a", "store": True}).json()["warnings"] == [
        "store: nothing is stored on this server"
    ]


def test_many_and_long_names(live: Live) -> None:
    body = {"prompt": "a>", "strict": True} | {f"field{i}": 0 for i in range(100)}
    error = live.post("/v1/completions", body).json()["error"]
    assert "84 more" in error["message"] and error["message"].count("field") == 17
    error = live.post("/v1/completions", {"prompt": "a>", "strict": True, "x" * 5000: 0}).json()["error"]
    assert len(error["message"]) < 200 and error["param"] == "x" * 64


def test_what_only_pellucid_serves_is_always_strict(strict: Live) -> None:
    with toy_llm() as llm, running(llm, inspect=True) as plain:
        for server in (plain, strict):
            assert "'top_quark'" in fault(server, "/inspect/replay", {"prompt": "a>", "top_quark": 1})
        answer = plain.post("/inspect/replay", {"prompt": "a>", "top_quark": 1, "strict": False})
        assert "top_quark" not in answer.text


def test_a_field_that_would_change_the_ids_is_refused(live: Live) -> None:
    answer = live.post("/tokenize", {"messages": CHAT, "continue_final_message": True})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "unsupported_parameter"
