"""From the work of a step to the flat arrays a device takes.

Law: page tables are kept, not rebuilt: each running sequence has a row that changes only when it gets or loses pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pellucid.devices.base import Batch
from pellucid.engine.sequence import Sequence
from pellucid.engine.steps import Blocked


@dataclass(slots=True)
class Work:
    """The rows of one sequence in one step."""

    seq: Sequence
    start: int
    """First position that is computed."""
    rows: int
    sample: bool
    """True if the last row's logits draw a token."""
    score_from: int = 0
    score_rows: int = 0
    """Rows score_from .. score_from + score_rows - 1 (as positions) want logits for the prompt's logprobs."""


@dataclass(slots=True)
class Step:
    """What one step computes."""

    number: int
    work: list[Work] = field(default_factory=lambda: list[Work]())
    width: int = 0
    """Longest page table in the step."""
    blocked: Blocked = ""
    """Why nobody more was admitted."""

    @property
    def rows(self) -> int:
        """Rows over all sequences."""
        return sum(w.rows for w in self.work)


class PageTables:
    """int32 (max_seqs, max_pages): the page tables of the running sequences, -1 where there is no page."""

    def __init__(self, max_seqs: int, max_pages: int) -> None:
        self.table: NDArray[np.int32] = np.full((max_seqs, max_pages), -1, np.int32)
        self._slots = list(range(max_seqs - 1, -1, -1))

    @property
    def room(self) -> int:
        """Rows that are not taken."""
        return len(self._slots)

    def open(self, seq: Sequence) -> None:
        """Give `seq` a row and write its pages."""
        seq.slot = self._slots.pop()
        self.extend(seq, seq.pages, 0)

    def extend(self, seq: Sequence, pages: list[int], at: int) -> None:
        """Write `pages` into the row of `seq`, from entry `at`."""
        if pages:
            self.table[seq.slot, at : at + len(pages)] = pages

    def close(self, seq: Sequence) -> None:
        """Take the row of `seq` back; its first len(seq.pages) entries are cleared."""
        self.table[seq.slot, : len(seq.pages)] = -1
        self._slots.append(seq.slot)
        seq.slot = -1


def batch_of(step: Step, tables: PageTables) -> Batch:
    """Build the ragged arrays of a step: sequences in the order of step.work, logit rows ascending."""
    tokens: list[int] = []
    positions: list[int] = []
    starts = [0]
    slots: list[int] = []
    logits: list[int] = []
    row = 0
    for work in step.work:
        seq, start, rows = work.seq, work.start, work.rows
        if rows == 1:
            tokens.append(seq.tokens[start])
            positions.append(start)
        else:
            tokens += seq.tokens[start : start + rows]
            positions += range(start, start + rows)
        if work.score_rows:
            first = row + work.score_from - start
            logits += range(first, first + work.score_rows)
        row += rows
        if work.sample:
            logits.append(row - 1)
        starts.append(row)
        slots.append(seq.slot)
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        seq_starts=np.array(starts, np.int32),
        page_tables=tables.table[slots, : step.width],
        logit_rows=np.array(logits, np.int32),
    )
