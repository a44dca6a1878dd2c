"""What this machine has: processor, cores, memory, and how fast memory is read.

Law: facts are read from the system or measured here; nothing is guessed from a model's name.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pellucid.config import available_cores, available_memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8")
"""Flags of /proc/cpuinfo that decide which kernels can run."""


@dataclass(frozen=True)
class Machine:
    """Facts about this machine."""

    processor: str
    flags: tuple[str, ...]
    cores: int
    """Cores this process may run on."""
    cores_online: int
    memory: int
    """Bytes of memory in all."""
    memory_free: int
    """Bytes that can be had without swapping, within the control group's limit."""


def machine() -> Machine:
    """Read the facts."""
    processor, flags = platform.processor() or platform.machine(), ()
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            processor = value.strip()
        if key.strip() in ("flags", "Features"):
            have = set(value.split())
            flags = tuple(f for f in FLAGS if f in have)
            break
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(processor, flags, available_cores(), os.cpu_count() or 1, total, min(total, available_memory()))


def read_bandwidth(threads: int) -> float:
    """Bytes a second that `threads` threads read from memory together: the best of three reads, about 0.2 s in all."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    def read(values: NDArray[np.float32]) -> float:
        return float(np.dot(values, values))

    threads = min(threads, 16)
    arrays = [np.ones(1 << 24, np.float32) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            began = time.perf_counter()
            list(pool.map(read, arrays))
            best = max(best, sum(a.nbytes for a in arrays) / (time.perf_counter() - began))
    return best


def busy(cores: int) -> bool:
    """Whether other programs compete for the cores: more are waiting to run than there are."""
    return os.getloadavg()[0] > cores + 0.5


def huge_pages() -> str | None:
    """Setting of transparent huge pages: always, madvise or never; None where there is no such thing."""
    for line in _lines("/sys/kernel/mm/transparent_hugepage/enabled"):
        return line.partition("[")[2].partition("]")[0] or None
    return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
