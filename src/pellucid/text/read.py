"""What an answer says: its thoughts, its text and its calls, told apart as it comes."""

from __future__ import annotations

from dataclasses import dataclass, field

from pellucid.text.reasoning import Reasoning
from pellucid.text.tools import CallDelta, Calls, Style


@dataclass(frozen=True)
class Reads:
    """What stands in the answers to one request besides text."""

    style: Style | None = None
    """How calls stand there; None: there are none."""
    thoughts: bool = False
    prompt_end: str = ""
    """The last characters of the prompt, in which a template may have begun a thought."""
    one_call: bool = False
    """What comes behind the first call is dropped."""


@dataclass(slots=True)
class Said:
    """What is new in an answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list[CallDelta])


class Reader:
    """Reads one answer as it comes."""

    def __init__(self, reads: Reads) -> None:
        self._thoughts = Reasoning(reads.prompt_end) if reads.thoughts else None
        self._calls = None if reads.style is None else Calls(reads.style)
        self._one_call = reads.one_call

    @property
    def called(self) -> bool:
        """Whether there was a call."""
        return self._calls is not None and self._calls.count > 0

    def push(self, text: str, *, final: bool) -> Said:
        """Take some text; with `final` what is held back comes, too."""
        said = Said()
        if self._thoughts is not None:
            said.reasoning, text = self._thoughts.push(text, final=final)
        if self._calls is None:
            said.content = text
            return said
        read = self._calls.push(text, final=final)
        said.content = read.content
        said.calls = [call for call in read.calls if call.index == 0] if self._one_call else read.calls
        return said
