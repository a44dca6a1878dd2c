"""Reading tool calls from an answer as it comes.

Law: how an answer is cut into pieces changes nothing of what is read. What begins as a call of a tool that was offered
is one; all else is content, of which nothing is lost but the white space beside a call. A call that is cut off within
its arguments is told as far as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pellucid.text.reasoning import unfinished
from pellucid.text.tools import WHITE, Head, Style, bare_heads, matched, object_heads


@dataclass(slots=True)
class CallDelta:
    """What is new of a call: its name once, then its arguments bit by bit."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Read:
    """What is new in an answer."""

    content: str = ""
    calls: list[CallDelta] = field(default_factory=list[CallDelta])


_Heads = list[tuple[str, Head]]


def _heads(names: Iterable[str], heads: Callable[[str], list[Head]], before: str = "") -> _Heads:
    return [(name, ((before,), *head) if before else head) for name in names for head in heads(name)]


class Calls:
    """Reads one answer as it comes."""

    def __init__(self, style: Style, names: Iterable[str]) -> None:
        """`style`: its marks spelled as they come in the text. `names`: of the tools that were offered."""
        self._style = style
        known = list(names)
        listed = style.form == "list"
        self._first_bare = _heads(known, bare_heads)
        self._next_bare = _heads(known, object_heads) + _heads(known, object_heads, ";")
        self._first_marked = _heads(known, style.heads, "[" if listed else "")
        self._next_listed = _heads(known, style.heads, ",")
        self._held: str = ""
        """Text that is not read yet."""
        self._before: str = ""
        """What came before `_held` and is content unless `_held` becomes a call."""
        self._state: Callable[[Read], bool] = self._start
        self._bare = False
        """The call at hand has no mark."""
        self._behind = False
        """A call has ended and no content has come since."""
        self._depth, self._quoted, self._escaped = 0, False, False
        self.count = 0
        """Calls so far."""

    def push(self, text: str, *, final: bool) -> Read:
        """Take some text; with `final` what is held back comes, too."""
        read = Read()
        self._held += text
        while self._held and self._state(read):
            pass
        if final:
            if self._state not in (self._brace, self._end):  # else it is the beginning of what ends a call
                self._say(self._before + self._held, read)
            self._before = self._held = ""
        return read

    def _say(self, text: str, read: Read) -> None:
        if self._behind:
            text = text.lstrip()
            self._behind = not text
        read.content += text

    # Each state takes something of `_held`, and returns whether there may be more to read.

    def _start(self, read: Read) -> bool:
        """Nothing has come yet: a call may stand here without a mark."""
        return self._call(self._first_bare, read, bare=True)

    def _text(self, read: Read) -> bool:
        mark = self._style.begin
        before, found, rest = self._held.partition(mark) if mark else (self._held, "", "")
        if found:
            text = before.rstrip()
            self._say(text, read)
            self._before = before[len(text) :] + mark
            self._held, self._state = rest, self._marked
            return True
        keep = unfinished(self._held, mark) if mark else 0
        self._say(self._held[: len(self._held) - keep], read)
        self._held = self._held[len(self._held) - keep :]
        return False

    def _marked(self, read: Read) -> bool:
        return self._call(self._first_marked, read)

    def _call(self, heads: _Heads, read: Read, *, bare: bool = False) -> bool:
        """Whether a call begins; what does not is text."""
        self._skip()
        if not self._held or (found := matched(heads, self._held)) is None:
            return False
        if found is False:
            self._say(self._before, read)
            self._before, self._state = "", self._text
            return True
        name, taken = found
        read.calls.append(CallDelta(self.count, self._style.new_id(), name))
        self.count += 1
        self._before, self._held = "", self._held[taken - 1 :]
        self._state, self._bare = self._arguments, bare
        return True

    def _skip(self) -> None:
        """Take white space."""
        rest = self._held.lstrip(WHITE)
        self._before += self._held[: len(self._held) - len(rest)]
        self._held = rest

    def _arguments(self, read: Read) -> bool:
        end = self._end_of_arguments()
        read.calls.append(CallDelta(self.count - 1, arguments=self._held[:end]))
        self._held = self._held[end:]
        if self._depth:
            return False
        if self._style.form == "named" and not self._bare:
            self._ended()
        else:
            self._state = self._brace
        return True

    def _end_of_arguments(self) -> int:
        """Return how much of what is held belongs to the arguments; if it is where they end, `_depth` is 0."""
        for at, char in enumerate(self._held):
            if self._quoted:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._quoted = False
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return len(self._held)

    def _brace(self, read: Read) -> bool:
        """The end of the object in which a call stands."""
        if (found := self._comes("}")) is None:
            return False
        if not found:
            self._ended()
        elif self._bare:
            self._state = self._after_bare
        elif self._style.form == "list":
            self._state = self._listed
        else:
            self._state = self._end
        return True

    def _after_bare(self, read: Read) -> bool:
        """Another call, or the fence behind them."""
        if (found := self._comes("```")) is None:
            return False
        if found:
            self._ended()
            return True
        self._behind = True
        return self._call(self._next_bare, read, bare=True)

    def _listed(self, read: Read) -> bool:
        """Another call of the list, or its end."""
        if (found := self._comes("]")) is None:
            return False
        if found:
            self._state = self._end
            return True
        self._behind = True
        return self._call(self._next_listed, read)

    def _end(self, read: Read) -> bool:
        """The mark behind calls."""
        if self._style.end and self._comes(self._style.end) is None:
            return False
        self._ended()
        return True

    def _comes(self, what: str) -> bool | None:
        """Take what ends something, and the white space before it; None: more text may make it that."""
        self._held = self._held.lstrip(WHITE)
        if self._held.startswith(what):
            self._held = self._held[len(what) :]
            return True
        return None if what.startswith(self._held) else False

    def _ended(self) -> None:
        self._state, self._behind = self._text, True
