"""Recorder: the host events of one request while it is served, for a trace.

Law: bounded, and it only appends: when it is full, what comes is counted and let go. Of neighbours it keeps counts, and
neither ids nor tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from pellucid.probes.hub import Hub

POINTS = ("admit", "preempt", "schedule", "finish")
MOST_EVENTS = 50_000

Event = dict[str, Any]
"""at (seconds since the recorder began), point, and what it carries."""


class Recorder:
    """Records from `with` to its end."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._ends: list[Callable[[], None]] = []
        self._frames: list[tuple[float, str, dict[str, Any]]] = []
        self._began = time.perf_counter()
        self.dropped = 0

    def __enter__(self) -> Self:
        self._ends = [self._hub.subscribe(point, self._take) for point in POINTS]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for end in self._ends:
            end()

    def _take(self, point: str, frame: dict[str, Any]) -> None:
        if len(self._frames) >= MOST_EVENTS:
            self.dropped += 1
            return
        seq = frame.get("seq")
        kept: dict[str, Any] = {k: v for k, v in frame.items() if isinstance(v, int | float | str)}
        kept["seq"] = None if seq is None else seq.id
        if "rows" in frame:
            kept["rows"] = [tuple(row) for row in frame["rows"]]
        self._frames.append((time.perf_counter() - self._began, point, kept))

    def events_of(self, seq_id: str) -> list[Event]:
        """The events of one sequence, and what each of its steps computed for all."""
        events: list[Event] = []
        for at, point, frame in self._frames:
            rows = frame.get("rows")
            if rows is not None:
                own = [row for row in rows if row[0] == seq_id]
                if not own:
                    continue
                told = {k: v for k, v in frame.items() if k not in ("rows", "seq")}
                told |= {"position": own[0][1], "rows": own[0][2], "batch_rows": sum(row[2] for row in rows)}
                told["batch_sequences"] = len(rows)
            elif frame["seq"] == seq_id:
                told = {k: v for k, v in frame.items() if k != "seq"}
            else:
                continue
            events.append({"at": at, "point": point, **told})
        return events
