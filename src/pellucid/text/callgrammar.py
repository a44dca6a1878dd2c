"""The grammar that holds an answer to valid tool calls, in llguidance's Lark.

Law: what is drawn under it is read by `calls` without loss: arguments are JSON that the tool's schema allows, always,
unless the answer is cut off. Where an answer may be text it is free until it has begun a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pellucid.text.marks import Marks
from pellucid.text.reasoning import Tags
from pellucid.text.tools import MOST_WHITE, Head, Style, Tool, bare_heads, object_heads

WHITESPACE = r"[ \n\t]{1,16}"
"""Between the parts of a call's arguments. A model that cannot end otherwise would write white space for ever."""
_WHITE = rf"[ \n\t\r]{{0,{MOST_WHITE}}}"


def grammar(
    style: Style,
    tools: Sequence[Tool],
    *,
    required: bool,
    parallel: bool,
    marks: Marks,
    thoughts: Tags | None = None,
    thinking: bool = False,
) -> str:
    """Return the Lark grammar of answers with calls of `tools`.

    Args:
        style: how calls stand in an answer.
        tools: at least one.
        required: the answer is calls and nothing else; if not, it is text, in which calls may stand.
        parallel: there may be more than one call.
        marks: the control tokens by which calls and thoughts are told.
        thoughts: between which marks the model may think first; no call stands in a thought.
        thinking: the prompt ends within a thought.
    """
    many = parallel and not style.single
    rules = ["TEXT: /(.|\\n)*/", f"WHITE: /{_WHITE}/"]
    rules += _thought(thoughts, thinking, required, marks) if thoughts is not None else ["start: answer"]
    rules += _required(style, tools, many, marks) if required else _auto(style, tools, many, marks)
    rules += [f"args_{i}: %json {json.dumps(arguments_schema(tool))}" for i, tool in enumerate(tools)]
    return "\n".join(rules) + "\n"


def _thought(tags: Tags, thinking: bool, required: bool, marks: Marks) -> list[str]:
    """Return the rules of an answer before which there may be a thought."""
    closed = "closed WHITE answer" if required else "closed answer | TEXT"  # a thought may take the whole answer
    rules = [f"start: {closed}"] if thinking else [f"start: answer | opened ({closed})"]
    if not thinking:
        rules.append(_until("opened", "WHITE", tags.open, marks))
    return [*rules, _until("closed", "TEXT", tags.close, marks)]


def _until(rule: str, text: str, mark: str, marks: Marks) -> str:
    """Return the rule of text up to a mark. A lexeme goes on through its spelling, not through a control token."""
    control = isinstance(marks.parts(mark)[0], int)
    return f"{rule}: {text} {_spelled(mark, marks)}" if control else f"{rule}[lazy]: {text} {_spelled(mark, marks)}"


def _required(style: Style, tools: Sequence[Tool], many: bool, marks: Marks) -> list[str]:
    if style.bare:
        return [f"answer: call{_again(many, 'call', chr(10))}", *_calls(style, tools, marks)]
    again = _again(many and style.form != "list", "block", "\n" if style.form == "object" else "")
    return [
        f"answer: block{again}",
        f"block: {_spelled(style.begin, marks)} {_body(style, many)}",
        *_calls(style, tools, marks),
    ]


def _auto(style: Style, tools: Sequence[Tool], many: bool, marks: Marks) -> list[str]:
    """Text is a lexeme which a mark, or what only a call begins with, cuts short."""
    rules = [f"FENCE: /{_WHITE}```/"]
    text = "TEXT"
    if style.begin:
        text = "block* TEXT" if many and style.form != "list" else "TEXT | block"
        rules += [_until("opening", "TEXT", style.begin, marks), f"block: opening {_body(style, many)}"]
        rules += _calls(style, tools, marks)
    rules += [f"FIRST: /{_before_name(bare_heads)}/", f"KEY: /{_behind_name()}/"]
    if many:
        rules.append(f"LATER: /{_before_name(object_heads, ';?')}/")
    for i, tool in enumerate(tools):
        name = f"/[ \\n\\t\\r]*/ {json.dumps(json.dumps(tool['name']))} KEY"
        rules += [f"{at.lower()}_{i}[lazy]: {at} {name}" for at in (("FIRST", "LATER") if many else ("FIRST",))]
    bare = [" | ".join(f"{at}_{i} WHITE args_{i}" for i in range(len(tools))) for at in ("first", "later")]
    rules.append(f'bare: ({bare[0]}) WHITE "}}"' + (f' (({bare[1]}) WHITE "}}")*' if many else "") + " FENCE?")
    return [f"answer: {text} | bare", *rules]


def _again(many: bool, what: str, between: str) -> str:
    return f" ({json.dumps(between) + ' ' if between else ''}{what})*" if many else ""


def _spelled(text: str, marks: Marks) -> str:
    return " ".join(f"<[{part}]>" if isinstance(part, int) else json.dumps(part) for part in marks.parts(text))


def _body(style: Style, many: bool) -> str:
    """Return what stands behind the mark."""
    if style.form == "list":
        return f'"[" call{_again(many, "call", ", ")} "]"'
    if style.form == "named" or not style.end:
        return "call"
    return f"{json.dumps(chr(10))} call {json.dumps(chr(10) + style.end)}"


def _calls(style: Style, tools: Sequence[Tool], marks: Marks) -> list[str]:
    """Return the rules of a call as the model's own template writes it."""
    rules = ["call: " + " | ".join(f"call_{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        if style.form == "named":
            rules.append(f"call_{i}: {json.dumps(tool['name'])} {_spelled(style.separator, marks)} args_{i}")
        else:
            head = f'{{"name": {json.dumps(tool["name"])}, "{style.key}": '
            rules.append(f'call_{i}: {json.dumps(head)} args_{i} "}}"')
    return rules


def _before_name(heads: Callable[[str], list[Head]], first: str = "") -> str:
    """Return the regular expression of what stands before the name where a call begins, behind `first`."""
    before = ["".join(map(_part, head[: head.index((json.dumps(""),))])) for head in heads("")]
    return rf"[ \n\t\r]*{first}({'|'.join(before)})"


def _behind_name() -> str:
    """Return the regular expression of what stands behind it, but for the brace of the arguments."""
    head = object_heads("")[0]
    return "".join(map(_part, head[head.index((json.dumps(""),)) + 1 : -1]))


def _part(options: Sequence[str]) -> str:
    return r"[ \n\t\r]*" + _any(options)  # bounded repeats cost the lexer an expression for each count


def _any(options: Sequence[str]) -> str:
    return "(" + "|".join(map(re.escape, options)) + ")"


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments, which are an object."""
    schema = tool.get("parameters")
    given = {"type": "object"} | dict(cast("Mapping[str, Any]", schema or {}))
    return given | {"x-guidance": {"whitespace_pattern": WHITESPACE}}
