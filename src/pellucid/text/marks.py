"""Marks: control tokens by which a model says how its answer is to be read, such as [TOOL_CALLS].

Law: a control token is not the text that spells it. To whoever reads an answer each is one character that no text
exchanges; text that spells a mark stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Marks:
    """The control tokens among some texts."""

    def __init__(self, texts: Iterable[str], controls: Mapping[str, int]) -> None:
        """Find them. `controls`: a vocabulary's control tokens, spelling → id."""
        joined = "\0".join(texts)
        self._ids = {spelling: token for spelling, token in controls.items() if spelling and spelling in joined}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._coded = dict(zip(longest_first, NONCHARACTERS, strict=False))
        self._spelled = {ord(code): spelling for spelling, code in self._coded.items()}
        self._found = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None
        self.shown = {self._ids[spelling]: code for spelling, code in self._coded.items()}
        """Token id → the character by which a reader sees it."""

    def coded(self, text: str) -> str:
        """Return a text of a template as a reader sees it."""
        return "".join(self._coded.get(part, part) for part in self._split(text))

    def spelled(self, text: str) -> str:
        """Return what a reader saw as text."""
        return text.translate(self._spelled) if self._spelled else text

    def parts(self, text: str) -> list[int | str]:
        """Return a text of a template as the ids of its control tokens and the text between them."""
        return [self._ids.get(part, part) for part in self._split(text)]

    def _split(self, text: str) -> list[str]:
        parts = [text] if self._found is None else self._found.split(text)
        return [part for part in parts if part]
