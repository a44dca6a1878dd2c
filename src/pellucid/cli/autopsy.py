"""`pellucid autopsy`: what became of one request to a server.

Law: it writes what /inspect/requests says, in the order in which things happened; what is not known is left out.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from pellucid.cli import options

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

MOST_SHOWN = 400
"""Characters of a text that are written."""


def autopsy(
    id: Annotated[
        str | None, typer.Argument(help="Id of the answer, or x-request-id; without it the last requests are listed")
    ] = None,
    url: options.Url = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    redact: Annotated[bool, typer.Option("--redact", help="Leave out text, though it may be seen")] = False,
    as_json: options.Json = False,
) -> None:
    """Say what became of a request: queue, cache, prefill, decode, the longest gaps between tokens and their causes."""
    from pellucid.cli.remote import Remote

    path = "/inspect/requests"
    if id is not None:
        path += f"/{quote(id, safe='')}" + ("?redact=true" if redact else "")
    with Remote(url, api_key) as remote:
        found = remote.look(path)
    if as_json:
        print(json.dumps(found))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(_list(found) if id is None else report(found))


def _list(found: list[dict[str, Any]]) -> RenderableType:
    from rich.text import Text

    if not found:
        return Text("no request for an answer yet")
    table = _table("request", "state", "prompt", "cached", "answer", "first token", "in all", folds=1)
    for one in found:
        state = one["finish_reason"] or one["state"]
        counts = (one["prompt_tokens"], one["cached_tokens"], one["completion_tokens"])
        times = (_seconds(one["first_token_seconds"]), _seconds(one["seconds"]))
        table.add_row(Text(one["id"]), state, *map(str, counts), *times)
    return table


def report(found: dict[str, Any]) -> RenderableType:
    """One request, top to bottom."""
    from rich.console import Group
    from rich.text import Text

    state = found["finish_reason"] or found["state"]
    head = Text.assemble((found["id"], "bold"), f"  {found['route']}  ", (state, "bold"))
    head.append(f"\nrequest {found['request_id']}, {_seconds(found['seconds'])} in all", "dim")
    parts: list[RenderableType] = [head]
    if found["prompt"] is not None:
        parts.append(_field("prompt", _cut("".join(piece["text"] for piece in found["prompt"]))))
    elif not found["shown"]:
        parts.append(Text('its text is not shown: the request had no "inspect" in its body', "dim"))
    for choice in found["choices"]:
        if len(found["choices"]) > 1:
            parts.append(Text(f"\n{choice['id']}", "bold"))
        parts += _choice(found, choice)
    for event in found["parser"]:
        what = f"{event['what']} {event['name']}".strip()
        parts.append(_field("parsed", f"{what} of answer {event['choice']}, by character {event['at']}"))
    return Group(*parts)


def _choice(found: dict[str, Any], choice: dict[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    if not choice["known"]:
        return [Text("what the engine did for it is not known any more", "dim")]
    stages = choice["stages"]
    rows = {
        "receive": (found["stages"]["receive"], "read, rendered, turned into tokens"),
        "queue": (stages["queue"], _queue(choice["queue"])),
        "prefill": (stages["prefill"], _prefill(choice)),
        "decode": (stages["decode"], _decode(choice)),
        "emit": (found["stages"]["emit"], "until the answer was sent"),
    }
    whole = sum(seconds or 0.0 for seconds, _ in rows.values()) or 1.0
    table = _table("stage", "time", "", "", folds=4)
    for name, (seconds, text) in rows.items():
        table.add_row(name, _seconds(seconds), Text("█" * round(20 * (seconds or 0.0) / whole), "cyan"), text)
    parts: list[RenderableType] = [table]
    if (cache := choice["cache"]) is not None:
        text = f"{cache['cached']} of {cache['could']} tokens that could be; {cache['why']}"
        if "diverged_token" in cache:
            text += f" ({cache['diverged_token']['text']!r})"
        parts.append(_field("cache", text))
        if cache["nearest"] is not None and cache["diverged_at"] is not None:
            alike = f"; {cache['same_after']} tokens at the end are alike" if cache["same_after"] else ""
            parts.append(_field("nearest", cache["nearest"] + alike))
    for one in choice["preemptions"]:
        parts.append(_field("preempted", f"after {_seconds(one['after'])}, giving up {one['tokens']} tokens"))
    if choice["rows_again"]:
        parts.append(_field("again", f"{choice['rows_again']} tokens were computed twice"))
    mates = choice["mates"]
    parts.append(_field("beside", f"{mates['mean']:.1f} other sequences a step; {mates['count']} in all"))
    if choice["stop"] is not None:
        parts.append(_field("stopped by", repr(choice["stop"]) if found["shown"] else str(choice["stop"])))
    if choice["output"] is not None:
        parts.append(_field("answer", _cut("".join(piece["text"] for piece in choice["output"]))))
    if choice["gaps"]["worst"]:
        parts += [Text(), _gaps(choice["gaps"])]
    return parts


def _queue(queue: dict[str, Any]) -> str:
    words = {"seats": "all places taken", "pages": "no pages", "rows": "steps full", "prefix": "its prefix was coming"}
    words["step"] = "a step was under way"
    found = [f"{words.get(why, why)} {_seconds(seconds)}" for why, seconds in queue["seconds"].items()]
    ahead = f"{queue['running']} ran and {queue['waiting']} waited when it came"
    return "; ".join([ahead, *found])


def _prefill(choice: dict[str, Any]) -> str:
    cached = 0 if choice["cache"] is None else choice["cache"]["cached"]
    return f"{choice['prompt_tokens']} tokens of prompt" + (f", {cached} of them cached" if cached else "")


def _decode(choice: dict[str, Any]) -> str:
    gaps = choice["gaps"]
    if gaps["p50"] is None:
        return ""
    return f"between tokens: p50 {_seconds(gaps['p50'])}, p99 {_seconds(gaps['p99'])}"


def _gaps(gaps: dict[str, Any]) -> RenderableType:
    table = _table("longest gaps", "before token", "cause", "steps", folds=3)
    for gap in gaps["worst"]:
        numbers = [str(step["step"]) for step in gap["steps"]]
        shown = numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}" if numbers else "–"
        table.add_row(_seconds(gap["seconds"]), str(gap["token"]), gap["cause"].replace("_", " "), shown)
    return table


def _table(*names: str, folds: int) -> Table:
    """A plain table; column number `folds` breaks into lines."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for i, name in enumerate(names, 1):
        table.add_column(name, overflow="fold" if i == folds else "ellipsis", no_wrap=i != folds)
    return table


def _field(name: str, text: str) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=10)
    grid.add_column(overflow="fold")
    grid.add_row(Text(name, "dim"), Text(text))
    return grid


def _cut(text: str) -> str:
    shown = text.replace("\n", "⏎")
    shown = "".join(c if c.isprintable() else "�" for c in shown)
    half = MOST_SHOWN // 2
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:half]} … {shown[-half:]}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{1000 * value:.1f} ms" if value < 1 else f"{value:.2f} s"
