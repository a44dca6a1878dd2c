"""Weights of heads, packed for a report.

Law: a weight is told to a part in 65535 of the greatest of its row. A block is, for the queries from `first` on: the
greatest weight of each row (float32, little endian), the share of the head's sink (float32), then the weights, row
after row, each up to its own query: the high bytes of all of them, then the low ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pellucid.probes.attention import rows_of
from pellucid.probes.trace import Trace

F32 = NDArray[np.float32]
LEVELS = 65535


def heads_packed(trace: Trace, layer: int, heads: Sequence[int], first: int) -> dict[int, bytes]:
    """The block of each of some heads of a layer, of the queries from `first` on."""
    run, n = trace.source(), len(trace.ids)
    most = max(1, run.spare // (4 * run.chunk * n))
    out: dict[int, bytes] = {}
    for at in range(0, len(heads), most):
        some = heads[at : at + most]
        rows: list[list[F32]] = [[] for _ in some]
        for positions, weights in rows_of(run, layer, some, range(first, n)):
            for own, of_head in zip(rows, weights, strict=True):
                own += [row[: position + 1].copy() for position, row in zip(positions, of_head, strict=True)]
        out |= {head: packed(own) for head, own in zip(some, rows, strict=True)}
    return out


def packed(rows: Sequence[F32]) -> bytes:
    """The block of a head whose rows are these."""
    scales = np.array([row.max() for row in rows], "<f4")
    sinks = np.array([max(0.0, 1.0 - float(row.sum(dtype=np.float64))) for row in rows], "<f4")
    cells = np.concatenate(
        [np.rint(row / np.float32(scale or 1.0) * LEVELS) for row, scale in zip(rows, scales, strict=True)]
    )
    levels = cells.astype(np.uint16)
    high, low = (levels >> 8).astype(np.uint8), (levels & 255).astype(np.uint8)
    return scales.tobytes() + sinks.tobytes() + high.tobytes() + low.tobytes()
