"""Arguments of the wrong kind are refused by one line that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pellucid.errors import ConfigError, RequestError
from pellucid.llm import LLM
from pellucid.sampling.params import SamplingParams
from toymodel import toy_llm


@pytest.fixture(scope="module")
def llm() -> Iterator[Any]:
    with toy_llm() as llm:
        yield llm


USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.generate(None),
        lambda m: m.generate(5),
        lambda m: m.generate(b"x"),
        lambda m: m.generate([b"x"]),
        lambda m: m.generate([None]),
        lambda m: m.generate({"a": 1}),
        lambda m: m.generate("a", {"max_tokens": 2}),
        lambda m: m.generate("a", [{"max_tokens": 2}]),
        lambda m: m.generate("a", 5),
        lambda m: m.stream(None),
        lambda m: m.stream("a", {"max_tokens": 2}),
        lambda m: m.chat("hi"),
        lambda m: m.chat(None),
        lambda m: m.chat(["hi"]),
        lambda m: m.chat([{"role": "x", "content": "a"}]),
        lambda m: m.chat([{"role": "user"}]),
        lambda m: m.chat([{"role": "user", "content": 5}]),
        lambda m: m.chat([USER], tools=5),
        lambda m: m.tokenize(None),
        lambda m: m.tokenize(b"a"),
        lambda m: m.tokenize_chat("hi"),
        lambda m: m.detokenize(None),
        lambda m: m.detokenize("a"),
        lambda m: m.score(None),
        lambda m: m.score(b"ab"),
        lambda m: m.embed(None),
        lambda m: m.embed([b"ab"]),
        lambda m: m.embed([""]),
        lambda m: m.embed("a", pooling="max"),
        lambda m: m.embed("a", dimensions=0),
        lambda m: m.embed("a", dimensions=25),
        lambda m: m.embed("a", dimensions=1.5),
        lambda m: SamplingParams(stop=5),  # type: ignore[arg-type]
        lambda m: SamplingParams(stop=b"x"),  # type: ignore[arg-type]
        lambda m: SamplingParams(stop_token_ids=5),  # type: ignore[arg-type]
        lambda m: SamplingParams(logit_bias=[1]),  # type: ignore[arg-type]
        lambda m: SamplingParams(ignore_eos="no"),  # type: ignore[arg-type]
    ],
)
def test_requests(llm: LLM, call: Callable[[Any], object]) -> None:
    with pytest.raises(RequestError) as raised:
        call(llm)
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    "options",
    [
        {"model": 5},
        {"threads": "2"},
        {"threads": 1.5},
        {"threads": True},
        {"ctx": "a"},
        {"kv": 5},
        {"kv": []},
        {"isa": 5},
        {"seed": "x"},
        {"max_seqs": None},
        {"prefix_cache": "no"},
    ],
)
def test_configuration(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        LLM(**options)
    assert next(iter(options)) in raised.value.message
    assert "\n" not in raised.value.message


def test_a_text_that_cannot_fit_is_not_encoded(llm: LLM) -> None:
    for call in (llm.generate, llm.score, lambda text: llm.chat([{"role": "user", "content": text}])):
        with pytest.raises(RequestError, match="your prompt has"):
            call("a" * (4 << 20))


def test_a_developer_is_the_system(llm: LLM) -> None:
    assert llm.tokenize_chat([{"role": "developer", "content": "b"}, USER]) == llm.tokenize_chat(
        [{"role": "system", "content": "b"}, USER]
    )
