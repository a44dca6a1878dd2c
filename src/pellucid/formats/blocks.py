"""GGML's block formats: Q4_0, Q4_1, Q5_0 and Q8_0 in blocks of 32, Q4_K and Q6_K in superblocks of 256.

Law: decode gives the same bits as ggml's dequantize (the `gguf` package is the witness); layouts are those of
ggml-common.h. The 32s are encoded by ggml's reference rounding, the K-quants by a weighted search of their scales.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pellucid.formats.base import Format

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_F16_MAX = np.float32(65504.0)


def _bits(packed: Bytes, shift: int, mask: int) -> Bytes:
    return (packed >> np.uint8(shift)) & np.uint8(mask)


def _up(values: Bytes, shift: int) -> Bytes:
    return values << np.uint8(shift)


def _f16(blocks: Bytes, at: int) -> Floats:
    """The half at byte `at` of each block, shape (n, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _half_bytes(values: Floats) -> Bytes:
    """(n, 1) → (n, 2): the nearest half, kept finite."""
    return np.clip(values, -_F16_MAX, _F16_MAX).astype(np.float16).view(np.uint8)


def _inverse(d: Floats) -> Floats:
    """1 / d, and 0 where d is 0."""
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def _nibbles(packed: Bytes) -> Bytes:
    """(n, 16) → (n, 32): the low halves, then the high halves."""
    return np.concatenate([_bits(packed, 0, 15), _bits(packed, 4, 15)], axis=1)


def _pack_nibbles(q: Bytes) -> Bytes:
    half = q.shape[1] // 2
    return _bits(q[:, :half], 0, 15) | _up(q[:, half:], 4)


def _sum(values: Floats) -> Floats:
    """Sum of each row, shape (n, 1)."""
    return values.sum(axis=1, keepdims=True)


def _extreme(values: Floats) -> Floats:
    """The value of largest magnitude of each row, with its sign, shape (n, 1)."""
    at = np.abs(values).argmax(axis=1)[:, None]
    return np.take_along_axis(values, at, axis=1)


def _round_up(values: Floats, top: int) -> Bytes:
    """Truncate what was raised by a half, kept in 0..top."""
    return np.clip(np.trunc(values), 0, top).astype(np.uint8)


# Q4_0: half d | 16 bytes of nibbles; value = d · (q - 8)


def _decode_q4_0(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8)
    with np.errstate(invalid="ignore"):
        return _f16(blocks, 0) * q.astype(np.float32)


def _encode_q4_0(values: Floats) -> Bytes:
    d = _extreme(values) / np.float32(-8)
    q = _round_up(values * _inverse(d) + np.float32(8.5), 15)
    return np.concatenate([_half_bytes(d), _pack_nibbles(q)], axis=1)


# Q4_1: half d | half m | 16 bytes of nibbles; value = d · q + m


def _decode_q4_1(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 4:]).astype(np.float32)
    with np.errstate(invalid="ignore"):
        return _f16(blocks, 0) * q + _f16(blocks, 2)


def _encode_q4_1(values: Floats) -> Bytes:
    low = values.min(axis=1, keepdims=True)
    d = (values.max(axis=1, keepdims=True) - low) / np.float32(15)
    q = _round_up((values - low) * _inverse(d) + np.float32(0.5), 15)
    return np.concatenate([_half_bytes(d), _half_bytes(low), _pack_nibbles(q)], axis=1)


# Q5_0: half d | 4 bytes of fifth bits | 16 bytes of nibbles; value = d · (q - 16)


def _decode_q5_0(blocks: Bytes) -> Floats:
    high = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
    q = (_nibbles(blocks[:, 6:]) | _up(high, 4)).astype(np.int8) - np.int8(16)
    with np.errstate(invalid="ignore"):
        return _f16(blocks, 0) * q.astype(np.float32)


def _encode_q5_0(values: Floats) -> Bytes:
    d = _extreme(values) / np.float32(-16)
    q = _round_up(values * _inverse(d) + np.float32(16.5), 31)
    high = np.packbits(_bits(q, 4, 1), axis=1, bitorder="little")
    return np.concatenate([_half_bytes(d), high, _pack_nibbles(q)], axis=1)


# Q8_0: half d | 32 int8; value = d · q


def _decode_q8_0(blocks: Bytes) -> Floats:
    q = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    with np.errstate(invalid="ignore"):
        return q * _f16(blocks, 0)


def _encode_q8_0(values: Floats) -> Bytes:
    d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    x = values * _inverse(d)
    q = np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x).astype(np.int8)  # half away from zero, as ggml
    return np.concatenate([_half_bytes(d), q.view(np.uint8)], axis=1)


# Q4_K: half d | half dmin | 12 bytes: 8 scales and 8 minima of 6 bits | 128 bytes of nibbles, 32 values a half;
# value = d · scale · q - dmin · minimum, per 32


def _decode_q4_k(blocks: Bytes) -> Floats:
    scales, mins = unpack_scales(blocks[:, 4:16])
    packed = blocks[:, 16:].reshape(-1, 4, 1, 32)
    q = np.concatenate([_bits(packed, 0, 15), _bits(packed, 4, 15)], axis=2).reshape(-1, 8, 32).astype(np.float32)
    with np.errstate(invalid="ignore"):
        d = (_f16(blocks, 0) * scales.astype(np.float32))[:, :, None]
        m = (_f16(blocks, 2) * mins.astype(np.float32))[:, :, None]
        return (d * q - m).reshape(-1, 256).astype(np.float32, copy=False)


def unpack_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """(n, 12) → scales (n, 8) and minima (n, 8), 0..63, of a Q4_K superblock."""
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([_bits(a, 0, 0x3F), _bits(c, 0, 15) | _bits(a, 2, 0x30)], axis=1)
    mins = np.concatenate([_bits(b, 0, 0x3F), _bits(c, 4, 15) | _bits(b, 2, 0x30)], axis=1)
    return scales, mins


def _pack_scales(scales: Bytes, mins: Bytes) -> Bytes:
    a = scales[:, :4] | _up(_bits(scales[:, 4:], 0, 0x30), 2)
    b = mins[:, :4] | _up(_bits(mins[:, 4:], 0, 0x30), 2)
    c = _bits(scales[:, 4:], 0, 15) | _up(mins[:, 4:], 4)
    return np.concatenate([a, b, c], axis=1)


def _fit_affine(x: Floats, top: int) -> tuple[Floats, Floats]:
    """Scale and minimum (both ≥ 0, shape (n, 1)) that fit x ≈ scale · q - minimum, q in 0..top, over each row.

    Tries about twenty grids; for each the scale and minimum follow by least squares, weighted towards large values.
    """
    w = np.sqrt((x * x).mean(axis=1, keepdims=True)) + np.abs(x)
    low = np.minimum(x.min(axis=1, keepdims=True), 0)
    span = x.max(axis=1, keepdims=True) - low
    scale: Floats = span / np.float32(top)
    minimum: Floats = -low
    best: Floats = np.full_like(scale, np.inf)
    sw, sx = _sum(w), _sum(w * x)
    for step in range(-1, 20):
        reach = np.float32(top) if step < 0 else np.float32(top - 1 + 0.1 * step)
        q = np.clip(np.rint((x - low) * (reach * _inverse(span))), 0, top)
        sq, sqq = _sum(w * q), _sum(w * q * q)
        sqx = _sum(w * q * x)
        det = sw * sqq - sq * sq
        inverse = _inverse(np.where(det > 0, det, 0).astype(np.float32))
        m = (sq * sqx - sqq * sx) * inverse
        s: Floats = np.where(m < 0, sqx * _inverse(sqq), (sw * sqx - sx * sq) * inverse)
        m = np.maximum(m, np.float32(0))
        off = s * q - m - x
        error = _sum(w * off * off)
        better = (error < best) & (s > 0)
        best: Floats = np.where(better, error, best)
        scale: Floats = np.where(better, s, scale)
        minimum: Floats = np.where(better, m, minimum)
    return scale, minimum


def _encode_q4_k(values: Floats) -> Bytes:
    n = values.shape[0]
    scale, minimum = (v.reshape(n, 8) for v in _fit_affine(values.reshape(-1, 32), 15))
    d = scale.max(axis=1, keepdims=True) / np.float32(63)
    dmin = minimum.max(axis=1, keepdims=True) / np.float32(63)
    scales = np.clip(np.rint(scale * _inverse(d)), 0, 63).astype(np.uint8)
    mins = np.clip(np.rint(minimum * _inverse(dmin)), 0, 63).astype(np.uint8)
    d_bytes, dmin_bytes = _half_bytes(d), _half_bytes(dmin)
    s = _f16(d_bytes, 0) * scales
    m = _f16(dmin_bytes, 0) * mins
    x = values.reshape(n, 8, 32)
    q = np.clip(np.rint((x + m[:, :, None]) * _inverse(s)[:, :, None]), 0, 15).astype(np.uint8)
    pairs = q.reshape(n, 4, 2, 32)
    packed = (pairs[:, :, 0] | _up(pairs[:, :, 1], 4)).reshape(n, 128)
    return np.concatenate([d_bytes, dmin_bytes, _pack_scales(scales, mins), packed], axis=1)


# Q6_K: 128 bytes of low nibbles | 64 bytes of high pairs | 16 int8 scales | half d;
# value = d · scale · (q - 32), per 16


def _decode_q6_k(blocks: Bytes) -> Floats:
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([_bits(low, 0, 15), _bits(low, 4, 15)], axis=2).reshape(-1, 256)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    q = (low | _up(_bits(high, 0, 3).reshape(-1, 256), 4)).astype(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    with np.errstate(invalid="ignore"):
        d = (_f16(blocks, 208) * scales)[:, :, None]
        return (d * q.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)


def _fit_scale(x: Floats, top: int) -> Floats:
    """Scale (shape (n, 1), with a sign) that fits x ≈ scale · q, q in -top..top-1, over each row, weighted by x²."""
    extreme = _extreme(x)
    w = x * x
    scale = extreme / np.float32(-top)
    best = np.zeros_like(scale)
    for step in range(-9, 10):
        q = np.clip(np.rint(x * (np.float32(-(top + 0.1 * step)) * _inverse(extreme))), -top, top - 1)
        sqx, sqq = _sum(w * q * x), _sum(w * q * q)
        s = sqx * _inverse(sqq)
        gain = s * sqx
        better = gain > best
        best, scale = np.where(better, gain, best), np.where(better, s, scale)
    return scale


def _encode_q6_k(values: Floats) -> Bytes:
    n = values.shape[0]
    scale = _fit_scale(values.reshape(-1, 16), 32).reshape(n, 16)
    d = _extreme(scale) / np.float32(-128)
    scales = np.clip(np.rint(scale * _inverse(d)), -128, 127).astype(np.int8)
    d_bytes = _half_bytes(d)
    s = (_f16(d_bytes, 0) * scales)[:, :, None]
    q = np.clip(np.rint(values.reshape(n, 16, 16) * _inverse(s)), -32, 31).astype(np.int8) + np.int8(32)
    q = q.view(np.uint8).reshape(n, 2, 4, 32)
    low = _bits(q[:, :, :2], 0, 15) | _up(q[:, :, 2:], 4)
    high = _bits(q, 4, 3)
    high = high[:, :, 0] | _up(high[:, :, 1], 2) | _up(high[:, :, 2], 4) | _up(high[:, :, 3], 6)
    return np.concatenate([low.reshape(n, 128), high.reshape(n, 64), scales.view(np.uint8), d_bytes], axis=1)


Q4_0 = Format("q4_0", 32, 18, 2, None, _decode_q4_0, _encode_q4_0)
Q4_1 = Format("q4_1", 32, 20, 3, None, _decode_q4_1, _encode_q4_1)
Q5_0 = Format("q5_0", 32, 22, 6, None, _decode_q5_0, _encode_q5_0)
Q8_0 = Format("q8_0", 32, 34, 8, None, _decode_q8_0, _encode_q8_0)
Q4_K = Format("q4_k", 256, 144, 12, None, _decode_q4_k, _encode_q4_k)
Q6_K = Format("q6_k", 256, 210, 14, None, _decode_q6_k, _encode_q6_k)
