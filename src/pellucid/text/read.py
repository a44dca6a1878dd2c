"""What an answer says: its thoughts, its text and its calls, told apart as it comes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pellucid.text.calls import CallDelta, Calls
from pellucid.text.marks import Marks
from pellucid.text.reasoning import Reasoning, Tags
from pellucid.text.tools import Style

MOST_EVENTS = 256


@dataclass(frozen=True, slots=True)
class ParserEvent:
    """Something that began in an answer."""

    choice: int
    at: int
    """Characters of the answer that had come when it was found."""
    what: Literal["reasoning", "content", "call"]
    name: str = ""
    """Of the function that is called."""


@dataclass(frozen=True)
class Reads:
    """What stands in the answers to one request besides text."""

    style: Style | None = None
    """How calls stand there; None: there are none."""
    marks: Marks = field(default_factory=lambda: Marks((), {}))
    """The control tokens by which they are told; in the text that is read each is its one character."""
    thoughts: Tags | None = None
    """Between which marks thoughts stand there; None: there are none."""
    thinking: bool = False
    """The prompt ends within a thought."""
    one_call: bool = False
    """What comes behind the first call is dropped."""
    tools: tuple[dict[str, Any], ...] = ()
    """The functions that the model was shown."""
    events: list[ParserEvent] = field(default_factory=list[ParserEvent])
    """What was found in the answers so far; as many as MOST_EVENTS."""


@dataclass(slots=True)
class Said:
    """What is new in an answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list[CallDelta])


class Reader:
    """Reads one answer as it comes."""

    def __init__(self, reads: Reads, choice: int = 0) -> None:
        self._events, self._choice = reads.events, choice
        self._length = 0
        self._began: set[str] = set()
        self._thoughts: Reasoning | None = None
        self._marks = reads.marks
        if (tags := reads.thoughts) is not None:
            coded = Tags(self._marks.coded(tags.open), self._marks.coded(tags.close))
            self._thoughts = Reasoning(coded, reads.thinking)
        self._calls: Calls | None = None
        if (style := reads.style) is not None:
            begin, separator, end = map(self._marks.coded, (style.begin, style.separator, style.end))
            style = replace(style, begin=begin, separator=separator, end=end)
            self._calls = Calls(style, [str(tool["name"]) for tool in reads.tools])
        self._one_call = reads.one_call

    @property
    def called(self) -> bool:
        """Whether there was a call."""
        return self._calls is not None and self._calls.count > 0

    def push(self, text: str, *, final: bool) -> Said:
        """Take some text; with `final` what is held back comes, too."""
        said = self._read(text, final)
        self._length += len(text)
        if said.reasoning:
            self._begin("reasoning")
        if said.content.strip():
            self._begin("content")
        for call in said.calls:
            if call.name:
                self._note("call", call.name)
        return said

    def _begin(self, what: Literal["reasoning", "content"]) -> None:
        if what not in self._began:
            self._began.add(what)
            self._note(what)

    def _note(self, what: Literal["reasoning", "content", "call"], name: str = "") -> None:
        if len(self._events) < MOST_EVENTS:
            self._events.append(ParserEvent(self._choice, self._length, what, name))

    def _read(self, text: str, final: bool) -> Said:
        said = Said()
        if self._thoughts is not None:
            thought, text = self._thoughts.push(text, final=final)
            said.reasoning = self._marks.spelled(thought)
        if self._calls is None:
            said.content = self._marks.spelled(text)
            return said
        read = self._calls.push(text, final=final)
        said.content = self._marks.spelled(read.content)
        said.calls = [call for call in read.calls if call.index == 0] if self._one_call else read.calls
        return said
