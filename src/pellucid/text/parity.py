"""Whether two readings of one vocabulary and template are the same: the parity certificate.

Law: equal means equal on every text and conversation of parity.json, read as text and as control tokens, and on the
spelling of every id; a certificate says what was compared, the first difference of each kind, and what could not be
compared and why. It finds, it never mends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, cast

from pellucid.errors import RequestError
from pellucid.text.chat import ChatTemplate
from pellucid.text.tokenizer import Tokenizer

_MOST_CONTROLS = 64
"""Control tokens whose own spellings are put into texts."""


@dataclass(frozen=True)
class Reading:
    """A tokenizer and its template, with a name to call them by."""

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate


@dataclass(frozen=True)
class Difference:
    """The first place where two readings part."""

    kind: str
    """ids, ids of control tokens, pieces, frame (what comes before and after a text), or template."""
    where: str
    """The category of the text, or the number of the conversation."""
    text: str
    place: int
    """Token of the text (ids), id (pieces), or character of what was rendered (template)."""
    ours: str
    theirs: str


@dataclass(frozen=True)
class Certificate:
    """What was compared, and how it went."""

    ours: str
    theirs: str
    texts: int = 0
    """Each read twice, as text and as control tokens."""
    pieces: int = 0
    conversations: int = 0
    differences: tuple[Difference, ...] = ()
    """The first of each kind."""
    not_compared: tuple[str, ...] = ()
    """What, and why."""

    @property
    def compared(self) -> bool:
        """Whether anything was."""
        return bool(self.texts or self.conversations)

    @property
    def equal(self) -> bool:
        """Whether something was compared, and all that was is equal."""
        return self.compared and not self.differences


def certify(ours: Reading, theirs: Reading) -> Certificate:
    """Compare two readings of what ought to be one model."""
    data = cast("dict[str, Any]", json.loads((files("pellucid.text") / "parity.json").read_text(encoding="ascii")))
    texts = [*_texts(data["texts"]), *_controls(ours.tokenizer), *_controls(theirs.tokenizer)]
    found = [_pieces(ours.tokenizer, theirs.tokenizer), _frame(ours.tokenizer, theirs.tokenizer)]
    for parse_special in (False, True):
        found.append(_ids(ours.tokenizer, theirs.tokenizer, texts, parse_special))
    count, skipped = 0, list[str]()
    lacking = [reading.name for reading in (ours, theirs) if reading.template.source is None]
    if lacking:
        skipped.append(f"chat template: {' and '.join(lacking)} {'has' if len(lacking) == 1 else 'have'} none")
    else:
        count = len(data["conversations"])
        found.append(_renders(ours.template, theirs.template, data["conversations"]))
    return Certificate(
        ours.name,
        theirs.name,
        texts=len(texts),
        pieces=min(ours.tokenizer.vocab_size, theirs.tokenizer.vocab_size),
        conversations=count,
        differences=tuple(difference for difference in found if difference is not None),
        not_compared=tuple(skipped),
    )


def _texts(categories: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """(category, text); a pair of text and number is a repeat."""
    for category, entries in categories.items():
        for entry in entries:
            yield category, entry if isinstance(entry, str) else str(entry[0]) * int(entry[1])


def _controls(tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    for token in list(tokenizer.added.values())[:_MOST_CONTROLS]:
        yield "its own control tokens", f"a{token.text}b {token.text} {token.text[:-1]}"


def _ids(
    ours: Tokenizer, theirs: Tokenizer, texts: Sequence[tuple[str, str]], parse_special: bool
) -> Difference | None:
    alone = [text for _, text in texts]
    rows = [t.encode_batch(alone, add_special=False, parse_special=parse_special) for t in (ours, theirs)]
    for (category, text), a, b in zip(texts, *rows, strict=True):
        if a != b:
            place = _parting(a, b)
            kind = "ids of control tokens" if parse_special else "ids"
            return Difference(kind, category, text, place, _token(ours, a, place), _token(theirs, b, place))
    return None


def _pieces(ours: Tokenizer, theirs: Tokenizer) -> Difference | None:
    """What each id adds to a text. Ids that only one of the two spells are padding of the model's rows."""
    for token in range(min(ours.vocab_size, theirs.vocab_size)):
        a, b = ours.token_text(token), theirs.token_text(token)
        if a != b and a and b and ours.token_bytes(token) != theirs.token_bytes(token):
            return Difference("pieces", "vocabulary", "", token, repr(a), repr(b))
    return None


def _frame(ours: Tokenizer, theirs: Tokenizer) -> Difference | None:
    a, b = ours.encode("a"), theirs.encode("a")
    if a == b or ours.encode("a", add_special=False) != theirs.encode("a", add_special=False):
        return None  # in the second case the ids differ already, and that is told
    place = _parting(a, b)
    return Difference("frame", "plain", "a", place, _token(ours, a, place), _token(theirs, b, place))


def _renders(ours: ChatTemplate, theirs: ChatTemplate, conversations: Sequence[Mapping[str, Any]]) -> Difference | None:
    for number, conversation in enumerate(conversations):
        a, b = (_rendered(template, conversation) for template in (ours, theirs))
        if a != b:
            place = _parting(a, b)
            shown = json.dumps(conversation["messages"], ensure_ascii=False)
            parts = [repr(text[max(0, place - 20) : place + 40]) for text in (a, b)]
            return Difference("template", f"conversation {number}", shown, place, parts[0], parts[1])
    return None


def _rendered(template: ChatTemplate, conversation: Mapping[str, Any]) -> str:
    try:
        return template.render(
            conversation["messages"],
            tools=conversation.get("tools"),
            add_generation_prompt=conversation.get("add_generation_prompt", True),
        ).text
    except RequestError as error:  # templates refuse what their model was not taught; both must
        return f"(refused: {error.message})"


def _parting(a: Sequence[object], b: Sequence[object]) -> int:
    """Where two sequences part first."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _token(tokenizer: Tokenizer, ids: Sequence[int], place: int) -> str:
    return f"{ids[place]} {tokenizer.token_text(ids[place])!r}" if place < len(ids) else "the end"
