"""What an engine asks of a device: rows in, logits out.

Law: a device knows tokens, positions and pages; it knows no sequence, no request and no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pellucid._core import Pool


@dataclass(frozen=True)
class Batch:
    """The rows of one step, ragged over sequences.

    K and V of all rows are written before attention reads them; the row at position p sees positions 0..p of its own
    sequence, bounded by the layer's window.
    """

    tokens: NDArray[np.int32]
    """(rows,) token ids, grouped by sequence."""
    positions: NDArray[np.int32]
    """(rows,) position of each row; ascending and without gaps inside a sequence."""
    seq_starts: NDArray[np.int32]
    """(sequences + 1,) rows of sequence s are seq_starts[s]:seq_starts[s + 1]."""
    page_tables: NDArray[np.int32]
    """(sequences, pages) page that holds position p is page_tables[s, p // page_size]; -1 where there is none."""
    logit_rows: NDArray[np.int32]
    """(wanted,) rows whose logits are wanted."""


TapForm = Literal["row", "sample", "stats", "topk"]
"""row: the numbers as they are. sample: `count` of them, evenly spaced. stats: mean, root mean square, least, greatest,
how many are not finite. topk: the `count` of greatest magnitude, in falling order, then their places."""


@dataclass(frozen=True)
class Tap:
    """A value that is looked at while it is made, and in what form."""

    name: str
    form: TapForm = "row"
    count: int = 0
    """Of sample and topk."""


class Tapped(Protocol):
    """A plan that also gives what its taps see."""

    width: int
    """Numbers of a watched row."""

    def run(self, batch: Batch, rows: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """One step: logits as `Device.run`, and (len(rows), width) of what the taps saw in those rows of the batch."""
        ...

    def of(self, seen: NDArray[np.float32], tap: Tap) -> NDArray[np.float32]:
        """Of what `run` gave, the numbers of one tap, (rows, *shape of its form)."""
        ...


class Device(Protocol):
    """A model loaded on one machine, with its KV cache."""

    vocab_size: int
    context: int
    page_size: int
    page_count: int
    max_rows: int
    """Most rows in one step."""

    @property
    def pool(self) -> Pool | None:
        """Threads of the core that idle between two runs, for what else a step computes."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes by part: weights, kv (the whole cache), scratch."""
        ...

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Compute one step. Returns logits (wanted, vocab_size), valid until the next run."""
        ...


@runtime_checkable
class Watchable(Protocol):
    """A device whose values can be looked at while it serves."""

    @property
    def d_model(self) -> int:
        """Numbers of a hidden state (graph.hidden.HIDDEN)."""
        ...

    def plan(self, taps: Sequence[Tap]) -> Tapped:
        """What computes the same step and shows what the taps see. Raises RequestError: no such value."""
        ...
