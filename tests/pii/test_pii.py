"""Personal data: what is found of a corpus, and that no way of cutting a stream lets any through."""

from __future__ import annotations

import random
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.errors import ConfigError
from pellucid.pii.find import Finder
from pellucid.pii.kinds import NAMES
from pellucid.pii.placeholders import HELD, Placeholders, Reveal
from pii.corpus import KNOWN, MAKERS, NOTHING, corpus

FINDER = Finder()


def test_the_corpus_is_found() -> None:
    """A value counts if no character of it is left; which kind it was taken for is another matter."""
    cases, missed = list(corpus(1, 140)), Counter[str]()
    for case in cases:
        at = case.text.index(case.value)
        hidden = [found for found in FINDER.find(case.text) if found.start <= at]
        if not any(found.end >= at + len(case.value) for found in hidden):
            missed[case.kind] += 1
    assert sum(missed.values()) <= len(cases) / 100, missed
    assert max(missed.values(), default=0) <= 140 * 0.03, missed
    assert {*MAKERS, *KNOWN} == set(NAMES)


@pytest.mark.parametrize("text", NOTHING)
def test_nothing_is_found_where_nothing_is(text: str) -> None:
    assert FINDER.find(text) == []


def test_places_are_in_characters() -> None:
    text = "ü🌧️ «bob@x.org» \ud800 8.8.8.8"
    assert [(f.kind, text[f.start : f.end]) for f in FINDER.find(text)] == [("email", "bob@x.org"), ("ip", "8.8.8.8")]


def test_only_the_kinds_that_were_asked_for() -> None:
    text = "bob@x.org 8.8.8.8 +1 415 555 2671"
    assert [f.kind for f in Finder(["phone", "ip"]).find(text)] == ["ip", "phone"]
    assert [f.text for f in Finder(["phone"], "DE").find("030 123456 / (415) 555-2671")] == ["030 123456"]


@pytest.mark.parametrize(
    ("names", "region", "words"),
    [
        (["email", "shoe"], "US", "--pii shoe: there is no such kind; choose all, or some of email, iban"),
        (["phone"], "usa", "--pii-region usa: there is no such region"),
    ],
)
def test_what_cannot_be_asked_for(names: list[str], region: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Finder(names, region)


def test_without_the_libraries_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(ConfigError, match=r"pip install 'pellucid\[pii\]'"):
        Finder()


def test_hidden_and_shown_again() -> None:
    placeholders = Placeholders(FINDER)
    body = {
        "model": "bob@x.org",
        "messages": [
            {"role": "user", "content": "bob@x.org and ann@x.org, [EMAIL_2]"},
            {"role": "user", "content": [{"type": "text", "text": "bob@x.org"}]},
        ],
        "n": 1,
    }
    assert placeholders.hide(body) == {
        "model": "bob@x.org",
        "messages": [
            {"role": "user", "content": "[EMAIL_1] and [EMAIL_3], [EMAIL_2]"},
            {"role": "user", "content": [{"type": "text", "text": "[EMAIL_1]"}]},
        ],
        "n": 1,
    }
    shown = placeholders.show_text("[EMAIL_1], [EMAIL_2], [EMAIL_3], [EMAIL_9], bob@x.org, eve@x.org")
    assert shown == "bob@x.org, [EMAIL_2], ann@x.org, [EMAIL_9], bob@x.org, [EMAIL]"


PIECES = st.one_of(
    st.sampled_from(list(corpus(3, 4))).map(lambda case: case.value),
    st.sampled_from(
        ["[EMAIL_1]", "[EMAIL_1", "the ", "A ", "IT IS ", "12 ", "+1 ", "(415) ", " ", "\n", ", ", "é", "_"]
    ),
    st.text(max_size=6),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=8), st.randoms(use_true_random=False))
def test_a_stream_shows_what_the_whole_would(pieces: list[str], rng: random.Random) -> None:
    text = "".join(pieces)
    if len(text) > HELD:
        text = text[:HELD]
    placeholders = Placeholders(FINDER)
    placeholders.hide_text("bob@x.org")
    reveal, shown, at = Reveal(placeholders), "", 0
    while at < len(text):
        step = rng.randint(1, 7)
        shown += reveal.push(text[at : at + step])
        at += step
    assert shown + reveal.finish() == placeholders.show_text(text)


@pytest.mark.parametrize("noise", ["x" * 1000, "12 34 " * 300, "A" * 300, "+1 " * 300])
def test_what_is_held_is_bounded_and_nothing_slips_through(noise: str) -> None:
    placeholders = Placeholders(FINDER)
    for value in ("bob@example.com", "4111 1111 1111 1111"):
        text, reveal, shown = f"{noise} {value} {noise}", Reveal(placeholders), ""
        for character in text:
            shown += reveal.push(character)
            assert len(reveal._held) <= HELD + len(value)
        shown += reveal.finish()
        assert value not in shown and ("[EMAIL]" in shown or "[CARD]" in shown)


def test_plain_text_waits_for_one_word() -> None:
    reveal = Reveal(Placeholders(FINDER))
    assert [reveal.push(piece) for piece in ("Hel", "lo wor", "ld. It", " is")] == ["", "Hello ", "world. ", "It "]
    assert reveal.finish() == "is"
