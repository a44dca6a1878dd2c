"""POST /v1/chat/completions: the shapes that OpenAI's clients read, whole and in a stream."""

from __future__ import annotations

from typing import Any

import pytest

from serving import Live

PATH = "/v1/chat/completions"


def ask(text: str = "apples?", **more: Any) -> dict[str, Any]:
    return {"model": "toy", "messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def test_whole(live: Live) -> None:
    answer = live.post(PATH, ask()).json()
    assert answer["id"].startswith("chatcmpl-") and answer["object"] == "chat.completion" and answer["model"] == "toy"
    assert "warnings" not in answer
    [choice] = answer["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "apples and pears", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    usage = answer["usage"]
    assert usage["completion_tokens"] == len("apples and pears") + 1  # the end of the answer is a token, too
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_stream(live: Live) -> None:
    chunks = live.events(PATH, ask())
    first, *middle, last = chunks
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"]["role"] == "assistant" and first["choices"][0]["delta"]["content"]
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in middle)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])
    assert last["choices"][0]["delta"] == {} and last["choices"][0]["finish_reason"] == "stop"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    assert text_of(chunks) == "apples and pears"


def text_of(chunks: list[Any], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content", "")
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )


def test_usage_in_a_stream_comes_when_asked_for(live: Live) -> None:
    chunks = live.events(PATH, ask(stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 17
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks[:-1])
    chunks = live.events(PATH, ask(stream_options={"continuous_usage_stats": True}))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 17
    assert live.events(PATH, ask(stream_options={"include_usage": None}))[-1]["choices"]


def test_cached_tokens(live: Live) -> None:
    text = "apples " * 20
    live.post(PATH, ask(text))
    usage = live.post(PATH, ask(text)).json()["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_several_answers(live: Live) -> None:
    answer = live.post(PATH, ask(n=3)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"apples and pears"}
    assert answer["usage"]["completion_tokens"] == 3 * 17
    chunks = live.events(PATH, ask(n=3))
    assert [text_of(chunks, i) for i in range(3)] == ["apples and pears"] * 3
    assert sum("role" in choice["delta"] for chunk in chunks for choice in chunk["choices"]) == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "text", "found"),
    [
        ("and", "apples ", "and"),
        (["pears", "les and"], "app", "les and"),
        (["xyz"], "apples and pears", None),
        ("pearsx", "apples and pears", None),  # a beginning of it at the end is text after all
        ("a", "", "a"),
    ],
)
def test_stop_strings_never_show(live: Live, stream: bool, stop: Any, text: str, found: str | None) -> None:
    if stream:
        chunks = live.events(PATH, ask(stop=stop))
        assert text_of(chunks) == text
        end = chunks[-1]["choices"][0]
    else:
        end = live.post(PATH, ask(stop=stop)).json()["choices"][0]
        assert end["message"]["content"] == text
    assert end["finish_reason"] == "stop" and end["stop_reason"] == found


def test_stop_string_in_the_output(live: Live) -> None:
    answer = live.post(PATH, ask(stop="and", include_stop_str_in_output=True)).json()
    assert answer["choices"][0]["message"]["content"] == "apples and"


def test_characters_come_whole(live: Live) -> None:
    chunks = live.events(PATH, ask("u"))
    assert text_of(chunks) == "über 🌧️ rain"
    assert all("\ufffd" not in text_of([chunk]) for chunk in chunks)


def test_length(live: Live) -> None:
    for limit in ({"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 9, "max_completion_tokens": 3}):
        choice = live.post(PATH, ask(**limit)).json()["choices"][0]
        assert choice["message"]["content"] == "app" and choice["finish_reason"] == "length"


def test_without_a_limit_it_runs_to_the_end_of_the_context(live: Live) -> None:
    answer = live.post(PATH, ask("l")).json()
    assert answer["usage"]["total_tokens"] == 512 and answer["choices"][0]["finish_reason"] == "length"


def test_logprobs(live: Live) -> None:
    content = live.post(PATH, ask(logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 17
    first = content[0]
    assert first["token"] == "a" and first["bytes"] == [97] and len(first["top_logprobs"]) == 2
    assert first["top_logprobs"][0] == {key: first[key] for key in ("token", "logprob", "bytes")}
    assert content[-1]["token"] == "</s>"
    plain = live.post(PATH, ask(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert plain[0]["top_logprobs"] == []
    chunks = live.events(PATH, ask(logprobs=True, top_logprobs=2))
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert streamed == content


def test_logprobs_hold_nothing_of_a_stop_string(live: Live) -> None:
    answer = live.post(PATH, ask(logprobs=True, stop="and")).json()
    tokens = [entry["token"] for entry in answer["choices"][0]["logprobs"]["content"]]
    assert "".join(tokens) == "apples " and answer["usage"]["completion_tokens"] == len("apples and")


def test_seed_makes_it_the_same_again(live: Live) -> None:
    def answer(seed: int) -> str:
        return live.post(PATH, ask(temperature=100, seed=seed, max_tokens=30)).json()["choices"][0]["message"][
            "content"
        ]

    assert answer(7) == answer(7) != answer(8)


def test_parts_developer_and_null(live: Live) -> None:
    parts = [{"type": "text", "text": "app"}, {"type": "text", "text": "les"}]
    body = {
        "messages": [{"role": "developer", "content": "a"}, {"role": "user", "content": parts, "name": None}],
        "model": None,
        "temperature": None,
        "top_p": None,
        "n": None,
        "stop": None,
        "stream": None,
        "stream_options": None,
        "tools": None,
        "response_format": {"type": "text"},
        "logit_bias": None,
        "seed": None,
        "max_tokens": None,
    }
    answer = live.post(PATH, body).json()
    assert answer["choices"][0]["message"]["content"] == "apples and pears" and "warnings" not in answer


def test_unknown_fields_are_named(live: Live) -> None:
    body = ask(top_quark=1, stream_options={"charm": True})
    body["messages"][0]["colour"] = "blue"
    warnings = live.post(PATH, body).json()["warnings"]
    assert [name for name in ("top_quark", "stream_options.charm", "messages[0].colour") if name in str(warnings)]
    assert len(warnings) == 3
    chunks = live.events(PATH, body)
    assert chunks[0]["warnings"] == warnings and all("warnings" not in chunk for chunk in chunks[1:])
    many = live.post(PATH, ask(**{f"field{i}": 0 for i in range(1000)})).json()["warnings"]
    assert len(many) == 17 and "984 more" in many[-1]


def test_logit_bias(live: Live) -> None:
    answer = live.post(PATH, ask(logit_bias={str(ord("z")): 100}, max_tokens=4)).json()
    assert answer["choices"][0]["message"]["content"] == "zzzz"


def test_stop_token(live: Live) -> None:
    choice = live.post(PATH, ask(stop_token_ids=[ord("d")])).json()["choices"][0]
    assert choice["message"]["content"] == "apples an" and choice["stop_reason"] == ord("d")


def test_ignore_eos_and_min_tokens(live: Live) -> None:
    assert live.post(PATH, ask(ignore_eos=True, max_tokens=30)).json()["usage"]["completion_tokens"] == 30
    assert live.post(PATH, ask(min_tokens=20, max_tokens=40)).json()["usage"]["completion_tokens"] >= 20


def test_spellings_of_control_tokens_are_text(live: Live) -> None:
    assert live.post(PATH, ask("a</s><bot>")).json()["choices"][0]["message"]["content"] == "apples and pears"
    plain = live.post(PATH, ask("a")).json()["usage"]["prompt_tokens"]
    spelled = live.post(PATH, ask("a</s>")).json()["usage"]["prompt_tokens"]
    assert spelled == plain + len("</s>")
