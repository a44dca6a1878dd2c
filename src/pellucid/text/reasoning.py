"""Reasoning: what a model thinks before it answers, told apart from the answer.

Law: what is given out, put together, is what came in, but for the two marks and the white space around them. Held back
is only what may yet become a mark.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tags:
    """The marks before and behind a thought."""

    open: str
    close: str

    def begun(self, prompt_end: str) -> bool:
        """Whether a prompt, of which these are the last characters, has begun a thought."""
        return prompt_end.rstrip().endswith(self.open.rstrip())


TAGS = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<reasoning>", "</reasoning>"),
    Tags("<thinking>", "</thinking>"),
    Tags("<thought>", "</thought>"),
    Tags("<|channel>thought\n", "<channel|>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
)


def tags_of(template: str) -> Tags | None:
    """Return between which marks a model with this chat template thinks; None: it does not."""
    return next((tags for tags in TAGS if tags.close in template), None)


class Reasoning:
    """Splits one answer as it comes."""

    def __init__(self, tags: Tags, begun: bool) -> None:
        """`tags`: as they come in the text. `begun`: the prompt ends within a thought."""
        self._tags = tags
        self._state = "inside" if begun else "before"
        self._begun = False
        """Whether there was any thought yet."""
        self._held: str = ""

    def push(self, text: str, *, final: bool) -> tuple[str, str]:
        """Take some text. Returns what is reasoning of it, and what is answer."""
        text, self._held = self._held + text, ""
        thought = ""
        if self._state == "before":
            begun = text.lstrip()
            if self._tags.open.startswith(begun) and not final:
                self._held = text
                return "", ""
            self._state = "inside" if begun.startswith(self._tags.open) else "after"
            text = begun.removeprefix(self._tags.open) if self._state == "inside" else text
        if self._state == "inside":
            if not self._begun:
                text = text.lstrip()
                self._begun = bool(text)
            thought, mark, text = text.partition(self._tags.close)
            if mark:
                self._state, thought = "gap", thought.rstrip()
            elif not final:
                keep = unfinished(thought, self._tags.close)
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
