"""A plan with taps: the same step, and what was asked to be seen of its values.

Law: a tap never changes a bit. A patch may, which is why only forks have any: between two of the plan's pieces Python
is handed the value's own memory, and never while a native call runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from pellucid import _core
from pellucid.devices.base import Batch, Tap
from pellucid.devices.lower import Lowered
from pellucid.errors import EngineError
from pellucid.graph.patch import SUFFIX

F32 = NDArray[np.float32]
Hook = Callable[[F32], None]
"""Called with (rows, *shape) of a value, which it may write to."""


class TappedPlan:
    """Made by CpuDevice.plan."""

    def __init__(
        self, plan: _core.Plan, lowered: Lowered, slots: Mapping[str, int], taps: Mapping[Tap, int], vocab: int
    ) -> None:
        self._plan = plan
        self._slots = slots
        self.lowered = lowered
        self.width = plan.tap_width
        self._shapes: dict[Tap, tuple[int, tuple[int, ...]]] = {}
        self._patches: list[tuple[int, str, tuple[int, ...], bool]] = []
        self._logits = np.empty((1, vocab), np.float32)
        for at, record in enumerate(lowered.records):
            if record.kind == "tap" and record.tap is not None:
                self._shapes[record.tap] = (taps[record.tap], _shape(record.tap, record.reads[0].shape))
            elif record.kind == "patch" and record.out is not None:
                name = record.out.name.removesuffix(SUFFIX)
                self._patches.append((at, name, record.out.shape, record.selected))

    @property
    def scratch_bytes(self) -> int:
        """Memory of the plan's own."""
        return self._plan.scratch_bytes

    def of(self, seen: F32, tap: Tap) -> F32:
        """Of what `run` gave, the numbers of one tap, (rows, *shape of its form)."""
        at, shape = self._shapes[tap]
        size = int(np.prod(shape, dtype=np.int64))
        return seen[:, at : at + size].reshape(len(seen), *shape)

    def run(self, batch: Batch, rows: NDArray[np.int32], hooks: Mapping[str, Hook] | None = None) -> tuple[F32, F32]:
        """One step: logits as CpuDevice.run gives, and (len(rows), width) of what the taps saw in those rows.

        hooks: what is done to the values of the plan's patches, by name, over all rows of the batch (over those whose
        logits are wanted, behind their choice).
        """
        wanted = len(batch.logit_rows)
        if wanted > len(self._logits):
            self._logits = np.empty((wanted, self._logits.shape[1]), np.float32)
        seen = np.empty((len(rows), self.width), np.float32)
        done = 0
        for at, name, shape, selected in self._patches:
            self._run(batch, rows, seen, done, at + 1)
            done = at + 1
            if hooks and name in hooks:
                slot = self._slots[name + SUFFIX]
                count = wanted if selected else len(batch.tokens)
                if slot == _core.RESULT:
                    value = self._logits[:count]
                else:
                    value = self._plan.value(slot, count, int(np.prod(shape, dtype=np.int64)))
                whole = value.reshape(count, *shape)  # a copy where rows lie apart
                hooks[name](whole)
                if not np.shares_memory(whole, value):
                    value[:] = whole.reshape(count, -1)
        self._run(batch, rows, seen, done, self._plan.ops)
        return self._logits[:wanted], seen

    def _run(self, batch: Batch, rows: NDArray[np.int32], seen: F32, first: int, end: int) -> None:
        try:
            self._plan.run_part(
                batch.tokens,
                batch.positions,
                batch.seq_starts,
                batch.page_tables,
                batch.logit_rows,
                self._logits,
                rows,
                seen,
                first,
                end,
            )
        except ValueError as e:
            raise EngineError(str(e)) from e


def _shape(tap: Tap, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of what a tap gives for one row of a value."""
    match tap.form:
        case "row":
            return shape
        case "sample":
            return (tap.count,)
        case "stats":
            return (5,)
        case "topk":
            return (2, tap.count)
