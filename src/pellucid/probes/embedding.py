"""Embeddings: what the vectors of tokens are near to, and how they lie.

Law: vectors are the table's own, decoded; nothing is approximate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pellucid import _core
from pellucid.devices.cpu import CpuDevice
from pellucid.errors import RequestError

if TYPE_CHECKING:
    from pellucid.llm import LLM

F32 = NDArray[np.float32]
BLOCK = 4096
"""Rows of the table that are decoded at a time."""


@dataclass(frozen=True)
class Neighbours:
    """Embeddings of some tokens, and the nearest others."""

    vectors: F32
    """(tokens, d_model)."""
    near: list[list[tuple[int, float]]]
    """For each the nearest (id, cosine), itself left out."""


def vectors_of(llm: LLM, ids: Sequence[int]) -> F32:
    """Embeddings (tokens, d_model) of some tokens."""
    table = _table(llm)
    return np.stack([table.row(i) for i in ids])


def _table(llm: LLM) -> _core.Matrix:
    if not isinstance(llm.device, CpuDevice):
        raise RequestError(f"{llm.name} runs on a device whose weights cannot be looked at")
    return llm.device.matrices["embed.W_E"]


def neighbours(llm: LLM, ids: Sequence[int], top: int) -> Neighbours:
    """Look some tokens up, and find the nearest by cosine among all that the tokenizer knows."""
    table, vectors = _table(llm), vectors_of(llm, ids)
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    best_ids, best = np.empty((len(ids), 0), np.int64), np.empty((len(ids), 0), np.float32)
    size = min(table.rows, llm.tokenizer.vocab_size)
    for first in range(0, size, BLOCK):
        rows = np.stack([table.row(i) for i in range(first, min(size, first + BLOCK))])
        cosine = unit @ (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)).T
        for i, id in enumerate(ids):
            if first <= id < first + len(rows):
                cosine[i, id - first] = -2
        here = np.broadcast_to(np.arange(first, first + len(rows)), cosine.shape)
        best_ids = np.concatenate([best_ids, here], axis=1)
        best = np.concatenate([best, cosine], axis=1)
        order = np.argsort(-best, axis=1, kind="stable")[:, :top]
        best_ids, best = np.take_along_axis(best_ids, order, axis=1), np.take_along_axis(best, order, axis=1)
    near = [
        [(int(n), float(c)) for n, c in zip(row, cosines, strict=True)]
        for row, cosines in zip(best_ids, best, strict=True)
    ]
    return Neighbours(vectors, near)


def principal(vectors: F32) -> NDArray[np.float64]:
    """Places (tokens, 2) along the two directions of greatest variance (PCA); signs are such that the first token
    stands at the right and on top."""
    centered = vectors.astype(np.float64) - vectors.mean(axis=0)
    u, s, _ = np.linalg.svd(centered, full_matrices=False)
    places = (u * s)[:, :2]
    if places.shape[1] < 2:
        places = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
    return places * np.where(places[0] < 0, -1.0, 1.0)
