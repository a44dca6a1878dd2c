"""Formats of the KV cache: rows of d values, written one token and head at a time.

Law: encode is what a device must do, to the bit; the cache is written in the format first and read back, also within a
step. Rounding is to nearest, ties to even. q8_0: per 32 values a half d = amax / 127 (rounded to half), then int8
q = clip(rint(x · (1 / d)), -127, 127) with the rounded d; d = 0 stores zeros; value = q · d. All in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pellucid.formats.floats import F16


@dataclass(frozen=True)
class RowFormat:
    """A format of the KV cache."""

    name: str
    block: int
    nbytes: int
    """Bytes in a block."""
    decode: Callable[[NDArray[np.uint8]], NDArray[np.float32]]
    """(n, row_bytes(d)) → (n, d)."""
    encode: Callable[[NDArray[np.float32]], NDArray[np.uint8]]
    """(n, d) → (n, row_bytes(d))."""

    def row_bytes(self, d: int) -> int:
        """Bytes of a row of d values. Raises ValueError when d is not whole blocks."""
        if d % self.block:
            raise ValueError(f"a head of {d} values is not whole blocks of {self.block} ({self.name})")
        return d // self.block * self.nbytes


def _encode_q8_0(rows: NDArray[np.float32]) -> NDArray[np.uint8]:
    n, width = rows.shape
    x = np.ascontiguousarray(rows, dtype=np.float32).reshape(-1, 32)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        half = (np.abs(x).max(axis=1, keepdims=True) / np.float32(127)).astype(np.float16)
        d = half.astype(np.float32)
        inverse = np.where(d > 0, np.float32(1) / d, np.float32(0))
        q = np.clip(np.rint(x * inverse), -127, 127).astype(np.int8)
    return np.concatenate([half.view(np.uint8), q.view(np.uint8)], axis=1).reshape(n, width // 32 * 34)


def _decode_q8_0(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = np.ascontiguousarray(rows).reshape(-1, 34)
    d = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    q = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    return (q * d).reshape(rows.shape[0], rows.shape[1] // 34 * 32)


KV_F16 = RowFormat("f16", 1, 2, F16.decode_rows, F16.encode_rows)
KV_Q8_0 = RowFormat("q8_0", 32, 34, _decode_q8_0, _encode_q8_0)

KV_FORMATS: dict[str, RowFormat] = {f.name: f for f in (KV_F16, KV_Q8_0)}
