"""Requests that cannot be served: the right status and body, the field at fault, and no harm to the next."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from serving import Live

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "a"}]
HUGE = 10**400


def check(response: httpx.Response, status: int, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    """The error of an answer that must be one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json" and response.headers["x-request-id"]
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    error = body["error"]
    assert error["message"] and "\n" not in error["message"] and len(error["message"]) < 600
    if code is not None:
        assert error["code"] == code, error
    assert error["param"] == param, error
    return error


BAD_FIELDS: list[tuple[str, dict[str, Any], str]] = [
    (path, {name: value}, name)
    for path in (CHAT, TEXT)
    for name, values in {
        "temperature": ["0.7", -1, 101, True, [], HUGE, -HUGE],
        "top_p": [0, 1.1, -1, "1", HUGE],
        "top_k": [-2, 1.5, "4", HUGE],
        "min_p": [-0.1, 2],
        "presence_penalty": [-2.1, 2.1, "0"],
        "frequency_penalty": [3],
        "repetition_penalty": [0, -1, HUGE],
        "repeat_penalty": [0, "1.1", HUGE],
        "n_predict": [-1, 1.5, True, HUGE],
        "n": [0, 9, -1, 1.5, "1", True, HUGE],
        "max_tokens": [-1, "16", 1.5, HUGE, True],
        "min_tokens": [-1, HUGE],
        "seed": ["1", 1.5, HUGE, -HUGE],
        "stop": [1, [1], [""], "", ["x"] * 17, "x" * 257, "é" * 129, [["x"]], {}],
        "stop_token_ids": [1, ["1"], [-1], [HUGE], [1] * 65],
        "logit_bias": [[], {"x": 1}, {"1": "1"}, {"1": 101}, {"1": True}, {"-1": 1}, {str(i): 0 for i in range(1025)}],
        "allowed_token_ids": [[], 1, ["1"], [-1], [260], [HUGE]],
        "stream": ["true", 1],
        "stream_options": [True, []],
        "model": [1, "x" * 513],
        "user": [1],
        "metadata": ["x"],
        "priority": ["high", HUGE],
        "ignore_eos": ["yes"],
    }.items()
    for value in values
]
BAD_FIELDS += [
    (CHAT, {"messages": value}, param)
    for value, param in [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ({}, "messages"),
        ([1], "messages[0]"),
        ([None], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user", "content": [1]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content"),
        ([{"role": "king", "content": "a"}], "messages[0].role"),
        (USER * 4097, "messages"),
        ([{"role": "function", "name": "f", "content": "a"}], "messages"),
        ([{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}], "messages"),
        ([*USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}], "messages"),
    ]
]
BAD_FIELDS += [
    (TEXT, {"prompt": value}, "prompt")
    for value in [None, "", [], [""], [[]], [["a"]], [1, "a"], ["a", 1], [1.5], [-1], [260], [[260]], [HUGE], [True]]
] + [(TEXT, {"prompt": value}, "prompt") for value in [["a"] * 33, {}, 1, [[1], "a"], [[[1]]]]]
BAD_FIELDS += [
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"logprobs": 1}, "logprobs"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
    (CHAT, {"max_completion_tokens": -5}, "max_completion_tokens"),
    (CHAT, {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    (CHAT, {"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs"),
    (CHAT, {"chat_template_kwargs": {str(i): 1 for i in range(33)}}, "chat_template_kwargs"),
    (CHAT, {"stop_token_ids": [260]}, "stop_token_ids"),
    (CHAT, {"logit_bias": {"260": 1}}, "logit_bias"),
    (TEXT, {"logprobs": 21}, "logprobs"),
    (TEXT, {"logprobs": True}, "logprobs"),
    (TEXT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"prompt_logprobs": 21}, "prompt_logprobs"),
    (CHAT, {"prompt_logprobs": -1}, "prompt_logprobs"),
    (TEXT, {"echo": 1}, "echo"),
    (CHAT, {"xtc_probability": 1.5}, "xtc_probability"),
    (CHAT, {"dynatemp_range": -1}, "dynatemp_range"),
    (CHAT, {"repeat_last_n": -2}, "repeat_last_n"),
    (TEXT, {"samplers": ["top_k", "nonsense"]}, "samplers"),
    (TEXT, {"samplers": ["top_k", "top-k"]}, "samplers"),
    (CHAT, {"dry_multiplier": -1}, "dry_multiplier"),
    (CHAT, {"bad_words": [""]}, "bad_words"),
    (TEXT, {"bad_words": "x"}, "bad_words"),
    (CHAT, {"dry_base": 0.5}, "dry_base"),
    (TEXT, {"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
    (TEXT, {"dry_sequence_breakers": ["x"] * 17}, "dry_sequence_breakers"),
    (CHAT, {"cache_salt": "x" * 257}, "cache_salt"),
]
NOT_SERVED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    (CHAT, {"modalities": ["audio"]}, "modalities"),
    (CHAT, {"chat_template": "{{ 1 }}"}, "chat_template"),
    (TEXT, {"best_of": 2}, "best_of"),
    (TEXT, {"suffix": "x"}, "suffix"),
    (TEXT, {"use_beam_search": True}, "use_beam_search"),
    (TEXT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    (TEXT, {"truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
    (TEXT, {"max_tokens": 2, "n_predict": 2}, "n_predict"),
    (TEXT, {"typ_p": 0.5, "typical": 0.5}, "typical"),
    (CHAT, {"repetition_penalty": 1.1, "repeat_penalty": 1.1}, "repeat_penalty"),
    (TEXT, {"sampler_order": [6, 0, 1]}, "sampler_order"),
    (TEXT, {"n_probs": 3}, "n_probs"),
]


def body_of(path: str, change: dict[str, Any]) -> dict[str, Any]:
    return ({"messages": USER} if path == CHAT else {"prompt": "a>"}) | {"temperature": 0} | change


def the_next_is_right(live: Live) -> None:
    answer = live.post(TEXT, body_of(TEXT, {})).json()
    assert answer["choices"][0]["text"] == "apples and pears"


def test_bad_fields(live: Live) -> None:
    for path, change, param in BAD_FIELDS:
        root = param if "[" not in param else param.partition("[")[0]
        response = live.post(path, body_of(path, change))
        error = check(response, 400, param=response.json()["error"]["param"])
        got = str(error["param"])
        assert got == param or (got.startswith((root + "[", root + ".")) and "[" not in param), (change, error)
        assert got in error["message"] or root in error["message"], error
        if "stream" not in change:
            check(live.post(path, body_of(path, change) | {"stream": True}), 400, param=error["param"])
    the_next_is_right(live)


@pytest.mark.parametrize(("path", "change", "param"), NOT_SERVED)
def test_what_is_not_served_is_refused(live: Live, path: str, change: dict[str, Any], param: str) -> None:
    check(live.post(path, body_of(path, change)), 400, "unsupported_parameter", param)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty", "n", "seed", "max_tokens"])
def test_numbers_that_are_none(live: Live, number: str, field: str) -> None:
    body = json.dumps(body_of(TEXT, {field: 0})).replace(f'"{field}": 0', f'"{field}": {number}')
    response = live.http.post(TEXT, content=body, headers={"content-type": "application/json"})
    check(response, 400, param=field)


BAD_BODIES: list[tuple[bytes, str]] = [
    (b"", "invalid_json"),
    (b"{", "invalid_json"),
    (b"nonsense", "invalid_json"),
    (b'{"prompt": "a"} x', "invalid_json"),
    (b'{"prompt": "\xff"}', "invalid_json"),
    (b'{"prompt": "\\ud800"}', "invalid_json"),
    (b'\xef\xbb\xbf{"prompt": "a"}', "invalid_json"),
    (b'{"prompt": "a\nb"}', "invalid_json"),
    (b"[" * 100 + b"]" * 100, "invalid_json"),
    (b"[" * 1_000_000, "invalid_json"),
    (b'{"prompt":' + b'{"a":' * 40 + b"1" + b"}" * 41, "invalid_json"),
    (b'{"temperature":' + b"9" * 5000 + b"}", "invalid_json"),
    (b'{"a": "' + b"\\" * 1001, "invalid_json"),
    (b"[]", "invalid_type"),
    (b"1", "invalid_type"),
    (b"null", "invalid_type"),
    (b'"text"', "invalid_type"),
    (b"{}", "missing_required_parameter"),
]


@pytest.mark.parametrize(("body", "code"), BAD_BODIES)
def test_bad_bodies(live: Live, body: bytes, code: str) -> None:
    response = live.http.post(TEXT, content=body, headers={"content-type": "application/json"})
    check(response, 400, code, param="prompt" if body == b"{}" else None)
    the_next_is_right(live)


def test_deep_brackets_inside_strings_are_text(live: Live) -> None:
    text = '[{"\\' * 100 + "a>"
    answer = live.post(TEXT, {"prompt": text, "temperature": 0, "max_tokens": 1})
    assert answer.status_code == 200


def test_content_types(live: Live) -> None:
    body = json.dumps(body_of(TEXT, {})).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"):
        check(live.http.post(TEXT, content=body, headers={"content-type": kind}), 415)
    for kind in ("application/json", "application/json; charset=utf-8", "Application/JSON"):
        assert live.http.post(TEXT, content=body, headers={"content-type": kind}).status_code == 200
    check(
        live.http.post(TEXT, content=body, headers={"content-type": "application/json", "content-encoding": "gzip"}),
        415,
    )


def test_unknown_model(live: Live) -> None:
    for path in (CHAT, TEXT):
        error = check(live.post(path, body_of(path, {"model": "gpt-4"})), 404, "model_not_found", "model")
        assert "gpt-4" in error["message"] and "toy" in error["message"]
    check(live.http.get("/v1/models/gpt-4"), 404, "model_not_found", "model")
    assert "\n" not in check(live.post(TEXT, body_of(TEXT, {"model": "a\nb\x1b[31m"})), 404, param="model")["message"]


def test_unknown_places_and_methods(live: Live) -> None:
    for path in ("/index.html", "/v2", f"{CHAT}/", "//v1/models", "/redoc", "/%00", "/" + "x" * 4000):
        check(live.http.get(path), 404, "not_found")
    assert live.raw(b"GET /v1/../health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").startswith(
        b"HTTP/1.1 404"
    )
    response = live.http.get(CHAT)
    check(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "POST"
    check(live.http.delete("/v1/models"), 405)
    check(live.http.request("OPTIONS", CHAT), 405)  # no CORS


def test_prompts_that_are_too_long(live: Live) -> None:
    says = "This model's maximum context length is 512 tokens"
    long = [{"role": "user", "content": "a" * 600}]
    for stream in (False, True):
        error = check(
            live.post(CHAT, {"messages": long, "stream": stream}), 400, "context_length_exceeded", param="prompt"
        )
        assert says in error["message"] and "602" in error["message"]
    huge = check(live.post(TEXT, {"prompt": "a" * 1_000_000}), 400, "context_length_exceeded", "prompt")
    assert says in huge["message"] and "1000000 bytes" in huge["message"]
    huge = check(live.post(CHAT, {"messages": [{"role": "user", "content": "b" * 1_000_000}]}), 400, param="prompt")
    assert says in huge["message"]
    assert says in check(live.post(TEXT, {"prompt": [97] * 513}), 400, "context_length_exceeded", "prompt")["message"]
    error = check(live.post(TEXT, {"prompt": "a", "max_tokens": 512}), 400, "context_length_exceeded", "max_tokens")
    assert says in error["message"] and "1 in the prompt" in error["message"]
    check(live.post(TEXT, {"prompt": ["a", "a" * 600]}), 400, "context_length_exceeded", "prompt")


def test_a_body_that_is_too_large(live: Live) -> None:
    response = live.post(TEXT, {"prompt": "a" * (8 << 20)})
    check(response, 413, "request_too_large")
    the_next_is_right(live)


def test_request_ids(live: Live) -> None:
    assert live.http.get("/health", headers={"x-request-id": "my-id.1"}).headers["x-request-id"] == "my-id.1"
    for bad in ("a b", "x" * 65, 'a"b', ""):
        got = live.http.get("/health", headers={"x-request-id": bad}).headers["x-request-id"]
        assert got != bad and len(got) == 32
