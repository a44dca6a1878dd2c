"""Records of steps: what each one computed, and where its time went.

Law: the engine's thread appends and never waits: the ring keeps the last so many records, and who reads too slowly is
told how many it missed. Numbers and names of requests only.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from pellucid.errors import CapacityError
from pellucid.probes.hub import Hub

Blocked = Literal["", "seats", "pages", "rows", "prefix"]
"""Why nobody more was admitted: max_seqs run, no pages are left, the step was full, or all who wait begin with what is
just being computed; "": nobody waits."""

KEPT = 4096
"""Records in a ring."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds of a step, by what was done."""

    schedule: float
    batch: float
    run: float
    """The forward, and the grammars' masks where they took longer."""
    pick: float
    commit: float
    """Books, ends of sequences, logprobs."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step that computed something."""

    step: int
    at: float
    """When it began, in seconds of the epoch."""
    seconds: float
    parts: StepParts
    rows: int
    prefill_rows: int
    """Rows that drew nothing but to catch up: of prompts, and of what was preempted."""
    decode_rows: int
    """Sequences that had one new token of their answer computed."""
    tokens: int
    """Tokens drawn."""
    sequences: int
    largest: str
    """The sequence with the most rows."""
    largest_rows: int
    running: int
    waiting: int
    blocked: Blocked
    pages_used: int
    preemptions: int
    """In this step."""


class StepRing:
    """The last records of a hub's engine. Any thread may read."""

    def __init__(self, hub: Hub, kept: int = KEPT) -> None:
        self._held: deque[StepRecord] = deque(maxlen=kept)
        self._count = 0
        self._lock = threading.Lock()
        self._listeners: tuple[Callable[[], object], ...] = ()
        self.close = hub.subscribe("step", self._take)

    @property
    def count(self) -> int:
        """Records there have been."""
        return self._count

    def since(self, cursor: int) -> tuple[list[StepRecord], int]:
        """What came after the first `cursor` records, and how many of that are not here any more."""
        with self._lock:
            first = self._count - len(self._held)
            missed = max(0, first - cursor)
            return list(islice(self._held, max(0, cursor - first), None)), missed

    def between(self, after: int, to: int, most: int = 8) -> tuple[StepRecord, ...]:
        """The longest `most` of the steps after number `after` up to number `to`, in their order."""
        found: list[StepRecord] = []
        with self._lock:
            for record in reversed(self._held):
                if record.step <= after:
                    break
                if record.step <= to:
                    found.append(record)
        longest = sorted(found, key=lambda record: record.seconds)[-most:]
        return tuple(sorted(longest, key=lambda record: record.step))

    def listen(self, listener: Callable[[], object], *, most: int) -> Callable[[], None]:
        """Call `listener`, on the engine's thread, after each record. Returns what ends it.

        Raises CapacityError: `most` listen already.
        """
        with self._lock:
            if len(self._listeners) >= most:
                raise CapacityError(f"{most} listen to the engine's steps already; try again when one has gone")
            self._listeners = (*self._listeners, listener)

        def end() -> None:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not listener)

        return end

    def _take(self, point: str, frame: dict[str, Any]) -> None:
        with self._lock:
            self._held.append(frame["record"])
            self._count += 1
        for listener in self._listeners:
            with suppress(RuntimeError):  # its loop is closed
                listener()
