"""Small pieces that the block formats share: bits of bytes, halves, nibbles, extremes.

Law: arrays are (blocks, bytes or values); nothing here knows a format.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Ints = NDArray[np.int8]

_F16_MAX = np.float32(65504.0)


def bits(packed: Bytes, shift: int, mask: int) -> Bytes:
    """The bits of each byte from `shift` on, under `mask`."""
    return (packed >> np.uint8(shift)) & np.uint8(mask)


def up(values: Bytes, shift: int) -> Bytes:
    """Each byte moved up by `shift` bits."""
    return values << np.uint8(shift)


def half_at(blocks: Bytes, at: int) -> Floats:
    """The half at byte `at` of each block, shape (n, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def half_bytes(values: Floats) -> Bytes:
    """(n, 1) → (n, 2): the nearest half, kept finite."""
    return np.clip(values, -_F16_MAX, _F16_MAX).astype(np.float16).view(np.uint8)


def inverse(d: Floats) -> Floats:
    """1 / d, and 0 where d is 0."""
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def nibbles(packed: Bytes) -> Bytes:
    """(…, n) → (…, 2n): the low halves, then the high halves."""
    return np.concatenate([bits(packed, 0, 15), bits(packed, 4, 15)], axis=-1)


def pack_nibbles(q: Bytes) -> Bytes:
    """The other way: (…, 2n) → (…, n)."""
    half = q.shape[-1] // 2
    return bits(q[..., :half], 0, 15) | up(q[..., half:], 4)


def planes(packed: Bytes, width: int, run: int) -> Bytes:
    """(n, bytes) → (n, bytes · 8 / width): runs of `run` bytes, each the lowest `width` bits of all, then the next."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    fields = (packed.reshape(len(packed), packed.shape[1] // run, 1, run) >> shifts) & np.uint8((1 << width) - 1)
    return fields.reshape(len(packed), packed.shape[1] * 8 // width)


def pack_planes(q: Bytes, width: int, run: int) -> Bytes:
    """The other way; q must lie below 2^width."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    fields = q.reshape(len(q), q.shape[1] * width // 8 // run, 8 // width, run) << shifts
    return np.bitwise_or.reduce(fields, axis=2).reshape(len(q), q.shape[1] * width // 8)


def extreme(values: Floats) -> Floats:
    """The value of largest magnitude of each row, with its sign, shape (n, 1)."""
    at = np.abs(values).argmax(axis=1)[:, None]
    return np.take_along_axis(values, at, axis=1)
