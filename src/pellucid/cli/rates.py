"""Tables of what `pellucid bench` measured.

Law: every figure of a table is in the JSON, too. A pipe gets whole lines, however narrow the terminal is.
"""

from __future__ import annotations

import sys
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from pellucid.cli.inputs import visible

if TYPE_CHECKING:
    from pellucid.bench.attention import Row
    from pellucid.bench.cells import Cell
    from pellucid.bench.profile import Line, Profile

WIDE = 160
"""Columns of a table that goes into a pipe."""
RATES = "tokens|depth|streams|threads|kv|tok/s|spread|ms/step|GB/s|int8 GOPS|roofline|share|bound"
ATTENTION = "N|textbook MB|pellucid MB|ratio|textbook ms|pellucid ms|speed-up|largest difference"
TIMES = "calls|run ms|barrier ms|share|MB|GB/s|GOPS"


class _Console(Console):
    """A console that leaves a broken pipe to the command line; rich would make exit code 1 of it."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def show(cells: list[Cell]) -> None:
    """Print the cells, then the profiles they have."""
    console = _console()
    if not cells:
        console.print("nothing was measured")
        return
    rates = _table("", RATES)
    for cell in cells:
        rates.add_row(*_row(cell))
    console.print(rates)
    console.print("GB/s and int8 GOPS are the machine's peaks, measured between the repetitions.", style="dim")
    if tiles := median(cell.peak.tiles for cell in cells):
        told = f"The roofline is that of dot instructions; matrix instructions (AMX) reach {tiles / 1e9:.0f} GOPS."
        console.print(told, style="dim")
    for cell in cells:
        if cell.profile is not None:
            _show_profile(console, str(cell.case), cell.profile)


def show_attention(rows: list[Row], title: str) -> None:
    """Print textbook attention beside the engine's."""
    console = _console()
    if not rows:
        console.print("nothing was measured")
        return
    table = _table("", ATTENTION)
    for row in rows:
        ours = [f"{row.paged.peak / 1e6:.1f}", f"{1e3 * row.paged.time:.2f}"]
        if row.textbook is None:
            table.add_row(str(row.tokens), "", ours[0], "", "", ours[1], "", "")
            continue
        theirs, facts = row.textbook, (row.textbook.peak / max(1, row.paged.peak), row.textbook.time / row.paged.time)
        table.add_row(
            str(row.tokens),
            f"{theirs.peak / 1e6:.1f}",
            ours[0],
            f"{facts[0]:.1f} x",
            f"{1e3 * theirs.time:.2f}",
            ours[1],
            f"{facts[1]:.1f} x",
            f"{row.difference:.1e}",
        )
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.tokens} tokens, textbook: {row.note}.")
    console.print(f"Attention alone, causal: {title}. MB is peak memory beyond the inputs.", style="dim")


def _console() -> Console:
    return _Console(width=None if sys.stdout.isatty() else WIDE, highlight=False, emoji=False, markup=False)


def _table(left: str, right: str) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in left.split("|"):
        made.add_column(column, no_wrap=True)
    for column in right.split("|"):
        made.add_column(column, justify="right", no_wrap=True)
    return made


def _row(cell: Cell) -> list[str]:
    case, peak = cell.case, cell.peak
    decode = case.kind == "decode"
    return [
        case.kind,
        str(case.tokens),
        str(case.depth) if decode else "",
        str(case.streams) if decode else "",
        str(case.threads),
        case.kv,
        f"{cell.rate:.1f}",
        f"±{cell.spread:.1%}",
        f"{1e3 * case.streams / cell.rate:.2f}" if decode else "",
        f"{peak.bandwidth / 1e9:.1f}",
        f"{peak.int8 / 1e9:.0f}",
        f"{cell.roofline:.1f}",
        f"{cell.share:.1%}",
        cell.work.bound(peak),
    ]


def _show_profile(console: Console, title: str, profile: Profile) -> None:
    whole = profile.seconds
    parts = f"{profile.run / whole:.1%} in ops, {profile.wait / whole:.1%} at barriers"
    engine = f"{profile.before / whole:.1%} before and {profile.after / whole:.1%} after the native call"
    console.print()
    console.print(
        f"{title}: {profile.steps} steps of {1e3 * whole / profile.steps:.3f} ms, {profile.accounted:.1%} of it"
    )
    console.print(f"accounted for: {parts}, {engine}. Below, all is of one step.")
    by_kind = _table("kind", TIMES)
    for line in _longest(profile.kinds()):
        by_kind.add_row(line.kind, *_figures(line, profile))
    by_op = _table("kind|op", TIMES)
    for line in _longest(profile.ops):
        by_op.add_row(line.kind, visible(line.name), *_figures(line, profile))
    by_layer = _table("layer", TIMES)
    for line in profile.layers.values():
        by_layer.add_row(line.name or "none", *_figures(line, profile))
    for table in (by_kind, by_op, by_layer):
        console.print()
        console.print(table)


def _longest(lines: dict[str, Line]) -> list[Line]:
    return sorted(lines.values(), key=lambda line: -line.seconds)


def _figures(line: Line, profile: Profile) -> list[str]:
    nbytes, ops, run, steps = line.work.nbytes, line.work.ops, line.run, profile.steps
    return [
        f"{line.calls / steps:.0f}",
        f"{1e3 * run / steps:.3f}",
        f"{1e3 * line.wait / steps:.3f}",
        f"{line.seconds / profile.seconds:.1%}",
        f"{nbytes / steps / 1e6:.2f}",
        f"{nbytes / run / 1e9:.1f}" if run else "",
        f"{ops / run / 1e9:.0f}" if run and ops else "",
    ]
