"""Tool calls: how a model writes them, what holds it to valid ones, and how they are read as they come.

Law: a `Style` is data, chosen from the chat template; nothing else knows a family. What is drawn under `grammar` is
read by `Calls` without loss: arguments are JSON that the tool's schema allows, always, unless the answer is cut off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

from pellucid.text.reasoning import unfinished

WHITESPACE = r"[ \n\t]{1,16}"
"""Between the parts of a call's arguments. A model that cannot end otherwise would write white space for ever."""


@dataclass(frozen=True)
class Style:
    """How calls stand in an answer."""

    name: str
    begin: str
    """What begins a call, or the list of them."""
    end: str = ""
    key: str = "arguments"
    listed: bool = False
    """Calls stand in one JSON list."""
    bare: bool = False
    """`begin` is the beginning of the call's own JSON, and there is one call."""
    id_length: int = 24
    in_template: bool = True
    """The model's own template shows tools to it; if not, a system message does (`shown`)."""

    def new_id(self) -> str:
        """Return the id of a new call, as long as the templates of this style take it."""
        return f"call_{uuid4().hex}"[: self.id_length] if self.id_length > 9 else uuid4().hex[: self.id_length]


HERMES = Style("hermes", "<tool_call>", "</tool_call>")
MISTRAL = Style("mistral", "[TOOL_CALLS]", listed=True, id_length=9)
LLAMA3 = Style("llama3", '{"name": ', key="parameters", bare=True)
GENERIC = Style("generic", "<tool_call>", "</tool_call>", in_template=False)


def style_of(template: str) -> Style:
    """Return how a model with this chat template writes calls."""
    if MISTRAL.begin in template:
        return MISTRAL
    if HERMES.begin in template:
        return HERMES
    if "tools" in template and '"parameters": ' in template:
        return LLAMA3
    return GENERIC


Tool = Mapping[str, Any]
"""{"name", "description", "parameters"}, parameters being a JSON schema."""


def shown(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return a conversation in which tools, calls and results are text, for a template that knows none of them."""
    out: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if calls := message.get("tool_calls"):
            parts = [content] if content else []
            content = "\n".join([*parts, *(_as_text(call["function"]) for call in calls)])
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        if out and role == out[-1]["role"] == "user" and message["role"] == "tool":
            out[-1]["content"] += "\n" + content
        else:
            out.append({"role": role, "content": content})
    if tools:
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        text = (
            f"You may call these functions:\n{listed}\n\nTo call one, write\n<tool_call>\n"
            '{"name": <its name>, "arguments": <its arguments as a JSON object>}\n</tool_call>'
        )
        if out[0]["role"] == "system":
            out[0]["content"] += "\n\n" + text
        else:
            out.insert(0, {"role": "system", "content": text})
    return out


def _as_text(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {text}}}\n</tool_call>'


def grammar(
    style: Style, tools: Sequence[Tool], *, required: bool, parallel: bool, control: Callable[[str], int | None]
) -> str:
    """Return the Lark grammar of answers with calls of `tools`.

    Args:
        style: how calls stand in an answer.
        tools: at least one.
        required: the answer is calls and nothing else; if not, it is text, in which calls may stand.
        parallel: there may be more than one call.
        control: the id of a control token with this spelling, if there is one.
    """
    token = control(style.begin)
    begin = f"<[{token}]>" if token is not None else json.dumps(style.begin)
    calls = [
        f"call_{i}: {json.dumps(head)} args_{i} {json.dumps('}')}\nargs_{i}: %json {json.dumps(_arguments(tool))}"
        for i, tool in enumerate(tools)
        for head in [f'{{"name": {json.dumps(tool["name"])}, "{style.key}": '[len(style.begin) * style.bare :]]
    ]
    one = "call: " + " | ".join(f"call_{i}" for i in range(len(tools)))
    many = parallel and not style.bare
    if style.listed:
        body = f'"[" call {"(" + json.dumps(", ") + " call)*" if many else ""} "]"'
    elif style.bare:
        body = "call"
    else:
        body = f"{json.dumps(chr(10))} call {json.dumps(chr(10) + style.end)}"
    again = many and not style.listed
    if required:
        whole = f"{begin} {body}"
        rules = [f"start: block {'(' + json.dumps(chr(10)) + ' block)*' if again else ''}", f"block: {whole}"]
    else:
        rules = [f"start: {'block* TEXT' if again else 'TEXT | block'}", "TEXT: /(.|\\n)*/"]
        if token is not None:
            rules.append(f"block: TEXT {begin} {body}")
        else:
            rules += [f"opening[lazy]: TEXT {begin}", f"block: opening {body}"]
    return "\n".join([*rules, one, *calls]) + "\n"


def _arguments(tool: Tool) -> dict[str, Any]:
    schema = tool.get("parameters")
    given = {"type": "object"} | dict(cast("Mapping[str, Any]", schema or {}))
    return given | {"x-guidance": {"whitespace_pattern": WHITESPACE}}


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


class Calls:
    """Reads one answer as it comes."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._header: re.Pattern[str] = re.compile(
            r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"' + style.key + r'"\s*:\s*', re.DOTALL
        )
        self._state = "text"
        self._held: str = ""
        self._depth, self._quoted, self._escaped = 0, False, False
        self.count = 0
        """Calls so far."""

    def push(self, text: str, *, final: bool) -> Read:
        """Take some text; with `final` what is held back comes, too."""
        read = Read()
        self._held += text
        while self._held and self._step(read, final):
            pass
        return read

    def _step(self, read: Read, final: bool) -> bool:
        """Go on by one state. Returns whether there may be more to read."""
        if self._state == "text":
            return self._text(read, final)
        if self._state == "call":
            return self._call(read, final)
        if self._state == "arguments":
            return self._in_arguments(read)
        return self._behind(final)

    def _text(self, read: Read, final: bool) -> bool:
        style = self._style
        if self.count:  # between calls and behind them white space means nothing
            self._held = self._held.lstrip()
        before, mark, rest = self._held.partition(style.begin)
        if mark:
            read.content += before.rstrip()
            self._held = (style.begin if style.bare else "") + rest
            self._state = "call"
            return True
        keep = 0 if final else unfinished(self._held, style.begin)
        read.content += self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return False

    def _call(self, read: Read, final: bool) -> bool:
        if self._style.listed:
            self._held = self._held.lstrip("[, \n")
        if (found := self._header.match(self._held)) is None:
            if final:  # cut off, or no call after all: nothing is lost
                read.content += self._held if self._style.bare else self._style.begin + self._held
                self._held = ""
            return False
        name = str(json.loads(found[1], strict=False))
        read.calls.append(CallDelta(self.count, self._style.new_id(), name))
        self.count += 1
        self._held = self._held[found.end() :]
        self._state, self._depth = "arguments", 0
        return True

    def _in_arguments(self, read: Read) -> bool:
        if self._depth == 0:
            self._held = self._held.lstrip()
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
                    read.calls.append(CallDelta(self.count - 1, arguments=self._held[: at + 1]))
                    self._held, self._state = self._held[at + 1 :], "behind"
                    return True
        if self._held:
            read.calls.append(CallDelta(self.count - 1, arguments=self._held))
        self._held = ""
        return False

    def _behind(self, final: bool) -> bool:
        """The rest of the call's JSON, and what ends it."""
        rest = self._held.lstrip("} \n")
        if self._style.listed:
            if rest.startswith("]"):
                self._held, self._state = rest[1:], "text"
                return True
            if rest.startswith(","):
                self._held, self._state = rest, "call"
                return True
            self._held = rest
            return False
        if rest.startswith(self._style.end) and (self._style.end or "}" in self._held):
            self._held, self._state = rest.removeprefix(self._style.end), "text"
            return True
        if not self._style.end.startswith(rest) or final:
            self._held, self._state = rest, "text"
            return True
        return False
