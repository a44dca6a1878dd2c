"""Four-bit codes into a table of values: IQ4_NL and IQ4_XS (ggml's uneven table), MXFP4 (OCP's e2m1).

Law: decode gives the same bits as ggml's dequantize (the `gguf` package is the witness); layouts are those of
ggml-common.h; encode searches its scales (fit.py) and takes the nearest value.
Source of MXFP4: OCP Microscaling Formats (MX) v1.0, 5.3.3 e2m1 and 5.4.1 e8m0.
"""

from __future__ import annotations

import numpy as np

from pellucid.formats.base import Format
from pellucid.formats.bits import (
    Bytes,
    Floats,
    bits,
    extreme,
    half_at,
    half_bytes,
    inverse,
    nibbles,
    pack_nibbles,
    pack_planes,
    planes,
    up,
)
from pellucid.formats.fit import fit_table, nearest

UNEVEN: Floats = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""IQ4's values by code."""
E2M1: Floats = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""MXFP4's values by code, doubled. Both zeros are +0, as in ggml."""
_E2M1_ORDER = np.array([15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7], np.uint8)
"""Codes by ascending value."""

# IQ4_NL: half d | 16 bytes of nibbles; value = d · table[q]


def _decode_iq4_nl(blocks: Bytes) -> Floats:
    with np.errstate(invalid="ignore"):
        return half_at(blocks, 0) * UNEVEN[nibbles(blocks[:, 2:])]


def _encode_iq4_nl(values: Floats) -> Bytes:
    d = half_bytes(fit_table(values, UNEVEN))
    return np.concatenate([d, pack_nibbles(nearest(values * inverse(half_at(d, 0)), UNEVEN))], axis=1)


# IQ4_XS: half d | 2 bytes: high pairs of 8 scales | 4 bytes: their low nibbles, side by side | 128 bytes of nibbles, 16
# to a 32; value = d · (scale - 32) · table[q], per 32


def _decode_iq4_xs(blocks: Bytes) -> Floats:
    scales = planes(blocks[:, 4:8], 4, 1) | up(planes(blocks[:, 2:4], 2, 1), 4)
    q = nibbles(blocks[:, 8:].reshape(-1, 8, 16))
    with np.errstate(invalid="ignore"):
        step = half_at(blocks, 0) * (scales.view(np.int8) - np.int8(32)).astype(np.float32)
        return (step[:, :, None] * UNEVEN[q]).reshape(-1, 256)


def _encode_iq4_xs(values: Floats) -> Bytes:
    n = len(values)
    scale = fit_table(values.reshape(-1, 32), UNEVEN).reshape(n, 8)
    d = half_bytes(extreme(scale) / np.float32(-32))
    scales = np.clip(np.rint(scale * inverse(half_at(d, 0))), -32, 31)
    step = (half_at(d, 0) * scales)[:, :, None]
    q = pack_nibbles(nearest(values.reshape(n, 8, 32) * inverse(step), UNEVEN))
    raised = (scales + np.float32(32)).astype(np.uint8)
    high, low = pack_planes(bits(raised, 4, 3), 2, 1), pack_planes(bits(raised, 0, 15), 4, 1)
    return np.concatenate([d, high, low, q.reshape(n, 128)], axis=1)


# MXFP4: a byte e | 16 bytes of nibbles; value = 2^(e - 128) · table[q], the table being doubled. By OCP e = 255 is NaN;
# ggml takes it for 2^127, and so do we.


def _half_power(e: Bytes) -> Floats:
    """2^(e - 128)."""
    small = np.uint32(0x00200000) << e.astype(np.uint32)
    normal = (e.astype(np.uint32) - np.uint32(1)) << np.uint32(23)
    return np.where(e < 2, small, normal).astype(np.uint32).view(np.float32)


def _decode_mxfp4(blocks: Bytes) -> Floats:
    with np.errstate(over="ignore"):
        return _half_power(blocks[:, :1]) * E2M1[nibbles(blocks[:, 1:])]


def _encode_mxfp4(values: Floats) -> Bytes:
    """OCP's exponent, floor(log2(amax)) - 2, or the next, whichever loses less."""
    _, power = np.frexp(np.abs(values).max(axis=1, keepdims=True))
    first = np.clip(power + 124, 0, 253).astype(np.uint8)
    tries: list[tuple[Bytes, Floats]] = []
    for e in (first, first + np.uint8(1)):
        d = _half_power(e)
        q = _E2M1_ORDER[nearest(values / d, E2M1[_E2M1_ORDER])]
        off = d * E2M1[q] - values
        tries.append((np.concatenate([e, pack_nibbles(q)], axis=1), (off * off).sum(axis=1, keepdims=True)))
    return np.where(tries[1][1] < tries[0][1], tries[1][0], tries[0][0])


IQ4_NL = Format("iq4_nl", 32, 18, 20, None, _decode_iq4_nl, _encode_iq4_nl)
IQ4_XS = Format("iq4_xs", 256, 136, 23, None, _decode_iq4_xs, _encode_iq4_xs)
MXFP4 = Format("mxfp4", 32, 17, 39, None, _decode_mxfp4, _encode_mxfp4)
