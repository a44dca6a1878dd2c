"""`pellucid top`: a server, live.

Law: it only reads /metrics and /ready, so it works against any Pellucid server that can be reached, from any system.
Once the first reading is there, a server that goes away is waited for, not given up.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.cli import options

if TYPE_CHECKING:
    from pellucid.cli.readings import Figures, Reading, Source

LATENCY_WINDOW = 30.0
"""Seconds that the latencies on the screen cover."""


def top(
    url: Annotated[str, typer.Argument(envvar="PELLUCID_URL", help="Address of the server")] = options.DEFAULT_URL,
    api_key: options.ApiKey = None,
    interval: Annotated[float, typer.Option(help="Seconds between two readings", min=0.1, max=3600)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture of one interval, and end")] = False,
    as_json: options.Json = False,
) -> None:
    """Watch a server live: requests, tokens a second, latencies, KV cache, CPU, memory. Ctrl-C ends it."""
    from pellucid.cli.readings import Source, figures

    source = Source(url, api_key)
    try:
        before = source.read()
        if as_json or once or not sys.stdout.isatty():
            while True:
                time.sleep(interval)
                now = source.read()
                _print(source.url, figures(before, now), as_json)
                if once:
                    return
                before = now
        _live(source, before, interval)
    finally:
        source.close()


def _print(url: str, figures: Figures, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"url": url, **asdict(figures)}), flush=True)
        return
    from rich.console import Console

    from pellucid.cli.dashboard import History, dashboard

    history = History()
    history.add(figures)
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(dashboard(url, figures, history, console.width))
    sys.stdout.flush()


def _live(source: Source, before: Reading, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    from pellucid.cli.dashboard import History, dashboard
    from pellucid.cli.readings import figures
    from pellucid.errors import UnreachableError

    console, history = Console(), History()
    recent = deque([before])  # what latencies are taken over: a single interval may hold none
    last: Figures | None = None
    with Live(Spinner("dots", f" reading {source.url}"), console=console, screen=True, refresh_per_second=8) as live:
        while True:
            time.sleep(interval)
            trouble = ""
            try:
                now = source.read()
            except UnreachableError:
                trouble = f"no answer for {time.monotonic() - before.at:.0f} s; trying again"
            else:
                while recent[0].at < now.at - LATENCY_WINDOW and len(recent) > 1:
                    recent.popleft()
                last = figures(before, now, recent[0])
                recent.append(now)
                before = now
                history.add(last)
            if last is not None:
                live.update(dashboard(source.url, last, history, console.width, trouble), refresh=True)
