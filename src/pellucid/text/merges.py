"""Replaying the merges of a word: which pieces BPE joined, in which order.

Law: the result equals the tokenizers library's (lowest rank first, then leftmost). This explains, it never encodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Merge:
    """One step: `left` and `right` became one piece; a lower rank goes first."""

    left: str
    right: str
    rank: int


@dataclass(frozen=True)
class Part:
    """A piece that a word ended as, and the steps that made it, in the order in which they happened."""

    piece: str
    id: int
    merges: tuple[Merge, ...]


class MergeTable:
    """Ranks of merges by the ids of their parts, in sorted arrays: 16 bytes a merge."""

    def __init__(self, vocab: Mapping[str, int], keys: NDArray[np.int64]) -> None:
        """`keys` holds left id << 32 | right id of each merge, best first."""
        self._vocab = vocab
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    @classmethod
    def of_pairs(cls, vocab: Mapping[str, int], pairs: Iterable[tuple[str, ...]]) -> MergeTable:
        """Build from pairs of pieces, best first."""
        keys = [vocab[pair[0]] << 32 | vocab[pair[1]] for pair in pairs]
        return cls(vocab, np.array(keys, dtype=np.int64))

    @classmethod
    def of_ids(cls, vocab: Mapping[str, int], left: NDArray[np.int32], right: NDArray[np.int32]) -> MergeTable:
        """Build from the ids of both parts, best first."""
        return cls(vocab, left.astype(np.int64) << 32 | right.astype(np.int64))

    def rank(self, left: int, right: int) -> int | None:
        """Rank of joining two ids, or None where they do not join."""
        key = left << 32 | right
        at = int(np.searchsorted(self._keys, key))
        if at < len(self._keys) and int(self._keys[at]) == key:
            return int(self._order[at])
        return None

    def replay(self, word: str) -> list[Part]:
        """Split a word (in the vocabulary's alphabet, every character a piece) as BPE does. O(n log n)."""
        pieces: list[str | None] = list(word)
        n = len(pieces)
        after, before = list(range(1, n + 1)), list(range(-1, n - 1))
        steps: list[list[tuple[int, Merge]]] = [[] for _ in pieces]
        clock = 0
        queue: list[tuple[int, int, str, str]] = []

        def look(at: int) -> None:
            if at < 0 or after[at] >= n:
                return
            left, right = pieces[at], pieces[after[at]]
            if left is None or right is None:  # never: linked positions are alive
                return
            rank = self.rank(self._vocab[left], self._vocab[right])
            if rank is not None and left + right in self._vocab:
                heapq.heappush(queue, (rank, at, left, right))

        for at in range(n - 1):
            look(at)
        while queue:
            rank, at, left, right = heapq.heappop(queue)
            if pieces[at] != left or after[at] >= n or pieces[after[at]] != right:
                continue  # one of the two has been joined to something else since
            gone = after[at]
            pieces[at], pieces[gone] = left + right, None
            clock += 1
            steps[at] = [*steps[at], *steps[gone], (clock, Merge(left, right, rank))]
            after[at] = after[gone]
            if after[at] < n:
                before[after[at]] = at
            look(before[at])
            look(at)
        return [
            Part(piece, self._vocab[piece], tuple(step for _, step in sorted(steps[at], key=lambda item: item[0])))
            for at, piece in enumerate(pieces)
            if piece is not None
        ]
