"""Shapes alone: what has no place in the vocabulary, spellings that collide, numbers that JSON cannot write."""

from __future__ import annotations

import math

from pellucid.engine.events import TokenEvent
from pellucid.engine.sequence import Sequence
from pellucid.sampling.params import SamplingParams
from pellucid.server.choices import Piece, characters
from pellucid.server.shapes import ChatShape, CompletionShape, spelling
from pellucid.text.tokenizer import Tokenizer
from toymodel import EOS, VOCAB, source

TOKENIZER = Tokenizer.from_source(source())
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}
PADDING = VOCAB + 7


def event(token: int, logprob: float, *top: tuple[int, float]) -> TokenEvent:
    return TokenEvent(Sequence([1], SamplingParams()), token, logprob, list(top))


def test_rows_beyond_the_vocabulary() -> None:
    piece = Piece(0, "a", [event(97, -1.0, (PADDING, -0.5), (97, -1.0))], "stop")
    chat = ChatShape("id", 0, "m", [], tokenizer=TOKENIZER, top=1).whole([piece], USAGE)
    top = chat["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert top == [{"token": f"token_id:{PADDING}", "logprob": -0.5, "bytes": []}]
    text = CompletionShape("id", 0, "m", [], tokenizer=TOKENIZER, top=1).whole([piece], USAGE)
    assert text["choices"][0]["logprobs"]["top_logprobs"] == [{"a": -1.0, f"token_id:{PADDING}": -0.5}]


def test_minus_infinity_is_a_number() -> None:
    piece = Piece(0, "a", [event(97, -math.inf, (97, -math.inf))], "stop")
    chat = ChatShape("id", 0, "m", [], tokenizer=TOKENIZER, top=0).whole([piece], USAGE)
    assert chat["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


def test_a_token_stays_in_its_top_list_whatever_is_spelled_alike() -> None:
    spelled_alike = type("Alike", (), {
        "vocab_size": 3, "is_special": lambda self, t: False, "token_bytes": lambda self, t: b"A",
    })()  # fmt: skip
    shape = CompletionShape("id", 0, "m", [], tokenizer=spelled_alike, top=2)
    piece = Piece(0, "A", [event(1, -2.0, (0, -0.1), (1, -2.0), (2, -3.0))], "stop")
    logprobs = shape.whole([piece], USAGE)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"A": -2.0, "token_id:0": -0.1, "token_id:2": -3.0}]


def test_spellings() -> None:
    assert spelling(TOKENIZER, 97) == "a" and spelling(TOKENIZER, EOS) == "</s>"
    assert spelling(TOKENIZER, 0xE2) == "bytes:\\xe2"
    assert characters("né🌧️".encode()) == 4


def test_warnings_are_told_once() -> None:
    shape = ChatShape("id", 0, "m", ["careful"], tokenizer=TOKENIZER, top=None)
    first, second = shape.chunks([Piece(0, "a"), Piece(0, "b")], lambda: USAGE)
    assert first["warnings"] == ["careful"] and "warnings" not in second


def test_an_empty_answer_begins_and_ends() -> None:
    chunks = ChatShape("id", 0, "m", [], tokenizer=TOKENIZER, top=None).chunks(
        [Piece(0, "", [], "stop")], lambda: USAGE
    )
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [{"role": "assistant", "content": ""}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]
