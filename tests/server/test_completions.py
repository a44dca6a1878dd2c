"""POST /v1/completions: prompts of every kind, echo, logprobs as lm-eval reads them."""

from __future__ import annotations

from typing import Any

import pytest

from serving import Live, running
from toymodel import BOT, EOS, toy_llm

PATH = "/v1/completions"


def ask(prompt: Any = "a>", **more: Any) -> dict[str, Any]:
    return {"model": "toy", "prompt": prompt, "temperature": 0, **more}


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("a>", ["apples and pears"]),
        (["a>", "b>"], ["apples and pears", "one. two. three."]),
        ([97, BOT], ["apples and pears"]),
        ([[97, BOT], [98, BOT]], ["apples and pears", "one. two. three."]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_prompts(live: Live, prompt: Any, texts: list[str], stream: bool) -> None:
    body = ask(prompt, n=2, max_tokens=20)
    if stream:
        chunks = live.events(PATH, body)
        assert all(chunk["object"] == "text_completion" for chunk in chunks)
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        got = ["".join(c["text"] for c in choices if c["index"] == i) for i in range(2 * len(texts))]
        assert [c["index"] for c in choices if c["finish_reason"] == "stop"].sort() is None
    else:
        answer = live.post(PATH, body).json()
        assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion"
        assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(texts)))
        got = [choice["text"] for choice in answer["choices"]]
        assert answer["usage"]["prompt_tokens"] == 2 * len(texts)
        assert answer["usage"]["completion_tokens"] == 2 * 17 * len(texts)
    assert got == [text for text in texts for _ in range(2)]


def test_sixteen_tokens_unless_asked(live: Live) -> None:
    for more in ({}, {"max_tokens": None}):
        answer = live.post(PATH, ask("l>", **more)).json()
        assert answer["usage"]["completion_tokens"] == 16 and answer["choices"][0]["finish_reason"] == "length"


def test_names_of_llama_cpp(live: Live) -> None:
    """They mean what our names mean, and values that change nothing are let through without a warning."""
    hot = ask("l>", temperature=4, seed=1)
    ours = live.post(PATH, hot | {"max_tokens": 12, "repetition_penalty": 2}).json()
    theirs = live.post(PATH, hot | {"n_predict": 12, "repeat_penalty": 2, "repeat_last_n": -1, "n_probs": 0}).json()
    assert theirs["choices"] == ours["choices"] and theirs["usage"]["completion_tokens"] == 12
    assert not theirs.get("warnings")
    assert live.post(PATH, hot | {"n_predict": 12}).json()["choices"] != theirs["choices"]


@pytest.mark.parametrize("prompt", ["a>", [97, ord(">")]])
def test_echo(live: Live, prompt: Any) -> None:
    assert live.post(PATH, ask(prompt, echo=True)).json()["choices"][0]["text"] == "a>apples and pears"
    chunks = live.events(PATH, ask(prompt, echo=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "a>apples and pears"


def test_logprobs(live: Live) -> None:
    logprobs = live.post(PATH, ask(logprobs=2)).json()["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == "apples and pears"
    assert logprobs["text_offset"] == list(range(16))
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert top[token] == value and len(top) in (2, 3)
    streamed = [chunk["choices"][0]["logprobs"] for chunk in live.events(PATH, ask(logprobs=2))]
    assert {key: [item for part in streamed if part for item in part[key]] for key in logprobs} == logprobs


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("prompt", ["a>app", [[97, 62, 97, 112, 112]]])
def test_scores_of_a_prompt_as_lm_eval_reads_them(live: Live, prompt: Any, max_tokens: int) -> None:
    body = ask(prompt, max_tokens=max_tokens, logprobs=1, echo=True, seed=1234)
    for _ in range(2):  # the second time the prompt is in the prefix cache
        choice = live.post(PATH, body).json()["choices"][0]
        logprobs = choice["logprobs"]
        assert choice["text"] == "a>apples"[: 5 + max_tokens]
        assert logprobs["tokens"] == list("a>apples"[: 5 + max_tokens])
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        assert logprobs["text_offset"] == list(range(5 + max_tokens))
        greedy = [
            value == max(top.values())
            for value, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True)
        ]
        assert greedy == [False, *[True] * (3 + max_tokens)]
    [chunk, end] = live.events(PATH, {**body, "max_tokens": 0, "n": 1})
    assert chunk["choices"][0]["text"] == "a>app" and len(chunk["choices"][0]["logprobs"]["tokens"]) == 5
    assert end["choices"][0]["finish_reason"] == "length"


def test_the_usual_stages_of_llama_cpp(live: Live) -> None:
    usual = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
    hot = ask("l>", temperature=4, seed=1, top_k=5, max_tokens=12)
    answer = live.post(PATH, hot | {"samplers": usual}).json()
    assert len(answer["choices"][0]["text"]) == 12 and not answer.get("warnings")
    idle = live.post(PATH, hot | {"samplers": [*usual[:4], "infill", *usual[4:]]}).json()
    assert idle["choices"] == answer["choices"] and idle["warnings"] == ["samplers: the stage infill does nothing here"]
    late = live.post(PATH, hot | {"samplers": [*usual[2:], "penalties", "dry"], "repetition_penalty": 9}).json()
    assert len(late["choices"][0]["text"]) == 12 and late["choices"] != answer["choices"]


def test_bad_words_are_kept_out(live: Live) -> None:
    for words in (["and"], [" and", "apples"], ["pears", "an"]):
        text = live.post(PATH, ask("a>", max_tokens=30, bad_words=words)).json()["choices"][0]["text"]
        assert text and not any(word.strip() in text for word in words)
    nothing = live.post(PATH, ask("a>", bad_words=["b", "c"], allowed_token_ids=[99, 98]))
    assert nothing.status_code == 400 and nothing.json()["error"]["param"] == "allowed_token_ids"


def test_logprobs_say_what_they_describe(live: Live) -> None:
    body = ask("a>", temperature=2, top_k=1, max_tokens=3, logprobs=3)
    answer = live.post(PATH, body).json()
    raw = answer["choices"][0]["logprobs"]
    assert answer["logprobs_mode"] == "raw_logprobs" and len(raw["top_logprobs"][0]) == 3
    assert raw["token_logprobs"][0] < 0
    answer = live.post(PATH, body | {"logprobs_mode": "processed_logprobs"}).json()
    after = answer["choices"][0]["logprobs"]
    assert answer["logprobs_mode"] == "processed_logprobs"
    assert after["token_logprobs"] == [0.0] * 3 and [len(top) for top in after["top_logprobs"]] == [1] * 3
    chat = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 2, "max_tokens": 2}
    chunks = live.events("/v1/chat/completions", chat)
    assert all(chunk["logprobs_mode"] == "raw_logprobs" for chunk in chunks)
    assert "logprobs_mode" not in live.post(PATH, ask("a>")).json()
    wrong = live.post(PATH, body | {"logprobs_mode": "raw_logits"})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "logprobs_mode"


def test_the_server_says_what_logprobs_describe_unless_a_request_does() -> None:
    body = ask("a>", temperature=2, top_k=1, max_tokens=1, logprobs=2)
    with toy_llm(logprobs_mode="processed_logprobs") as llm, running(llm) as live:
        after = live.post(PATH, body).json()
        raw = live.post(PATH, body | {"logprobs_mode": "raw_logprobs"}).json()
    assert after["logprobs_mode"] == "processed_logprobs" and raw["logprobs_mode"] == "raw_logprobs"
    assert after["choices"][0]["logprobs"]["token_logprobs"] == [0.0] > raw["choices"][0]["logprobs"]["token_logprobs"]


def test_dry_does_not_repeat_itself(live: Live) -> None:
    dry = ask("l>", max_tokens=30, dry_multiplier=100, dry_allowed_length=3)
    text = live.post(PATH, dry).json()["choices"][0]["text"]
    assert text.startswith("xxxx") and not text.startswith("xxxxx") and len(text) == 30
    assert all(text.find(text[at : at + 5], at + 1) < 0 for at in range(25))
    for free in ({"dry_sequence_breakers": ["x"]}, {"dry_penalty_last_n": 3}, {"dry_multiplier": 0}):
        assert live.post(PATH, dry | free).json()["choices"][0]["text"] == "x" * 30


def test_tokens_that_are_no_whole_characters_are_spelled_in_bytes(live: Live) -> None:
    choice = live.post(PATH, ask("u>", logprobs=1, max_tokens=2)).json()["choices"][0]
    assert choice["text"] == "ü" and choice["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xbc"]
    assert choice["logprobs"]["text_offset"] == [0, 1]


def test_usage_counts_each_prompt_once(live: Live) -> None:
    chunks = live.events(PATH, ask(["a>", "b>b"], n=3, max_tokens=1, stream_options={"include_usage": True}))
    assert chunks[-1]["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 5,
        "completion_tokens": 6,
        "total_tokens": 11,
        "prompt_tokens_details": None,
    }


def test_only_the_allowed_tokens(live: Live) -> None:
    answer = live.post(PATH, ask("a>", allowed_token_ids=[99, 100, 98], temperature=50, max_tokens=14, seed=2)).json()
    assert set(answer["choices"][0]["text"]) == {"b", "c", "d"} and not answer.get("warnings")
    held = live.post(PATH, ask("a>", allowed_token_ids=[98], response_format={"type": "json_object"}))
    assert held.status_code == 400 and held.json()["error"]["param"] == "allowed_token_ids"
    ends = live.post(PATH, ask("a>", allowed_token_ids=[EOS], min_tokens=1))
    assert ends.status_code == 400 and ends.json()["error"]["param"] == "allowed_token_ids"
