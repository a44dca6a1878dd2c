"""Spellings of control tokens: finding them in a text, and breaking them in text that is not the template's own.

Law: a user's text never becomes a control token, also not together with the text beside it. Broken text has a mark
inside each spelling, and inside each beginning or end of one that stands at its border; `mend` takes the marks out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from pellucid.errors import RequestError

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Noncharacters, which no text may exchange; one that the messages do not hold becomes the mark."""


class Controls:
    """The control tokens of one vocabulary, by spelling."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {spelling: token for spelling, token in ids.items() if spelling}
        self._lengths: dict[str, list[int]] = {}
        for first in {spelling[0] for spelling in self._ids}:
            found = {len(spelling) for spelling in self._ids if spelling[0] == first}
            self._lengths[first] = sorted(found, reverse=True)
        self._starts = re.compile("[" + "".join(map(re.escape, self._lengths)) + "]") if self._lengths else None
        self._longest = max(map(len, self._ids), default=0)
        self._sorted = sorted(self._ids)
        self._reversed = sorted(spelling[::-1] for spelling in self._ids)

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of each spelling, leftmost and longest first, without overlap."""
        done = 0
        for match in self._starts.finditer(text) if self._starts is not None else ():
            start = match.start()
            if start < done:
                continue
            for length in self._lengths[match.group()]:
                token = self._ids.get(text[start : start + length])
                if token is not None and start + length <= len(text):
                    done = start + length
                    yield start, done, token
                    break

    def break_text(self, text: str, mark: str) -> str:
        """The text with `mark` inside every spelling, and inside its borders' parts of spellings."""
        cuts = {start + 1 for start, _, _ in self.find(text)}
        begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
        body = text[begin:end]
        tail = self._fragment(body[: -self._longest - 1 : -1], self._reversed_prefix)
        if tail:
            cuts.add(end - tail + 1)
        head = self._fragment(body[: self._longest], self._reversed_suffix)
        if head:
            cuts.add(begin + head - 1)
        if not cuts:
            return text
        places = sorted(cuts)
        return mark.join(text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True))

    def _fragment(self, border: str, whole: Any) -> int:
        """Length of the longest part of a spelling at a border; letters and digits alone do not count."""
        for length in range(min(len(border), self._longest), 0, -1):
            part = border[:length]
            if not part.isalnum() and whole(part):
                return length
        return 0

    def _reversed_prefix(self, part: str) -> bool:
        return _begins_one(self._sorted, part[::-1])

    def _reversed_suffix(self, part: str) -> bool:
        return _begins_one(self._reversed, part[::-1])


def _begins_one(ordered: list[str], part: str) -> bool:
    at = bisect_left(ordered, part)
    return at < len(ordered) and ordered[at].startswith(part)


def strings(value: Any) -> Iterator[str]:
    """Every string inside plain data, keys too."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            pairs = cast(Mapping[Any, Any], item)
            waiting.extend(pairs.keys())
            waiting.extend(pairs.values())
        elif isinstance(item, (list, tuple)):
            waiting.extend(cast(list[Any], item))


def choose_mark(texts: Iterable[str]) -> str:
    """A mark that stands in none of the texts, neither itself nor as JSON's escape."""
    joined = "\n".join(texts)
    lower = joined.lower() if "\\u" in joined else ""
    for mark in _MARKS:
        if mark not in joined and _escape(mark) not in lower:
            return mark
    raise RequestError("the messages hold every one of U+FDD0 to U+FDEF, which no text may exchange", param="messages")


def break_data(value: Any, controls: Controls, mark: str) -> Any:
    """Plain data with every string broken, keys too. Raises RequestError for data nested too deep."""
    try:
        return _broken(value, controls, mark)
    except RecursionError:
        raise RequestError("the messages are nested too deep", param="messages") from None


def _broken(value: Any, controls: Controls, mark: str) -> Any:
    if isinstance(value, str):
        return controls.break_text(value, mark)
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value)
        return {_broken(key, controls, mark): _broken(item, controls, mark) for key, item in pairs.items()}
    if isinstance(value, (list, tuple)):
        return [_broken(item, controls, mark) for item in cast(list[Any], value)]
    return value


def mend(text: str, mark: str) -> str:
    """The text without the marks."""
    return text.replace(mark, "").replace(_escape(mark), "")


def _escape(mark: str) -> str:
    return f"\\u{ord(mark):04x}"
