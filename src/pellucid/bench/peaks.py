"""What the machine can do at most: bytes read from memory, and int8 products, by all threads together.

Law: the peaks are measured, in the same run and with as many threads as what is held against them. The loops are the
core's own (native/peaks.h): software prefetch and huge pages for reading, registers alone for products.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Self

import numpy as np

from pellucid import _core

BUFFER_BYTES = 256 << 20
"""Read in one go by all threads; more than the caches that belong to a few cores."""
BURST = 0.01
"""Seconds of one burst of products."""


@dataclass(frozen=True)
class Peaks:
    """The best of several bursts."""

    bandwidth: float
    """Bytes a second."""
    int8: float
    """Operations a second by dot instructions; a multiply-add is two."""
    tiles: float = 0.0
    """The same by matrix instructions; 0 where there are none."""

    @staticmethod
    def median(peaks: list[Peaks]) -> Peaks:
        """The median of each figure."""
        return Peaks(median(p.bandwidth for p in peaks), median(p.int8 for p in peaks), median(p.tiles for p in peaks))


class PeakMeter:
    """Measures the peaks of so many threads; a context manager. `isa` as in EngineConfig."""

    def __init__(self, threads: int, isa: str | None = None, *, nbytes: int = BUFFER_BYTES) -> None:
        self.threads = threads
        self._isa = isa
        cols = 32 << 10
        rows = max(16 * threads, nbytes // (cols // 32 * 34) // 16 * 16)
        self._memory = _core.Matrix("q8_0", rows, cols)
        self._memory.pack(np.zeros((rows, cols // 32 * 34), np.uint8), threads)
        share = self._memory.nbytes // threads // 256 * 256
        packed = self._memory.packed
        self._parts = [packed[share * i : share * (i + 1)] for i in range(threads)]
        self._pool = ThreadPoolExecutor(threads)
        self._rounds = 64
        while self._seconds(self._spin) < BURST:
            self._rounds *= 2

    def measure(self, bursts: int = 3) -> Peaks:
        """The best of so many bursts of each: about 20 ms a burst."""
        reading = min(self._seconds(self._read) for _ in range(bursts))
        spinning = min(self._seconds(self._spin) for _ in range(bursts))
        products = self._spin(0) * self.threads
        bandwidth, int8 = sum(p.nbytes for p in self._parts) / reading, 2 * products / spinning
        tiled = self._spin_tiles(0) * self.threads
        if not tiled:
            return Peaks(bandwidth, int8)
        return Peaks(bandwidth, int8, 2 * tiled / min(self._seconds(self._spin_tiles) for _ in range(bursts)))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _seconds(self, work: Callable[[int], int]) -> float:
        began = time.perf_counter()
        for _ in self._pool.map(work, range(self.threads)):
            pass
        return time.perf_counter() - began

    def _spin(self, thread: int) -> int:
        return _core.spin(self._rounds, self._isa)

    def _spin_tiles(self, thread: int) -> int:
        return _core.spin_tiles(self._rounds, self._isa)

    def _read(self, thread: int) -> int:
        _core.read(self._parts[thread], self._isa)
        return 0
