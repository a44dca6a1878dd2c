"""Pooling: from the hidden states of a prompt to one vector, its embedding.

Law: each row is added once, in the order of positions, one float32 sum a feature; so the bits are the prompt's alone,
whatever chunks its rows came in, whoever ran beside it, and whether it was preempted. A row can only be added in the
step that computes it: the mean takes nothing from the prefix cache, and the last row all that comes before it.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pellucid.devices.base import Tap
from pellucid.engine.watch import Look
from pellucid.errors import EngineError
from pellucid.graph.hidden import HIDDEN

F32 = NDArray[np.float32]
PoolingKind = Literal["mean", "last"]
"""mean: of all hidden states of the prompt. last: that of its last token, which has seen all others."""
KINDS: tuple[PoolingKind, ...] = ("mean", "last")


class Pooling(Look):
    """The sum of the hidden states that one sequence asks for. The engine's thread owns it until the FinishEvent."""

    taps = (Tap(HIDDEN),)

    def __init__(self, kind: PoolingKind, prompt_len: int) -> None:
        super().__init__()
        self.kind: PoolingKind = kind
        self.next = prompt_len - 1 if kind == "last" else 0
        """Position of the next row that is added; those before it need not be computed again."""
        self._end = prompt_len
        self._sum: F32 | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """As in Look: the rows of the prompt that are not added yet."""
        return max(start, self.next), min(end, self._end)

    def take(self, positions: NDArray[np.int32], values: dict[Tap, F32]) -> None:
        """As in Look: add the rows."""
        rows = values[self.taps[0]]
        if self._sum is None:
            self._sum, rows = rows[0].copy(), rows[1:]
        for row in rows:
            self._sum += row
        self.next += len(positions)

    def check(self) -> None:
        """Raise EngineError if the rows so far could not be seen, or hold what is no number."""
        if self.error is not None:
            raise EngineError(f"the hidden states of this prompt could not be had: {self.error}")
        if self._sum is not None and not np.isfinite(self._sum).all():
            raise EngineError("the model gave hidden states that are no numbers, so there is no embedding")

    def vector(self, dimensions: int | None = None) -> F32:
        """The embedding (dimensions,) of length 1: of the pooled state its first numbers; None: all of them.

        Raises EngineError: not all rows were computed.
        """
        if self._sum is None or self.next < self._end:
            raise EngineError(f"the request ended after {self.next} of {self._end} tokens, so there is no embedding")
        # The mean points where the sum does, so at length 1 they are the same; fsum is exact, hence in no order.
        vector = self._sum[:dimensions].astype(np.float64)
        length = math.sqrt(math.fsum(np.square(vector).tolist()))
        return (vector / length if length else vector).astype(np.float32)
