"""`pellucid kv`: the map of a server's KV cache.

Law: it draws what /inspect/kv says and computes nothing anew; every mark means the same with colours and without.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from pellucid.cli import options

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "bright_red")
_FREE, _CACHED, _SHARED, _MANY = "·", "░", "#", "+"
MOST_ROWS = 16
MOST_LISTED = 20


def kv(url: options.Url = options.DEFAULT_URL, api_key: options.ApiKey = None, as_json: options.Json = False) -> None:
    """Draw which pages of a server's KV cache belong to whom, which are shared, which only the prefix cache keeps."""
    from pellucid.cli.remote import Remote

    with Remote(url, api_key) as remote:
        found = remote.look("/inspect/kv")
    if as_json:
        print(json.dumps(found))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(drawing(found, console.width))


def drawing(found: dict[str, Any], width: int) -> RenderableType:
    """The counts, the map, and who is on it."""
    from rich.console import Group
    from rich.text import Text

    count = max(1, found["page_count"])

    def share(pages: int) -> str:
        return f"{pages} ({100 * pages / count:.0f} %)"

    head = Text.assemble(
        (f"{found['page_count']} pages of {found['page_size']} tokens", "bold"),
        f"   held {share(found['held'])}   cached {share(found['cached'])}   free {share(found['free'])}",
        f"   shared {found['shared']}   evicted {found['evictions']}",
    )
    parts: list[RenderableType] = [head, Text(), *_cells(found, width), Text(), _legend(found)]
    if found["requests"]:
        parts += [Text(), _table(found)]
    return Group(*parts)


def _cells(found: dict[str, Any], width: int) -> list[Text]:
    """The pages in rows, each cell the kind that most of its pages are of."""
    from rich.text import Text

    across = max(16, min(width - 2, 128) // 16 * 16)
    grain = 1
    while grain * across * MOST_ROWS < found["page_count"]:
        grain *= 2
    cells: list[Counter[tuple[str, str]]] = [Counter() for _ in range(-(-found["page_count"] // grain))]
    for run in found["runs"]:
        page, end, mark = run["page"], run["page"] + run["count"], _mark(run)
        while page < end:
            part = min(end, (page // grain + 1) * grain) - page
            cells[page // grain][mark] += part
            page += part
    rows: list[Text] = []
    for first in range(0, len(cells), across):
        line = Text("  ")
        for cell in cells[first : first + across]:
            mark, style = cell.most_common(1)[0][0] if cell else ("?", "dim")
            line.append(mark, style)
        rows.append(line)
    if grain > 1:
        rows.append(Text(f"  a cell is {grain} pages", "dim"))
    if found["left_out"]:
        rows.append(Text(f"  ? the last {found['left_out']} pages are left out: the map has too many parts", "dim"))
    return rows


def _mark(run: dict[str, Any]) -> tuple[str, str]:
    if run["state"] == "free":
        return _FREE, "dim"
    if run["state"] == "cached":
        return _CACHED, "dim"
    if run["refs"] > 1:
        return _SHARED, "bold white"
    return mark_of(run["request"])


def mark_of(request: int | None) -> tuple[str, str]:
    """Letter and colour of the request at a place of the list."""
    if request is None or request >= len(_MARKS):
        return _MANY, "white"
    return _MARKS[request], _COLOURS[request % len(_COLOURS)]


def _legend(found: dict[str, Any]) -> Text:
    from rich.text import Text

    held = "A B C … held by one request" if found["requests"] else "no request holds a page"
    return Text(f"  {_FREE} free   {_CACHED} cached   {_SHARED} shared   {held}", "dim")


def _table(found: dict[str, Any]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("")
    table.add_column("request", overflow="fold")
    if any(request["tenant"] for request in found["requests"]):
        table.add_column("tenant", overflow="fold")
    for name in ("tokens", "pages", "shared"):
        table.add_column(name, justify="right")
    tenants = len(table.columns) == 6
    for index, request in enumerate(found["requests"][:MOST_LISTED]):
        cells = [Text(*mark_of(index)), Text(request["id"])]
        cells += [Text(request["tenant"])] if tenants else []
        table.add_row(*cells, *(str(request[name]) for name in ("tokens", "pages", "shared")))
    more = len(found["requests"]) - MOST_LISTED
    if more > 0:
        table.caption = f"and {more} more"
    return table
