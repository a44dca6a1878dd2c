"""F32, F16 and BF16, as tables of one-value blocks.

Law: IEEE conversions, round to nearest, ties to even; what does not fit becomes infinite, NaN stays NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pellucid.formats.base import Format


def _decode_f32(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(blocks).view(np.float32)


def _encode_f32(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8)


def _decode_f16(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _encode_f16(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values).astype(np.float16).view(np.uint8)


def _decode_bf16(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _encode_bf16(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40  # a NaN whose payload lies in the low half must not round to infinity
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16).view(np.uint8)


F32 = Format("f32", 1, 4, 0, "F32", _decode_f32, _encode_f32)
F16 = Format("f16", 1, 2, 1, "F16", _decode_f16, _encode_f16)
BF16 = Format("bf16", 1, 2, 30, "BF16", _decode_bf16, _encode_bf16)
