"""What a step must do: bytes it must read and operations it must make, for the whole of it and for each op of the plan.

Law: counts come from the plan's records and the model's shapes, never from a clock. The demand of a step, which makes
the roofline, is what no engine can avoid: each weight that multiplies once (as the file stores it; of the input
embedding, whose rows are looked up, nothing), the keys and values that its rows see, and two operations a parameter
and row. Of a mixture's experts those count that rows are given to: for one row exactly, for several as many different
ones as are to be expected where all are equally likely. The traffic of an op, which the profile shows, also counts its
rows in and out, and the products of attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from pellucid.bench.peaks import Peaks
from pellucid.devices.cpu import CpuDevice
from pellucid.devices.lower import Record
from pellucid.formats import FORMATS


@dataclass(frozen=True)
class Work:
    """Bytes and operations."""

    nbytes: float = 0
    ops: float = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.nbytes + other.nbytes, self.ops + other.ops)

    def seconds(self, peaks: Peaks) -> float:
        """The least time it can take."""
        return max(self.nbytes / peaks.bandwidth, self.ops / peaks.int8)

    def bound(self, peaks: Peaks) -> str:
        """What sets that time: "memory" or "int8"."""
        return "memory" if self.nbytes / peaks.bandwidth >= self.ops / peaks.int8 else "int8"


NOTHING = Work()


@dataclass(frozen=True)
class Rows:
    """The rows of one step: (first position, rows) of each sequence, and of how many rows logits are wanted."""

    spans: tuple[tuple[int, int], ...]
    wanted: int

    @property
    def count(self) -> int:
        """Rows over all sequences."""
        return sum(n for _, n in self.spans)


class PlanWork:
    """The work of the records of a device's plan."""

    def __init__(self, device: CpuDevice) -> None:
        self.lowered = device.lowered
        geometry = device.geometry
        self._token_bytes = geometry.bytes_per_token / geometry.layers
        self._weights = {
            name: (FORMATS[m.format].row_bytes(m.cols) * m.rows, m.rows * m.cols) for name, m in device.matrices.items()
        }
        """Bytes and parameters; of experts', those of one."""
        self._experts = {name: m.count for name, m in device.matrices.items()}

    def demand(self, rows: Rows) -> Work:
        """What the step must read and multiply, whoever computes it."""
        return sum((self._demand(r, rows) for r in self.lowered.records), NOTHING)

    def traffic(self, record: Record, rows: Rows) -> Work:
        """What an op reads, writes and computes."""
        sizes = self.lowered.row_bytes
        moved = sum(sizes[v.name] for v in (*record.needs(), *record.writes())) * _count(record, rows)
        work = self._demand(record, rows) + Work(moved)
        if record.kind in ("store_kv", "rope_store_kv"):
            work += Work(self._token_bytes * rows.count)
        if record.kind == "attention" and record.out is not None:
            keys = sum(_pairs(start, n, record.window) for start, n in rows.spans)
            work += Work(0, 4 * record.out.size * keys)
        return work

    def _demand(self, record: Record, rows: Rows) -> Work:
        if record.kind == "linear":
            count = _count(record, rows)
            if not count:
                return NOTHING
            weights = [self._weights[part.weight] for part in record.parts]
            return Work(sum(nbytes for nbytes, _ in weights), 2 * count * sum(n for _, n in weights))
        if record.kind in ("experts", "expert_linear"):
            weights = [self._weights[part.weight] for part in record.parts]
            top, experts = record.groups, self._experts[record.parts[0].weight]
            met = experts * (1 - (1 - top / experts) ** rows.count) if rows.count > 1 else top
            return Work(met * sum(nbytes for nbytes, _ in weights), 2 * rows.count * top * sum(n for _, n in weights))
        if record.kind == "attention":
            return Work(self._token_bytes * sum(_keys(start, n, record.window) for start, n in rows.spans))
        return NOTHING


def _count(record: Record, rows: Rows) -> int:
    return rows.wanted if record.selected else rows.count


def _keys(start: int, rows: int, window: int) -> int:
    """Keys that rows start .. start + rows - 1 see, each counted once."""
    return start + rows - (max(0, start + 1 - window) if window else 0)


def _pairs(start: int, rows: int, window: int) -> int:
    """Pairs of a row and a key it sees."""
    full = rows * start + rows * (rows + 1) // 2
    if not window:
        return full
    lost_first, lost_last = start + 1 - window, start + rows - window
    first = max(1, lost_first)
    return full - ((first + lost_last) * (lost_last - first + 1) // 2 if lost_last >= first else 0)
