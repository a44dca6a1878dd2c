"""POST /tokenize and /detokenize, GET /tokenizer_info: what the engine would read, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from serving import Live
from toymodel import BOT, EOS, USER, VOCAB


def test_a_text(live: Live) -> None:
    answer = live.post("/tokenize", {"prompt": "né", "return_token_strs": True}).json()
    assert answer["tokens"] == list("né".encode())
    assert answer["count"] == 3 and answer["max_model_len"] == live.llm.engine.context
    assert answer["token_strs"] == ["n", "bytes:\\xc3", "bytes:\\xa9"]


def test_a_conversation_gives_the_ids_that_a_chat_is_asked_with(live: Live) -> None:
    messages = [{"role": "user", "content": "a <bot>?"}]
    ids = live.post("/tokenize", {"messages": messages}).json()["tokens"]
    assert ids == [USER, *b"a <bot>?", BOT]  # a control token that a user spells is text
    chat = live.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}).json()
    assert chat["usage"]["prompt_tokens"] == len(ids)
    assert live.post("/tokenize", {"messages": messages, "return_token_strs": None}).json().keys() == {
        "count",
        "max_model_len",
        "tokens",
    }


def test_a_control_token_is_asked_after_by_its_spelling_alone(live: Live) -> None:
    """As clients do that read bos_token and eos_token of /tokenizer_info and need their ids."""

    def ids(prompt: str, **fields: Any) -> list[int]:
        return live.post("/tokenize", {"prompt": prompt, **fields}).json()["tokens"]

    info = live.http.get("/tokenizer_info").json()
    assert ids(info["eos_token"], add_special_tokens=False) == [EOS]
    assert ids("</s>") == [*b"</s>"]  # what /v1/completions would ask the model with
    assert ids("a</s>", add_special_tokens=False) == [*b"a</s>"]


def test_there_and_back(live: Live) -> None:
    text = "über 🌧️ rain"
    ids = live.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert live.post("/detokenize", {"tokens": ids}).json() == {"prompt": text}
    assert live.post("/detokenize", {"tokens": [USER, 97, EOS]}).json() == {"prompt": "<user>a</s>"}
    assert live.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [VOCAB]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
def test_what_cannot_be_read(live: Live, path: str, body: dict[str, Any], param: str) -> None:
    answer = live.post(path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].replace("[", ".").replace("]", "") == param


def test_another_model(live: Live) -> None:
    answer = live.post("/tokenize", {"model": "other", "prompt": "a"})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"


def test_a_text_too_long_for_any_tokens_is_not_encoded(live: Live) -> None:
    answer = live.post("/tokenize", {"prompt": "x" * (1 << 20)})
    assert answer.status_code == 400 and "maximum context length is" in answer.json()["error"]["message"]


def test_the_tokenizer(live: Live) -> None:
    info = live.http.get("/tokenizer_info").json()
    assert info["eos_token"] == "</s>" and info["bos_token"] == "<s>" and info["pad_token"] is None
    assert info["vocab_size"] == VOCAB and info["chat_template"] == live.llm.template.source
    assert info["added_tokens_decoder"][str(BOT)] == {"content": "<bot>", "special": True}
