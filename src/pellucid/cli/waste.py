"""`pellucid waste`: what a server computed for nothing.

Law: it writes what /inspect/waste says, in its order.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pellucid.cli import options

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NAMES = {
    "evicted": "computed again: evicted",
    "preempted": "computed again: preempted",
    "other_tenant": "known to another tenant",
    "not_looked_up": "cache not looked up",
    "near_miss": "prompts nearly alike",
    "unused_tools": "tools that were not called",
    "after_disconnect": "drawn after the client left",
    "after_stop": "drawn behind a stop string",
}
MOST_LISTED = 5


def waste(
    url: options.Url = options.DEFAULT_URL, api_key: options.ApiKey = None, as_json: options.Json = False
) -> None:
    """Rank what a server computed for nothing since its start, in tokens and seconds, and say what would save it."""
    from pellucid.cli.remote import Remote

    with Remote(url, api_key) as remote:
        found = remote.look("/inspect/waste")
    if as_json:
        print(json.dumps(found))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(report(found))


def report(found: dict[str, Any]) -> RenderableType:
    """What was computed, and what of it for nothing."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble(
        (f"{found['prefill_tokens']} tokens of prompts and {found['decode_tokens']} of answers", "bold"),
        f" in {found['prefill_seconds'] + found['decode_seconds']:.1f} s of work",
    )
    if not found["items"]:
        return Group(head, Text("nothing was computed for nothing so far", "dim"))
    table = _table("cause", "tokens", "seconds", "what would save it")
    for item in found["items"]:
        table.add_row(
            NAMES.get(item["cause"], item["cause"]), str(item["tokens"]), f"{item['seconds']:.2f}", item["advice"]
        )
    parts: list[RenderableType] = [head, Text(), table]
    if near := found["near_misses"][:MOST_LISTED]:
        table = _table("prompts nearly alike", "requests", "tokens", "for instance")
        for miss in near:
            tenant = f" of {miss['tenant']}" if miss["tenant"] else ""
            pair = f"{miss['example']} and {miss['nearest']}"
            table.add_row(
                Text(f"differ at token {miss['diverged_at']}{tenant}"), str(miss["requests"]), str(miss["tokens"]), pair
            )
        parts += [Text(), table]
    if tools := found["unused_tools"][:MOST_LISTED]:
        table = _table("tools", "requests", "tokens", "")
        for tool in tools:
            called = f"called in {tool['called']}; its schema is {tool['schema_tokens']} tokens"
            table.add_row(Text(tool["name"]), str(tool["requests"]), str(tool["tokens"]), called)
        parts += [Text(), table]
    return Group(*parts)


def _table(*names: str) -> Table:
    """Text, two numbers, text that may break."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(names[0], no_wrap=True)
    for name in names[1:3]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(names[3], overflow="fold")
    return table
