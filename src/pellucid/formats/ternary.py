"""Ternary weights in superblocks of 256: TQ1_0, five digits to a byte, and TQ2_0, four pairs of bits to a byte.

Law: decode gives the same bits as ggml's dequantize (the `gguf` package is the witness); layouts are those of
ggml-common.h; encode is the ternary approximation of least squared error, so ternary weights come back as they were.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pellucid.formats.base import Format
from pellucid.formats.bits import Bytes, Floats, half_at, half_bytes, pack_planes, planes

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
_DIGITS = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
"""Bytes of TQ1_0 from, to, and the digits in each: planes as long as the run of bytes."""


def _fit(values: Floats) -> tuple[Bytes, Bytes]:
    """Bytes of d, and codes 0..2 (n, 256), of the nearest d · {-1, 0, 1}.

    If the k largest magnitudes become d, d is their mean and the gain (their sum)² / k; the best k is taken.
    """
    ordered = -np.sort(-np.abs(values.astype(np.float64)), axis=1)
    sums = ordered.cumsum(axis=1)
    count = np.arange(1, values.shape[1] + 1, dtype=np.float64)
    best: NDArray[np.intp] = np.argmax(sums * sums / count, axis=1)[:, None]
    d = np.take_along_axis(sums, best, axis=1) / (best + 1)
    chosen = np.abs(values) >= np.take_along_axis(ordered, best, axis=1)
    q = np.where(chosen, np.sign(values), 0).astype(np.int8) + np.int8(1)
    return half_bytes(d.astype(np.float32)), q.view(np.uint8)


def _values(d: Floats, q: Bytes) -> Floats:
    with np.errstate(invalid="ignore"):
        return d * (q.view(np.int8) - np.int8(1)).astype(np.float32)


# TQ1_0: 52 bytes, each the fraction 0.t₀t₁t₂t₃t₄ in base 3, in 256ths rounded up | half d; value = d · (t - 1)


def _decode_tq1_0(blocks: Bytes) -> Floats:
    digits: list[Bytes] = []
    for start, end, count in _DIGITS:
        # Times 3^i, modulo 1, brings digit i to the front.
        fraction = blocks[:, None, start:end] * _POWERS[:count]
        digits.append(((fraction.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)).astype(np.uint8))
    q = np.concatenate([part.reshape(len(blocks), part.shape[1] * part.shape[2]) for part in digits], axis=1)
    return _values(half_at(blocks, 52), q)


def _encode_tq1_0(values: Floats) -> Bytes:
    d, q = _fit(values)
    parts: list[Bytes] = []
    at = 0
    for start, end, count in _DIGITS:
        run = end - start
        digits = q[:, at : at + run * count].reshape(-1, count, run).astype(np.uint16)
        number = (digits * _POWERS[::-1][:count]).sum(axis=1, dtype=np.uint16)
        parts.append(((number.astype(np.uint32) * 256 + 242) // 243).astype(np.uint8))
        at += run * count
    return np.concatenate([*parts, d], axis=1)


# TQ2_0: 64 bytes of pairs, planes of 32 | half d; value = d · (q - 1)


def _decode_tq2_0(blocks: Bytes) -> Floats:
    return _values(half_at(blocks, 64), planes(blocks[:, :64], 2, 32))


def _encode_tq2_0(values: Floats) -> Bytes:
    d, q = _fit(values)
    return np.concatenate([pack_planes(q, 2, 32), d], axis=1)


TQ1_0 = Format("tq1_0", 256, 54, 34, None, _decode_tq1_0, _encode_tq1_0)
TQ2_0 = Format("tq2_0", 256, 66, 35, None, _decode_tq2_0, _encode_tq2_0)
