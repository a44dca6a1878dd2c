"""Memory of a plan: which values share which bytes.

Law: two values overlap in memory only if their lives do not overlap in time; an op's inputs and outputs never share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGN = 64
"""Bytes: a cache line and a vector register."""


@dataclass(frozen=True)
class Life:
    """A buffer's bytes a row and the steps (indices of ops, both included) in which it is needed."""

    nbytes: int
    first: int
    last: int


def place(lives: Sequence[Life]) -> tuple[list[int], int]:
    """Offsets (bytes a row, multiples of ALIGN) of the buffers, and the bytes a row of the whole arena.

    Greedy by size: the largest first, each at the lowest offset that is free during its life (Pisarchyk & Lee 2020).
    """
    offsets = [0] * len(lives)
    placed: list[int] = []
    total = 0
    for i in sorted(range(len(lives)), key=lambda j: (-lives[j].nbytes, lives[j].first, j)):
        life = lives[i]
        size = -(-life.nbytes // ALIGN) * ALIGN
        at = 0
        for j in sorted((j for j in placed if _meet(life, lives[j])), key=lambda j: offsets[j]):
            if at + size <= offsets[j]:
                break
            at = max(at, offsets[j] + -(-lives[j].nbytes // ALIGN) * ALIGN)
        offsets[i] = at
        placed.append(i)
        total = max(total, at + size)
    return offsets, total


def _meet(a: Life, b: Life) -> bool:
    return a.first <= b.last and b.first <= a.last
