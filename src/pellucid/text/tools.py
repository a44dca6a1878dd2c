"""Tool calls: in which form a model writes them, found from its chat template.

Law: a `Style` is data; nothing else knows a family. `callgrammar` holds a model to the form, `calls` reads it, and both
take it from here, so that what is read as a call is what was held to be one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal
from uuid import uuid4

KEYS = ("arguments", "parameters")
"""Under which a call's JSON holds its arguments."""
FENCES = ("", "```json", "```")
"""What may stand before a call without a mark."""

Tool = Mapping[str, Any]
"""{"name", "description", "parameters"}, parameters being a JSON schema."""
Head = tuple[tuple[str, ...], ...]
"""How a call begins, up to the brace of its arguments: at each place one of some texts, white space before each."""


@dataclass(frozen=True)
class Style:
    """How calls stand in an answer. Without a mark one may stand only where the answer begins."""

    name: str
    begin: str = ""
    """Mark before a call, or before the list of them."""
    end: str = ""
    """Mark behind."""
    form: Literal["object", "list", "named"] = "object"
    """{"name": …, "arguments": …}; a list of such objects; or the name, `separator` and the arguments."""
    separator: str = ""
    key: str = "arguments"
    """As the model's own template spells it."""
    bare: bool = False
    """The template writes calls without the mark."""
    single: bool = False
    """The template takes one call a turn."""
    id_length: int = 24
    in_template: bool = True
    """The model's own template shows tools to it; if not, a system message does (`toolprompt`)."""

    def new_id(self) -> str:
        """Return the id of a new call, as long as the templates of this style take it."""
        return f"call_{uuid4().hex}"[: self.id_length] if self.id_length > 9 else uuid4().hex[: self.id_length]

    def heads(self, name: str) -> list[Head]:
        """Return how a marked call of a function begins."""
        return [((name,), (self.separator,), ("{",))] if self.form == "named" else object_heads(name)


def bare_heads(name: str) -> list[Head]:
    """Return how a call without a mark begins."""
    return [((fence,), *head) if fence else head for fence, head in product(FENCES, object_heads(name))]


def object_heads(name: str) -> list[Head]:
    """Return how a call begins that is an object."""
    call: Head = (('"name"',), (":",), (json.dumps(name),), (",",), tuple(f'"{key}"' for key in KEYS), (":",), ("{",))
    typed: Head = (('"type"',), (":",), ('"function"',), (",",))
    return [(("{",), *call), (("{",), *typed, *call)]


HERMES = Style("hermes", "<tool_call>", "</tool_call>")
"""Also Qwen's."""
MISTRAL = Style("mistral", "[TOOL_CALLS]", form="list", id_length=9)
MISTRAL_NAMED = Style("mistral-named", "[TOOL_CALLS]", form="named", separator="[ARGS]", id_length=9)
"""Since Mistral's tokenizer v11."""
LLAMA3 = Style("llama3", "<|python_tag|>", key="parameters", bare=True, single=True)
JSON = Style("json", bare=True)
GENERIC = Style("generic", "<tool_call>", "</tool_call>", in_template=False)
"""Of a template that shows no tools, or calls of a form that is not here."""

_UNREAD = re.compile(r"<function=|<arg_key>|<tool_call>\s*\[")
"""Other forms between Hermes's marks."""


def style_of(template: str) -> Style:
    """Return how a model with this chat template writes calls."""
    template = template.replace('\\"', '"')
    if MISTRAL.begin in template:
        return MISTRAL_NAMED if MISTRAL_NAMED.separator in template else MISTRAL
    if HERMES.begin in template:
        return GENERIC if _UNREAD.search(template) else HERMES
    if "tools" in template and '"name": ' in template:
        if f'"{LLAMA3.key}": ' in template:
            return LLAMA3
        if f'"{JSON.key}": ' in template:
            return JSON
    return GENERIC


WHITE = " \t\r\n"
"""White space of JSON."""
MOST_WHITE = 16
"""White space between two parts of a head."""


def matched(heads: Sequence[tuple[str, Head]], text: str) -> tuple[str, int] | Literal[False] | None:
    """Find with which head a text begins.

    heads: each with the name of its function.
    Returns the name and how many characters it took; None: more text may make it one; False: it is none.
    """
    undecided = False
    for name, head in heads:
        taken = _taken(head, text)
        if taken is None:
            undecided = True
        elif taken is not False:
            return name, taken
    return None if undecided else False


def _taken(head: Head, text: str) -> int | Literal[False] | None:
    at = 0
    for options in head:
        for _ in range(MOST_WHITE):
            if not (at < len(text) and text[at] in WHITE):
                break
            at += 1
        part = next((option for option in options if text.startswith(option, at)), None)
        if part is None:
            return None if any(option.startswith(text[at:]) for option in options) else False
        at += len(part)
    return at
