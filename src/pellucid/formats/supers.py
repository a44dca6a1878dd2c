"""GGML's K-quants: superblocks of 256 on even grids, whose blocks' scales are themselves quantised: Q2_K to Q8_K.

Law: decode gives the same bits as ggml's dequantize (the `gguf` package is the witness); layouts are those of
ggml-common.h; encode searches its scales (fit.py), then rounds to the scales as stored.
"""

from __future__ import annotations

import numpy as np

from pellucid.formats.base import Format
from pellucid.formats.bits import (
    Bytes,
    Floats,
    Ints,
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
from pellucid.formats.fit import fit_affine, fit_scale

# What the two kinds of grid share.


def _affine(d: Floats, dmin: Floats, scales: Bytes, mins: Bytes, q: Bytes) -> Floats:
    """d · scale · q - dmin · minimum, with one scale and minimum for each of a row's equal runs."""
    with np.errstate(invalid="ignore", over="ignore"):
        step = (d * scales.astype(np.float32))[:, :, None]
        low = (dmin * mins.astype(np.float32))[:, :, None]
        return (
            (step * q.reshape(*scales.shape, 256 // scales.shape[1]).astype(np.float32) - low)
            .reshape(q.shape)
            .astype(np.float32, copy=False)
        )


def _fit_affine(values: Floats, runs: int, top_scale: int, top: int) -> tuple[Bytes, Bytes, Bytes, Bytes, Bytes]:
    """Bytes of d and dmin, scales and minima (n, runs) in 0..top_scale, codes (n, 256) in 0..top."""
    n = len(values)
    scale, minimum = (v.reshape(n, runs) for v in fit_affine(values.reshape(n * runs, -1), top))
    d = scale.max(axis=1, keepdims=True) / np.float32(top_scale)
    dmin = minimum.max(axis=1, keepdims=True) / np.float32(top_scale)
    scales = np.clip(np.rint(scale * inverse(d)), 0, top_scale).astype(np.uint8)
    mins = np.clip(np.rint(minimum * inverse(dmin)), 0, top_scale).astype(np.uint8)
    d_bytes, dmin_bytes = half_bytes(d), half_bytes(dmin)
    s = (half_at(d_bytes, 0) * scales)[:, :, None]
    m = (half_at(dmin_bytes, 0) * mins)[:, :, None]
    q = np.clip(np.rint((values.reshape(n, runs, -1) + m) * inverse(s)), 0, top).astype(np.uint8)
    return d_bytes, dmin_bytes, scales, mins, q.reshape(n, 256)


def _signed(d: Floats, scales: Ints, q: Ints) -> Floats:
    """d · scale · q, with one scale for each of a row's equal runs."""
    with np.errstate(invalid="ignore", over="ignore"):
        step = (d * scales.astype(np.float32))[:, :, None]
        return (step * q.reshape(*scales.shape, 256 // scales.shape[1]).astype(np.float32)).reshape(q.shape)


def _fit_signed(values: Floats, top_scale: int, top: int) -> tuple[Bytes, Ints, Bytes]:
    """Bytes of d, scales (n, 16) in -top_scale..top_scale-1, codes + top (n, 256) in 0..2·top-1."""
    n = len(values)
    scale = fit_scale(values.reshape(n * 16, 16), top).reshape(n, 16)
    d = extreme(scale) / np.float32(-top_scale)
    scales = np.clip(np.rint(scale * inverse(d)), -top_scale, top_scale - 1).astype(np.int8)
    d_bytes = half_bytes(d)
    s = (half_at(d_bytes, 0) * scales)[:, :, None]
    q = np.clip(np.rint(values.reshape(n, 16, 16) * inverse(s)), -top, top - 1).astype(np.int8) + np.int8(top)
    return d_bytes, scales, q.view(np.uint8).reshape(n, 256)


def _unpack_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """(n, 12) → scales (n, 8) and minima (n, 8), 0..63, of a Q4_K or Q5_K superblock."""
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([bits(a, 0, 0x3F), bits(c, 0, 15) | bits(a, 2, 0x30)], axis=1)
    mins = np.concatenate([bits(b, 0, 0x3F), bits(c, 4, 15) | bits(b, 2, 0x30)], axis=1)
    return scales, mins


def _pack_scales(scales: Bytes, mins: Bytes) -> Bytes:
    a = scales[:, :4] | up(bits(scales[:, 4:], 0, 0x30), 2)
    b = mins[:, :4] | up(bits(mins[:, 4:], 0, 0x30), 2)
    c = bits(scales[:, 4:], 0, 15) | up(mins[:, 4:], 4)
    return np.concatenate([a, b, c], axis=1)


# Q2_K: 16 bytes: a scale in the low half, a minimum in the high | 64 bytes of pairs, planes of 32 | half d | half dmin;
# value = d · scale · q - dmin · minimum, per 16


def _decode_q2_k(blocks: Bytes) -> Floats:
    scales, mins = bits(blocks[:, :16], 0, 15), bits(blocks[:, :16], 4, 15)
    return _affine(half_at(blocks, 80), half_at(blocks, 82), scales, mins, planes(blocks[:, 16:80], 2, 32))


def _encode_q2_k(values: Floats) -> Bytes:
    d, dmin, scales, mins, q = _fit_affine(values, 16, 15, 3)
    return np.concatenate([scales | up(mins, 4), pack_planes(q, 2, 32), d, dmin], axis=1)


# Q3_K: 32 bytes of third bits, planes of 32 | 64 bytes of low pairs, planes of 32 | 12 bytes: 16 scales of 6 bits, 32
# added | half d; value = d · scale · (q - 4), per 16


def _decode_q3_k(blocks: Bytes) -> Floats:
    q = planes(blocks[:, 32:96], 2, 32) | up(planes(blocks[:, :32], 1, 32), 2)
    scales = nibbles(blocks[:, 96:104]) | up(planes(blocks[:, 104:108], 2, 4), 4)
    return _signed(half_at(blocks, 108), scales.view(np.int8) - np.int8(32), q.view(np.int8) - np.int8(4))


def _encode_q3_k(values: Floats) -> Bytes:
    d, signed, q = _fit_signed(values, 32, 4)
    scales = (signed + np.int8(32)).view(np.uint8)
    third, low = pack_planes(bits(q, 2, 1), 1, 32), pack_planes(bits(q, 0, 3), 2, 32)
    return np.concatenate([third, low, pack_nibbles(scales), pack_planes(bits(scales, 4, 3), 2, 4), d], axis=1)


# Q4_K: half d | half dmin | 12 bytes: 8 scales and 8 minima of 6 bits | 128 bytes of nibbles, planes of 32;
# value = d · scale · q - dmin · minimum, per 32


def _decode_q4_k(blocks: Bytes) -> Floats:
    return _affine(
        half_at(blocks, 0), half_at(blocks, 2), *_unpack_scales(blocks[:, 4:16]), planes(blocks[:, 16:], 4, 32)
    )


def _encode_q4_k(values: Floats) -> Bytes:
    d, dmin, scales, mins, q = _fit_affine(values, 8, 63, 15)
    return np.concatenate([d, dmin, _pack_scales(scales, mins), pack_planes(q, 4, 32)], axis=1)


# Q5_K: half d | half dmin | 12 bytes as Q4_K's | 32 bytes of fifth bits, planes of 32 | 128 bytes of nibbles, planes of
# 32; value = d · scale · q - dmin · minimum, per 32


def _decode_q5_k(blocks: Bytes) -> Floats:
    q = planes(blocks[:, 48:], 4, 32) | up(planes(blocks[:, 16:48], 1, 32), 4)
    return _affine(half_at(blocks, 0), half_at(blocks, 2), *_unpack_scales(blocks[:, 4:16]), q)


def _encode_q5_k(values: Floats) -> Bytes:
    d, dmin, scales, mins, q = _fit_affine(values, 8, 63, 31)
    fifth, low = pack_planes(bits(q, 4, 1), 1, 32), pack_planes(bits(q, 0, 15), 4, 32)
    return np.concatenate([d, dmin, _pack_scales(scales, mins), fifth, low], axis=1)


# Q6_K: 128 bytes of low nibbles, planes of 64 | 64 bytes of high pairs, planes of 32 | 16 int8 scales | half d;
# value = d · scale · (q - 32), per 16


def _decode_q6_k(blocks: Bytes) -> Floats:
    q = planes(blocks[:, :128], 4, 64) | up(planes(blocks[:, 128:192], 2, 32), 4)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return _signed(half_at(blocks, 208), scales, q.view(np.int8) - np.int8(32))


def _encode_q6_k(values: Floats) -> Bytes:
    d, scales, q = _fit_signed(values, 128, 32)
    low, high = pack_planes(bits(q, 0, 15), 4, 64), pack_planes(bits(q, 4, 3), 2, 32)
    return np.concatenate([low, high, scales.view(np.uint8), d], axis=1)


# Q8_K: float d | 256 int8 | 16 int16: sums of each 16; value = d · q. The sums follow from the codes and are not read.


def _decode_q8_k(blocks: Bytes) -> Floats:
    d = np.ascontiguousarray(blocks[:, :4]).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        return d * np.ascontiguousarray(blocks[:, 4:260]).view(np.int8).astype(np.float32)


def _encode_q8_k(values: Floats) -> Bytes:
    d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    q = np.rint(values * inverse(d)).astype(np.int8)
    sums = q.reshape(-1, 16, 16).sum(axis=2, dtype=np.int16)
    return np.concatenate([d.view(np.uint8), q.view(np.uint8), sums.view(np.uint8)], axis=1)


Q2_K = Format("q2_k", 256, 84, 10, None, _decode_q2_k, _encode_q2_k)
Q3_K = Format("q3_k", 256, 110, 11, None, _decode_q3_k, _encode_q3_k)
Q4_K = Format("q4_k", 256, 144, 12, None, _decode_q4_k, _encode_q4_k)
Q5_K = Format("q5_k", 256, 176, 13, None, _decode_q5_k, _encode_q5_k)
Q6_K = Format("q6_k", 256, 210, 14, None, _decode_q6_k, _encode_q6_k)
Q8_K = Format("q8_k", 256, 292, 15, None, _decode_q8_k, _encode_q8_k)
