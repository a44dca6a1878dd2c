"""GGML's formats in blocks of 32 on an even grid: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.

Law: decode gives the same bits as ggml's dequantize (the `gguf` package is the witness); layouts are those of
ggml-common.h; encode is ggml's reference rounding.
"""

from __future__ import annotations

import numpy as np

from pellucid.formats.base import Format
from pellucid.formats.bits import Bytes, Floats, bits, extreme, half_at, half_bytes, inverse, nibbles, pack_nibbles, up


def _round_up(values: Floats, top: int) -> Bytes:
    """Truncate what was raised by a half, kept in 0..top."""
    return np.clip(np.trunc(values), 0, top).astype(np.uint8)


def _fifths(packed: Bytes) -> Bytes:
    """(n, 4) → (n, 32): a bit each."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _pack_fifths(q: Bytes) -> Bytes:
    return np.packbits(bits(q, 4, 1), axis=1, bitorder="little")


# Q4_0: half d | 16 bytes of nibbles; value = d · (q - 8)


def _decode_q4_0(blocks: Bytes) -> Floats:
    q = nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8)
    with np.errstate(invalid="ignore"):
        return half_at(blocks, 0) * q.astype(np.float32)


def _encode_q4_0(values: Floats) -> Bytes:
    d = extreme(values) / np.float32(-8)
    q = _round_up(values * inverse(d) + np.float32(8.5), 15)
    return np.concatenate([half_bytes(d), pack_nibbles(q)], axis=1)


# Q4_1: half d | half m | 16 bytes of nibbles; value = d · q + m


def _decode_q4_1(blocks: Bytes) -> Floats:
    q = nibbles(blocks[:, 4:]).astype(np.float32)
    with np.errstate(invalid="ignore"):
        return half_at(blocks, 0) * q + half_at(blocks, 2)


def _encode_q4_1(values: Floats) -> Bytes:
    low = values.min(axis=1, keepdims=True)
    d = (values.max(axis=1, keepdims=True) - low) / np.float32(15)
    q = _round_up((values - low) * inverse(d) + np.float32(0.5), 15)
    return np.concatenate([half_bytes(d), half_bytes(low), pack_nibbles(q)], axis=1)


# Q5_0: half d | 4 bytes of fifth bits | 16 bytes of nibbles; value = d · (q - 16)


def _decode_q5_0(blocks: Bytes) -> Floats:
    q = (nibbles(blocks[:, 6:]) | up(_fifths(blocks[:, 2:6]), 4)).astype(np.int8) - np.int8(16)
    with np.errstate(invalid="ignore"):
        return half_at(blocks, 0) * q.astype(np.float32)


def _encode_q5_0(values: Floats) -> Bytes:
    d = extreme(values) / np.float32(-16)
    q = _round_up(values * inverse(d) + np.float32(16.5), 31)
    return np.concatenate([half_bytes(d), _pack_fifths(q), pack_nibbles(q)], axis=1)


# Q5_1: half d | half m | 4 bytes of fifth bits | 16 bytes of nibbles; value = d · q + m


def _decode_q5_1(blocks: Bytes) -> Floats:
    q = (nibbles(blocks[:, 8:]) | up(_fifths(blocks[:, 4:8]), 4)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        return half_at(blocks, 0) * q + half_at(blocks, 2)


def _encode_q5_1(values: Floats) -> Bytes:
    low = values.min(axis=1, keepdims=True)
    d = (values.max(axis=1, keepdims=True) - low) / np.float32(31)
    q = _round_up((values - low) * inverse(d) + np.float32(0.5), 31)
    return np.concatenate([half_bytes(d), half_bytes(low), _pack_fifths(q), pack_nibbles(q)], axis=1)


# Q8_0: half d | 32 int8; value = d · q


def _decode_q8_0(blocks: Bytes) -> Floats:
    q = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    with np.errstate(invalid="ignore"):
        return q * half_at(blocks, 0)


def _encode_q8_0(values: Floats) -> Bytes:
    d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    x = values * inverse(d)
    q = np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x).astype(np.int8)  # half away from zero, as ggml
    return np.concatenate([half_bytes(d), q.view(np.uint8)], axis=1)


Q4_0 = Format("q4_0", 32, 18, 2, None, _decode_q4_0, _encode_q4_0)
Q4_1 = Format("q4_1", 32, 20, 3, None, _decode_q4_1, _encode_q4_1)
Q5_0 = Format("q5_0", 32, 22, 6, None, _decode_q5_0, _encode_q5_0)
Q5_1 = Format("q5_1", 32, 24, 7, None, _decode_q5_1, _encode_q5_1)
Q8_0 = Format("q8_0", 32, 34, 8, None, _decode_q8_0, _encode_q8_0)
