"""Incremental text equals decoding at once; stop strings never leak."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pellucid.text.detokenize import Detokenizer
from pellucid.text.tokenizer import Tokenizer

NAMES = ["smollm2", "qwen-0.5b", "gemma3-270m"]
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def pieces(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(data=st.data())
def test_pushes_put_together_are_the_decoded_text(
    name: str, data: st.DataObject, tokenizer_of: Callable[[str], Tokenizer]
) -> None:
    tokenizer = tokenizer_of(name)
    token = st.integers(0, tokenizer.vocab_size - 1) | st.integers(0, min(600, tokenizer.vocab_size - 1))
    ids = data.draw(st.lists(token, max_size=40))
    skip = data.draw(st.booleans())
    detokenizer = Detokenizer(tokenizer, skip_special=skip)
    out = pieces(detokenizer, ids)
    assert "".join(out) == detokenizer.text == tokenizer.decode(ids, skip_special=skip)
    assert detokenizer.stopped is None


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(data=st.data())
def test_a_stop_string_cuts_the_text_where_it_first_stands(
    name: str, data: st.DataObject, tokenizer_of: Callable[[str], Tokenizer]
) -> None:
    tokenizer = tokenizer_of(name)
    text = data.draw(st.text("ab \n<|é😀", max_size=60))
    stop = data.draw(st.lists(st.text("ab \n<|é😀", min_size=1, max_size=5), min_size=1, max_size=4))
    include = data.draw(st.booleans())
    ids = tokenizer.encode(text, add_special=False)
    whole = tokenizer.decode(ids)
    detokenizer = Detokenizer(tokenizer, stop=stop, include_stop=include)
    shown = ""
    for token in ids:
        shown += detokenizer.push(token)
        if detokenizer.stopped is None:
            assert whole.startswith(shown)
            assert not any(s in shown for s in stop)
    shown += detokenizer.finish()
    places = [(whole.find(s), s) for s in stop if s in whole]
    if not places:
        assert (shown, detokenizer.stopped) == (whole, None)
    else:
        assert detokenizer.stopped in stop
        # of two stop strings the one that is complete first wins, though the other may have begun before it
        at = whole.find(detokenizer.stopped)
        assert shown == whole[: at + len(detokenizer.stopped) if include else at]


@pytest.mark.parametrize("name", NAMES)
def test_a_character_cut_in_tokens_is_held_back(name: str, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of(name)
    text = "a🜚b𪚥🏴‍☠️"
    out = pieces(Detokenizer(tokenizer), tokenizer.encode(text, add_special=False))
    assert "".join(out) == text
    assert not any("\ufffd" in part for part in out)


def test_a_prompts_half_character_is_finished(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("smollm2")
    ids = tokenizer.encode("x🜚y", add_special=False)
    cut = 2
    assert tokenizer.decode(ids[:cut]).endswith("\ufffd")
    out = pieces(Detokenizer(tokenizer, prompt_ids=ids[:cut]), ids[cut:])
    assert "".join(out) == "🜚y"


def test_a_character_that_never_ends_is_one_mark(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("smollm2")
    ids = tokenizer.encode("🜚", add_special=False)[:-1]
    assert pieces(Detokenizer(tokenizer), ids)[-1] == "\ufffd"


def test_after_a_stop_nothing_comes(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("smollm2")
    detokenizer = Detokenizer(tokenizer, stop=["\n\nQ:"])
    out = "".join(pieces(detokenizer, tokenizer.encode("answer\n\nQ: more\n\nQ: x", add_special=False)))
    assert (out, detokenizer.text, detokenizer.stopped) == ("answer", "answer", "\n\nQ:")


def test_padding_rows_of_the_model_add_nothing(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("smollm2")
    assert Detokenizer(tokenizer).push(tokenizer.vocab_size + 5) == ""


def test_a_long_answer_costs_the_same_a_token(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("smollm2")
    token = tokenizer.encode(" ", add_special=False)[0]

    def cost(count: int) -> float:
        detokenizer = Detokenizer(tokenizer, stop=[" " * 250 + "x"])
        start = time.process_time()
        for _ in range(count):
            detokenizer.push(token)
        return time.process_time() - start

    cost(100)
    assert cost(8000) < 16 * max(cost(1000), 0.005)
