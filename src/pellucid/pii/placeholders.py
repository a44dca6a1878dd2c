"""Placeholders: names that stand for the personal data of one request while the model works on it.

Law: the model and all that records what it does see placeholders; the client sees its own data. One value has one
placeholder in a request, and none is a text that the client wrote itself. Personal data that an answer holds and the
request did not never leaves: it becomes the name of its kind. What leaves of a stream is what would leave of the whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

from pellucid.pii.find import Finder

TEXTS = frozenset({"messages", "prompt", "input", "instructions", "system", "suffix", "tools"})
"""Members of a request's body that hold what the model reads."""
HELD = 256
"""Characters of a stream that are held back at most, while they may be the beginning of personal data."""

_PLACEHOLDER = re.compile(r"\[[A-Z_]+_[0-9]+\]")
_LEADS_ON = re.compile(r"(?:\A[+().\-/]{0,8}|[0-9A-Z][().\-/]{0,2}|[+(])\Z")
"""How the run before a space ends if a number may go on behind the space."""


class Placeholders:
    """Those of one request."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._of: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()
        self._taken: set[str] = set()

    @property
    def counts(self) -> Counter[str]:
        """How many values of each kind were hidden."""
        return Counter(self._numbers)

    def hide(self, body: Any) -> Any:
        """Return a request's body with placeholders in the texts that the model would read."""
        if not isinstance(body, dict):
            return body
        members = cast("dict[str, Any]", body)
        for text in texts_of(members):
            self._taken.update(_PLACEHOLDER.findall(text))
        return {name: self._hidden(value) if name in TEXTS else value for name, value in members.items()}

    def _hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.hide_text(value)
        if isinstance(value, list):
            return [self._hidden(item) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {name: self._hidden(item) for name, item in cast("dict[str, Any]", value).items()}
        return value

    def hide_text(self, text: str) -> str:
        """Return a text with placeholders."""
        parts: list[str] = []
        last = 0
        for found in self._finder.find(text):
            parts += [text[last : found.start], self._of.get(found.text) or self._new(found.kind, found.text)]
            last = found.end
        return "".join([*parts, text[last:]])

    def _new(self, kind: str, value: str) -> str:
        number = self._numbers[kind] + 1
        while (name := f"[{kind.upper()}_{number}]") in self._taken:
            number += 1
        self._numbers[kind] = number
        self._of[value], self._values[name] = name, value
        return name

    def show_text(self, text: str, before: str = "") -> str:
        """Return a piece of an answer as the client may see it; `before`: the characters that came before it."""
        parts: list[str] = []
        last = len(before)
        whole = before + text
        for found in self._finder.find(whole):
            if found.start < last:
                continue
            shown = found.text if found.text in self._of else f"[{found.kind.upper()}]"
            parts += [whole[last : found.start], shown]
            last = found.end
        return _PLACEHOLDER.sub(lambda name: self._values.get(name[0], name[0]), "".join([*parts, whole[last:]]))

    def spanned(self, text: str, at: int) -> tuple[int, int] | None:
        """The place of the personal data that begins before `at` and ends behind it."""
        return next(((f.start, f.end) for f in self._finder.find(text) if f.start < at < f.end), None)


class Reveal:
    """One answer on its way to the client."""

    def __init__(self, placeholders: Placeholders) -> None:
        self._placeholders = placeholders
        self._held = self._before = ""

    def push(self, text: str) -> str:
        """Take the next piece of the answer; return what may leave."""
        self._held += text
        return self._out(self._settled())

    def finish(self) -> str:
        """Return the rest."""
        return self._out(len(self._held))

    def _out(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        shown = self._placeholders.show_text(text, self._before)
        self._before = (self._before + text)[-1:]
        return shown

    def _settled(self) -> int:
        """How much of what is held is decided, whatever may come: all before the last run without a space, and before
        the runs that lead up to it as the groups of a number do."""
        text = self._held
        at = len(text)
        while at and not text[at - 1].isspace():
            at -= 1
        while at and text[at - 1] == " ":
            begin = at - 1
            while begin and not text[begin - 1].isspace():
                begin -= 1
            if not _LEADS_ON.search(text[begin : at - 1]):
                break
            at = begin
        bound = len(text) - HELD
        if at >= bound:
            return at
        spanned = self._placeholders.spanned(self._before + text, bound + len(self._before))
        if spanned is None:
            return bound
        start, end = (place - len(self._before) for place in spanned)
        return start if start > 0 else end


def texts_of(body: Any) -> Iterator[str]:
    """Yield the texts of a request's body that the model would read."""
    if isinstance(body, dict):
        for name, value in cast("dict[str, Any]", body).items():
            if name in TEXTS:
                yield from _strings(value)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from _strings(item)
