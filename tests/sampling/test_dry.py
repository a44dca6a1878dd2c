"""DRY finds repeats, stops at sequence breakers, and takes what it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.sampling.dry import dry, repeats, unbroken
from pellucid.sampling.params import SamplingParams
from pellucid.sampling.words import Breaker, Words


def by_trying(window, limit):
    """The definition of a repeat, word for word."""
    found = {}
    for at in range(1, len(window)):
        length = 0
        while length < min(at, limit) and window[at - 1 - length] == window[-1 - length]:
            length += 1
        found[window[at]] = max(found.get(window[at], 0), length)
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=30), st.integers(0, 30))
def test_repeats_are_those_that_trying_finds(window, limit):
    assert repeats(window, limit) == by_trying(window, limit)


def after(tokens, **params):
    asked = SamplingParams(dry_multiplier=1, dry_base=2, breakers=params.pop("breakers", ()), **params)
    return dry(np.zeros(6, np.float32), asked, tokens).tolist()


def test_the_longer_the_repeat_the_more_it_costs():
    assert after([1, 2, 3, 4, 1]) == [0] * 6
    assert after([1, 2, 3, 4, 1, 2]) == [0, 0, 0, -1, 0, 0]
    assert after([1, 2, 3, 4, 1, 2, 3]) == [0, 0, 0, 0, -2, 0]
    assert after([1, 2, 3, 4, 1, 2, 3], dry_allowed_length=4) == [0] * 6
    assert after([1, 2, 3, 4, 1, 2, 3], dry_penalty_last_n=6) == [0, 0, 0, 0, -1, 0]
    assert after([1, 2, 3, 4, 1, 2, 3], dry_penalty_last_n=0) == [0] * 6
    assert after([5] * 500)[5] < -1e18  # grows, and stays finite


def test_a_breaker_ends_repeats_and_is_free():
    lone, pair = Breaker(frozenset({2})), Breaker(frozenset({0, 1}), (2,))
    assert after([1, 2, 3, 4, 1, 2, 3], breakers=[lone]) == [0] * 6
    assert after([1, 2, 3, 4, 1, 2, 3], breakers=[lone], dry_allowed_length=1) == [0, 0, 0, 0, -1, 0]
    assert after([3, 4, 2, 3, 4], breakers=[lone]) == [0] * 6  # 2 would go on
    assert after([3, 4, 5, 3, 4], breakers=[lone]) == [0, 0, 0, 0, 0, -1]
    assert unbroken([1, 2, 3, 4], [pair]) == 2
    assert unbroken([4, 2, 3, 4], [pair]) == 4
    assert unbroken([2], [pair]) == 1


@pytest.mark.parametrize("text", ["a:b\n", "x\n\ny", "User: hi", "no"])
def test_breakers_are_found_however_the_text_is_cut(text):
    pieces = [bytes([byte]) for byte in range(128)] + [b"User:", b" User", b"Us", b"er", b"\n\n", b"a:b", b"ser: h"]
    encode = {piece.decode(): [id] for id, piece in enumerate(pieces)}
    words = Words(lambda: pieces, lambda rest: encode.get(rest) or [ord(char) for char in rest])
    breakers = words.breakers(("\n", "User:", ":"))
    assert breakers is words.breakers(("\n", "User:", ":"))
    tokens = encode.get(text) or [ord(char) for char in text]
    last = max(text.rfind("\n"), text.rfind(":"))
    assert unbroken(tokens, breakers) == len(text) - 1 - last
    assert not any(Breaker.ends(breaker, [133, 104], 2) for breaker in breakers if breaker.tail)
    lone = next(breaker.heads for breaker in breakers if not breaker.tail)
    assert {10, 58, 128, 132, 133, 134} == set(lone)
    split = [breaker for breaker in words.breakers(("User:",)) if breaker.tail]
    assert any(breaker.ends([129, 58], 2) for breaker in split)  # " User", ":"
