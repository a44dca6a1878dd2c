"""A conversation with tools in plain text, for a chat template that shows none.

Law: calls are written as style GENERIC reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.text.tools import Tool


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
