"""Format and Weight: what the bytes of a weight mean.

Law: a format is a row of a table. `decode` is the truth that every kernel is tested against, value by value; `encode`
is round-to-nearest and decent. Nothing here knows a file or a vendor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 20
"""Elements decoded at a time, so that temporaries stay small beside the result."""


@dataclass(frozen=True)
class Format:
    """How a run of `block` values is stored in `nbytes` bytes, little-endian."""

    name: str
    block: int
    nbytes: int
    ggml_type: int | None
    safetensors_dtype: str | None
    decode: Callable[[NDArray[np.uint8]], NDArray[np.float32]]
    """(n_blocks, nbytes) → (n_blocks, block): the truth."""
    encode: Callable[[NDArray[np.float32]], NDArray[np.uint8]]
    """(n_blocks, block) → (n_blocks, nbytes)."""
    native: bool = True
    """Whether kernels multiply in it; plain numbers that they do not take become F32 at load."""

    def row_bytes(self, cols: int) -> int:
        """Bytes of a row of `cols` values. Raises ValueError when the row is not whole blocks."""
        if cols % self.block:
            raise ValueError(f"a row of {cols} values is not whole blocks of {self.block} ({self.name})")
        return cols // self.block * self.nbytes

    def decode_rows(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """(n, row_bytes(cols)) → (n, cols)."""
        blocks = np.ascontiguousarray(rows).reshape(-1, self.nbytes)
        return self.decode(blocks).reshape(rows.shape[0], rows.shape[1] // self.nbytes * self.block)

    def encode_rows(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        """(n, cols) → (n, row_bytes(cols))."""
        width = self.row_bytes(rows.shape[1])
        blocks = np.ascontiguousarray(rows, dtype=np.float32).reshape(-1, self.block)
        return self.encode(blocks).reshape(rows.shape[0], width)


@dataclass(frozen=True)
class Weight:
    """A named tensor: `shape` is (rows, cols) = (out, in), row-major, or (n,), which is stored as one row. Those of
    experts have one more axis in front."""

    name: str
    shape: tuple[int, ...]
    format: Format
    data: NDArray[np.uint8]
    """(rows, row_bytes); may be a read-only view of a mapped file."""

    def to_float32(self) -> NDArray[np.float32]:
        """Decoded values, shape `shape`."""
        rows, cols = self.data.shape[0], self.shape[-1]
        out = np.empty((rows, cols), np.float32)
        step = max(1, _CHUNK // max(1, cols))
        for r in range(0, rows, step):
            out[r : r + step] = self.format.decode_rows(self.data[r : r + step])
        return out.reshape(self.shape)

    @staticmethod
    def from_float32(name: str, values: NDArray[np.float32], format: Format) -> Weight:
        """Encode `values`, of the weight's shape."""
        shape = tuple(int(n) for n in values.shape)
        rows = values.reshape(prod(shape[:-1]), shape[-1])
        return Weight(name, shape, format, format.encode_rows(rows))
