"""What the tests of the kernels share: weights of random bits, quantised rows taken apart, guarded memory."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

from pellucid import _core
from pellucid.formats import FORMATS, Format

ISAS = _core.isas()
NAMES = [name for name, format in FORMATS.items() if format.native]
QUANTIZED = [name for name in NAMES if FORMATS[name].block > 1]

_HALVES = {"q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "iq4_nl": (0,)}
_HALVES |= {"q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "iq4_xs": (0,)}
_HALVES |= {"tq1_0": (52,), "tq2_0": (64,)}
"""Where a block's half-precision scales lie."""
CODES = {"q4_0": (2, 18), "q4_1": (4, 20), "q5_0": (2, 22), "q5_1": (4, 24), "q8_0": (2, 34), "iq4_nl": (2, 18)}
CODES |= {"q2_k": (0, 80), "q3_k": (0, 108), "q4_k": (4, 144), "q5_k": (4, 176), "q6_k": (0, 208), "q8_k": (4, 260)}
CODES |= {"iq4_xs": (2, 136), "mxfp4": (1, 17), "tq1_0": (0, 52), "tq2_0": (0, 64)}
"""From where to where a block's codes and small scales lie."""


def weights(name: str, rows: int, cols: int, seed: int = 0) -> NDArray[np.uint8]:
    """Rows in the file's layout: every bit at random, under scales that are finite."""
    rng = np.random.default_rng([seed, rows, cols])
    format = FORMATS[name]
    if name not in QUANTIZED:
        return format.encode_rows(rng.standard_normal((rows, cols), np.float32))
    data = rng.integers(0, 256, (rows, cols // format.block, format.nbytes), np.uint8)
    scales = rng.standard_normal((*data.shape[:2], 2), np.float32) * np.float32(0.01)
    for i, at in enumerate(_HALVES.get(name, ())):
        data[:, :, at : at + 2] = scales[:, :, i, None].astype(np.float16).view(np.uint8)
    if name == "q8_k":
        data[:, :, :4] = scales[:, :, :1].view(np.uint8)
    if name == "mxfp4":
        data[:, :, 0] = rng.integers(110, 124, data.shape[:2])
    return data.reshape(rows, -1)


def activations(tokens: int, cols: int, seed: int = 1) -> NDArray[np.float32]:
    rng = np.random.default_rng([seed, cols])
    x = rng.standard_normal((tokens, cols), np.float32)
    x *= np.exp(rng.standard_normal((tokens, 1)) * 2).astype(np.float32)
    x[:, rng.integers(0, cols, 3)] *= 30
    return x


def packed(name: str, data: NDArray[np.uint8], cols: int) -> _core.Matrix:
    matrix = _core.Matrix(name, data.shape[0], cols)
    matrix.pack(data)
    return matrix


def split(rows: NDArray[np.uint8], cols: int) -> tuple[NDArray[np.int8], NDArray[np.float32], ...]:
    """Codes (n, cols); scales, mins (n, cols / 32); minus sums of all and of the second 16 codes (n, cols / 32, 2)."""
    blocks = np.ascontiguousarray(rows[:, : cols // 32 * 48]).reshape(len(rows), -1, 48)
    parts = [np.ascontiguousarray(blocks[:, :, a:b]) for a, b in ((0, 32), (32, 36), (36, 40), (40, 48))]
    scales, mins = (p.view(np.float32)[:, :, 0] for p in parts[1:3])
    return parts[0].view(np.int8).reshape(len(rows), cols), scales, mins, parts[3].view(np.int32)


def rounded(x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The activations that the quantised kernels see, and the scale above each."""
    codes, scales, _, _ = split(_core.quantize(x), x.shape[1])
    scales = scales.astype(np.float64).repeat(32, axis=1)
    return codes * scales, scales


def kernel_rows(format: Format, x: NDArray[np.float32], isa: str) -> NDArray[np.uint8]:
    """The bytes that the format's kernel takes."""
    return _core.quantize(x, isa) if format.block > 1 else x.view(np.uint8).reshape(len(x), -1)


class Guarded:
    """Memory that ends (or, with `front`, begins) where a page begins that may not be touched."""

    def __init__(self, nbytes: int, front: bool = False) -> None:
        page = mmap.PAGESIZE
        body = -(-nbytes // page) * page
        self._map = mmap.mmap(-1, body + 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        for start in (base, base + page + body):
            if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        at = page if front else page + body - nbytes
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, nbytes, at)

    @classmethod
    def copy(cls, array: NDArray[np.generic], front: bool = False) -> NDArray[np.generic]:
        """`array` in guarded memory, which lives as long as the process."""
        held = cls(array.nbytes, front)
        _ALIVE.append(held)
        copy = held.bytes.view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy


_ALIVE: list[Guarded] = []
