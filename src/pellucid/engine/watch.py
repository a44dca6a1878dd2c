"""Watching: what is seen of a sequence's values while it is served.

Law: nobody who watches changes what is served, or waits for it. What a Watch sees goes to a ring of bounded size; who
reads too slowly loses the oldest, and is told how much. Rows of other sequences are never copied.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
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


class Look(ABC):
    """One who sees values of one sequence, in the step that makes them."""

    taps: tuple[Tap, ...]

    def __init__(self) -> None:
        self.error: str | None = None
        """Why nothing more is seen; None: all is well."""

    @abstractmethod
    def span(self, start: int, end: int) -> tuple[int, int]:
        """Of the positions start to end, not included, the first that is wanted and the one behind the last."""

    @abstractmethod
    def take(self, positions: NDArray[np.int32], values: dict[Tap, F32]) -> None:
        """See some rows: their positions, and for each tap (rows, *shape of its form). Called if there are any."""


class Watch(Look):
    """What somebody wants to see of one sequence. Set Sequence.watch before the sequence is added."""

    def __init__(self, taps: Row[Tap], *, capacity: int = 8 << 20, every: bool = True) -> None:
        """Watch.

        Args:
            taps: values; names without wildcards.
            capacity: bytes of the ring.
            every: all rows; False: only the last of each step, that from which a token is drawn.
        """
        super().__init__()
        self.taps = tuple(taps)
        self.every = every
        self.ring = Ring(capacity)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """As in Look."""
        return (start if self.every else end - 1), end

    def take(self, positions: NDArray[np.int32], values: dict[Tap, F32]) -> None:
        """As in Look: put them on the ring."""
        self.ring.push(Seen(positions.copy(), {tap: value.copy() for tap, value in values.items()}))


def run_watched(device: Device, step: Step, batch: Batch) -> F32:
    """Device.run, and what is seen goes to those who look. A look that fails is ended, and the step is run without.

    If there is no such plan the watches go first: what they ask for is up to people, and an embedding needs its own.
    """
    looks = [
        (look, first, work.start, work.start + work.rows)
        for work, first in zip(step.work, batch.seq_starts.tolist(), strict=False)
        for look in work.seq.looks
        if look.error is None
    ]
    if not looks:
        return device.run(batch)
    try:
        if not isinstance(device, Watchable):
            raise RequestError("this device's values cannot be looked at")
        plan = device.plan(tuple(dict.fromkeys(tap for look, *_ in looks for tap in look.taps)))
    except Exception as error:
        watches = [look for look, *_ in looks if isinstance(look, Watch)]
        for look in watches or [look for look, *_ in looks]:
            look.error = str(error)
        log.warning("what was to be watched cannot be, and is left out: %s", error)
        return run_watched(device, step, batch)
    seen_by: list[tuple[Look, int, int]] = []
    for look, first, start, end in looks:
        a, b = look.span(start, end)
        if a < b:
            seen_by.append((look, first + a - start, first + b - start))
    rows = np.concatenate([np.arange(a, b, dtype=np.int32) for _, a, b in seen_by] or [np.empty(0, np.int32)])
    logits, seen = plan.run(batch, rows)
    at = 0
    for look, a, b in seen_by:
        mine = seen[at : at + b - a]
        at += b - a
        look.take(batch.positions[a:b], {tap: plan.of(mine, tap) for tap in look.taps})
    return logits


def summary_taps(names: Row[str]) -> tuple[Tap, ...]:
    """Of a model's values those that a summary is made of: statistics of what layers add, and of the stream."""
    ends = (".hook_attn_out", ".hook_mlp_out", ".hook_resid_post")
    return tuple(Tap(name, "stats") for name in names if name.endswith(ends))
