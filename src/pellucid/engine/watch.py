"""Watching: what is seen of a sequence's values while it is served.

Law: nobody who watches changes what is served, or waits for it. What is seen goes to a ring of bounded size; who reads
too slowly loses the oldest, and is told how much. Rows of other sequences are never copied.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence as Row
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pellucid.devices.base import Batch, Device, Tap, Watchable
from pellucid.errors import RequestError

if TYPE_CHECKING:
    from pellucid.engine.batch import Step

F32 = NDArray[np.float32]
log = logging.getLogger("pellucid.engine")


@dataclass(frozen=True, slots=True)
class Seen:
    """What the taps saw in some rows of one step."""

    positions: NDArray[np.int32]
    values: dict[Tap, F32]
    """Tap → (rows, *shape of its form)."""

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return sum(value.nbytes for value in self.values.values())


class Ring:
    """The last of what was seen, at most so many bytes of it. Any thread may read."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.dropped = 0
        """Rows that nobody read in time."""
        self._held: deque[Seen] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def push(self, seen: Seen) -> None:
        """Add, and let the oldest go where there is no room."""
        with self._lock:
            self._held.append(seen)
            self._bytes += seen.nbytes
            while self._bytes > self.capacity:
                oldest = self._held.popleft()
                self._bytes -= oldest.nbytes
                self.dropped += len(oldest.positions)

    def take(self) -> list[Seen]:
        """All that is there, oldest first; it is gone then."""
        with self._lock:
            out = list(self._held)
            self._held.clear()
            self._bytes = 0
            return out


class Watch:
    """What somebody wants to see of one sequence. Set Sequence.watch before the sequence is added."""

    def __init__(self, taps: Row[Tap], *, capacity: int = 8 << 20, every: bool = True) -> None:
        """Watch.

        Args:
            taps: values; names without wildcards.
            capacity: bytes of the ring.
            every: all rows; False: only the last of each step, that from which a token is drawn.
        """
        self.taps = tuple(taps)
        self.every = every
        self.ring = Ring(capacity)
        self.error: str | None = None
        """Why nothing more is seen; None: all is well."""


def run_watched(device: Device, step: Step, batch: Batch) -> F32:
    """Device.run, and what is watched goes to the rings. A watch that fails is ended, and the step is run without."""
    live = [
        (work, int(batch.seq_starts[i]), work.seq.watch)
        for i, work in enumerate(step.work)
        if work.seq.watch is not None and work.seq.watch.error is None
    ]
    if not live:
        return device.run(batch)
    try:
        if not isinstance(device, Watchable):
            raise RequestError("this device's values cannot be looked at")
        plan = device.plan(tuple(dict.fromkeys(tap for _, _, watch in live for tap in watch.taps)))
    except Exception as error:
        for _, _, watch in live:
            watch.error = str(error)
        log.warning("what was to be watched cannot be, and is left out: %s", error)
        return device.run(batch)
    spans = [(start if watch.every else start + work.rows - 1, start + work.rows) for work, start, watch in live]
    rows = np.concatenate([np.arange(a, b, dtype=np.int32) for a, b in spans])
    logits, seen = plan.run(batch, rows)
    at = 0
    for (_, _, watch), (a, b) in zip(live, spans, strict=True):
        mine = seen[at : at + b - a]
        at += b - a
        watch.ring.push(Seen(batch.positions[a:b].copy(), {tap: plan.of(mine, tap).copy() for tap in watch.taps}))
    return logits


def summary_taps(names: Row[str]) -> tuple[Tap, ...]:
    """Of a model's values those that a summary is made of: statistics of what layers add, and of the stream."""
    ends = (".hook_attn_out", ".hook_mlp_out", ".hook_resid_post")
    return tuple(Tap(name, "stats") for name in names if name.endswith(ends))
