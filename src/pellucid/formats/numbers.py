"""Plain numbers that no kernel multiplies in: F64 and the signed integers, as tables of one-value blocks.

Law: a value is the nearest float32; what does not fit becomes infinite. Encode rounds to nearest, ties to even, and
keeps integers inside their range.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pellucid.formats.base import Format


def _plain(
    name: str, dtype: type[np.number[Any]], ggml_type: int | None, safetensors_dtype: str | None = None
) -> Format:
    def decode(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(blocks).view(dtype).astype(np.float32)

    def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
        wide = np.ascontiguousarray(values).astype(np.float64)
        if issubclass(dtype, np.integer):
            # The greatest int64 is no float64; the one below it is.
            limits = np.iinfo(dtype)
            wide = np.clip(np.rint(wide), limits.min, min(limits.max, 2**63 - 1024))
        return wide.astype(dtype).view(np.uint8)

    return Format(name, 1, np.dtype(dtype).itemsize, ggml_type, safetensors_dtype, decode, encode, native=False)


F64 = _plain("f64", np.float64, 28, "F64")
I8 = _plain("i8", np.int8, 24)
I16 = _plain("i16", np.int16, 25)
I32 = _plain("i32", np.int32, 26)
I64 = _plain("i64", np.int64, 27)
U8 = _plain("u8", np.uint8, None, "U8")
"""No weight is ever in it: files use it for parts of other formats."""
