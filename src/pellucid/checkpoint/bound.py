"""Bound: where in a file's tensors a canonical weight lies, and how it comes out of them.

Law: a weight that lies in one piece is a view of the file; any other is put together when it is asked for, one weight
at a time. Which form a weight has is decided in names.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from pellucid.checkpoint.mapped import Stored
from pellucid.formats import FORMATS, Format

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Bound:
    """A weight that is one tensor, or several, one behind the other (one for each expert)."""

    parts: tuple[Stored, ...]
    shape: tuple[int, ...]

    @property
    def format(self) -> Format:
        """Format of the weight as `data` gives it."""
        return self.parts[0].format

    @property
    def nbytes(self) -> int:
        """Bytes of the weight as stored."""
        return prod(self.shape[:-1]) * self.format.row_bytes(self.shape[-1])

    @property
    def place(self) -> int:
        """Where it begins in its file, to sort by."""
        return self.parts[0].offset

    def data(self) -> Bytes:
        """(rows, row_bytes): a view of the file, or a copy."""
        views = [part.data() for part in self.parts]
        return views[0] if len(views) == 1 else np.concatenate(views)


@dataclass(frozen=True)
class Sliced(Bound):
    """Every `step`-th row of each of the tensor's matrices, from `first` on; `turned`: they lie as (in, out). Or values
    of its vectors, where it holds vectors."""

    first: int
    step: int
    turned: bool
    matrix: bool

    def data(self) -> Bytes:
        """A copy."""
        (tensor,) = self.parts
        rows = self.shape[-2] if self.matrix else self.shape[-1]
        taken = slice(self.first, self.first + rows * self.step, self.step)
        if not self.turned:
            total = tensor.shape[-2] if self.matrix else tensor.shape[-1]
            units = tensor.data().reshape(
                -1, total, tensor.nbytes // prod(tensor.shape[:-1]) if self.matrix else _unit(tensor)
            )
            chosen = np.ascontiguousarray(units[:, taken])
            return chosen.reshape((-1, chosen.shape[2]) if self.matrix else (len(chosen), -1))
        units = tensor.data().reshape(-1, tensor.shape[-2], tensor.shape[-1], _unit(tensor))
        columns = np.ascontiguousarray(units[:, :, taken].swapaxes(1, 2))
        return columns.reshape(-1, columns.shape[2] * columns.shape[3])


def _unit(tensor: Stored) -> int:
    return tensor.format.nbytes


@dataclass(frozen=True)
class Blocks(Bound):
    """Rows as in Sliced, of MXFP4 whose codes and exponents lie in two tensors: (…, blocks, 16), a byte for the codes
    of two neighbouring values, and (…, blocks)."""

    first: int
    step: int

    @property
    def format(self) -> Format:
        """MXFP4, as the kernels read it."""
        return FORMATS["mxfp4"]

    def data(self) -> Bytes:
        """A copy."""
        codes, exponents = self.parts
        rows = self.shape[-2]
        taken = slice(self.first, self.first + rows * self.step, self.step)
        lead, (total, blocks) = prod(codes.shape[:-3]), codes.shape[-3:-1]
        pairs = codes.data().reshape(lead, total, blocks, 16)[:, taken]
        four = np.uint8(4)
        values = np.stack([pairs & np.uint8(15), pairs >> four], axis=-1).reshape(lead, rows, blocks, 32)
        packed = values[..., :16] | values[..., 16:] << four
        powers = exponents.data().reshape(lead, total, blocks, 1)[:, taken]
        return np.concatenate([powers, packed], axis=-1).reshape(lead * rows, blocks * 17)
