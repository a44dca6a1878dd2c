"""Reasoning: what a model thinks before it answers, told apart from the answer.

Law: what is given out, put together, is what came in, but for the two marks and the white space around them. Held back
is only what may yet become a mark.
"""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def thinks(template: str | None) -> bool:
    """Whether a chat template is that of a model that thinks between the marks."""
    return template is not None and CLOSE in template


class Reasoning:
    """Splits one answer as it comes."""

    def __init__(self, prompt_end: str) -> None:
        """`prompt_end`: the last characters of the rendered prompt; a template may have opened the mark itself."""
        self._state = "inside" if prompt_end.rstrip().endswith(OPEN) else "before"
        self._begun = False
        """Whether there was any thought yet."""
        self._held: str = ""

    def push(self, text: str, *, final: bool) -> tuple[str, str]:
        """Take some text. Returns what is reasoning of it, and what is answer."""
        text, self._held = self._held + text, ""
        thought = ""
        if self._state == "before":
            begun = text.lstrip()
            if OPEN.startswith(begun) and not final:
                self._held = text
                return "", ""
            self._state = "inside" if begun.startswith(OPEN) else "after"
            text = begun.removeprefix(OPEN) if self._state == "inside" else text
        if self._state == "inside":
            if not self._begun:
                text = text.lstrip()
                self._begun = bool(text)
            thought, mark, text = text.partition(CLOSE)
            if mark:
                self._state, thought = "gap", thought.rstrip()
            elif not final:
                keep = unfinished(thought, CLOSE)
                thought, self._held = thought[: len(thought) - keep], thought[len(thought) - keep :]
        if self._state == "gap":
            text = text.lstrip()
            if text:
                self._state = "after"
        return thought, text


def unfinished(text: str, mark: str) -> int:
    """Length of the end of `text`, white space before it included, that may yet become `mark`."""
    for size in range(min(len(mark) - 1, len(text)), -1, -1):
        if mark.startswith(text[len(text) - size :]):
            head = text[: len(text) - size]
            return size + len(head) - len(head.rstrip())
    return 0
