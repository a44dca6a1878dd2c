"""The picture that `pellucid top` draws.

Law: it is made of Figures alone, and fits 80 columns; wider terminals get wider bars. What a server does not state is
shown as a dash.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pellucid.models.store import size_text

if TYPE_CHECKING:
    from pellucid.cli.readings import Figures

_BLOCKS = " ▁▂▃▄▅▆▇█"
_NAMES = {
    "first_token": "first token",
    "inter_token": "between tokens",
    "request": "whole request",
    "queue": "in queue",
}


@dataclass
class History:
    """The last figures, for the curves."""

    length: int = 240
    tokens: deque[float] = field(default_factory=deque[float])

    def add(self, figures: Figures) -> None:
        """Remember one reading."""
        self.tokens.append(figures.tokens_per_second or 0.0)
        while len(self.tokens) > self.length:
            self.tokens.popleft()


def dashboard(url: str, figures: Figures, history: History, width: int, trouble: str = "") -> RenderableType:
    """One screen. `trouble`: what keeps the figures from being fresh."""
    width = max(60, width)
    parts: list[RenderableType] = [_head(url, figures, trouble), _rates(figures, history, width), _latencies(figures)]
    return Group(*parts, Text(), _bars(figures, width), Text(), _memory(figures), _counts(figures))


def _head(url: str, f: Figures, trouble: str) -> Text:
    state = Text(" ready ", "black on green") if f.ready else Text(f" not ready: {f.why} ", "white on red")
    if trouble:
        state = Text(f" {trouble} ", "white on red")
    line = Text.assemble((f.model or "?", "bold"), f"  {url}  ", state)
    about = [f"pellucid {f.version}" if f.version else "", f.isa or "", f"{f.threads} threads" if f.threads else ""]
    about.append(f"up {_duration(f.uptime)}" if f.uptime is not None else "")
    return Text.assemble(line, "\n", ("  ·  ".join(part for part in about if part), "dim"))


def _rates(f: Figures, history: History, width: int) -> Panel:
    grid = Table.grid(padding=(0, 3))
    for _ in range(5):
        grid.add_column(justify="right")
    grid.add_row(*(Text(name, "dim") for name in ("running", "waiting", "tokens/s", "prompt tokens/s", "tokens/step")))
    values = (f.running, f.waiting, f.tokens_per_second, f.prompt_tokens_per_second, f.tokens_per_step)
    styles = ("bold", "bold yellow" if f.waiting else "bold", "bold cyan", "bold", "bold")
    grid.add_row(*(Text(_number(v), s) for v, s in zip(values, styles, strict=True)))
    rows: list[RenderableType] = [grid]
    if len(history.tokens) > 1:
        rows.append(Text(spark(list(history.tokens), width - 6), "cyan"))
    return Panel(Group(*rows), box=box.ROUNDED, padding=(0, 1))


def _latencies(f: Figures) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim", expand=False)
    table.add_column(f"last {f.seconds:.0f} s")
    for name in ("p50", "p95", "p99"):
        table.add_column(name, justify="right", min_width=9)
    for name, values in f.latency.items():
        table.add_row(_NAMES[name], *(_seconds(v) for v in values))
    return table


def _bars(f: Figures, width: int) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    room = max(10, min(60, width - 48))
    pages = "" if f.kv_pages is None else f" of {f.kv_pages} pages, {f.kv_format}"
    table.add_row("KV cache", bar(f.kv_usage, room), _percent(f.kv_usage) + pages)
    table.add_row("prefix hits", bar(f.cache_hit_rate, room, good=True), _percent(f.cache_hit_rate) + " of prompts")
    share = None if f.cpu is None or not f.threads else f.cpu / f.threads
    cores = "–" if f.cpu is None else f"{f.cpu:.2f} of {f.threads or '–'} cores"
    table.add_row("CPU", bar(share, room, good=True), cores)
    return table


def _memory(f: Figures) -> Text:
    resident = "–" if f.memory is None else size_text(int(f.memory))
    reserved = ", ".join(f"{part} {size_text(int(n))}" for part, n in f.parts.items()) or "–"
    read = "–" if f.bandwidth is None else f"{f.bandwidth / 1e9:.1f} GB/s"
    return Text.assemble(
        ("  resident ", "dim"), resident, ("   reserved ", "dim"), reserved, ("   weights read ", "dim"), read
    )


def _counts(f: Figures) -> Text:
    ended = ", ".join(f"{reason} {n:.0f}" for reason, n in f.finished.items() if n) or "none"
    refused = ", ".join(f"{code} {n:.0f}" for code, n in f.rejected.items() if n) or "none"
    return Text.assemble(
        ("  ended ", "dim"),
        ended,
        ("   refused ", "dim"),
        (refused, "yellow" if refused != "none" else ""),
        ("   preempted ", "dim"),
        _number(f.preemptions),
    )


def bar(share: float | None, width: int, *, good: bool = False) -> Text:
    """A bar for a share of 0 to 1; near full it warns, unless full is `good`."""
    if share is None:
        return Text("–", "dim")
    share = min(1.0, max(0.0, share))
    full = round(share * width)
    style = "green" if good or share < 0.8 else "yellow" if share < 0.95 else "red"
    return Text.assemble(("█" * full, style), ("░" * (width - full), "dim"))


def spark(values: list[float], width: int) -> str:
    """The last `width` values as a curve of blocks; its height is the largest of them."""
    values = values[-width:]
    top = max(values, default=0.0)
    if top <= 0:
        return "▁" * len(values)
    return "".join(_BLOCKS[max(1, round(v / top * 8))] for v in values)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{1000 * value:.1f} ms" if value < 1 else f"{value:.2f} s"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
