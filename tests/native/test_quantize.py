"""Quantised activations: the arithmetic that native/quantize.h states, to the bit, in every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelcases import ISAS, activations, split
from pellucid import _core


def stated(x: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Codes, scales and mins as the header of quantize.h says."""
    blocks = x.reshape(len(x), -1, 32)
    with np.errstate(all="ignore"):
        amax = np.abs(blocks).max(axis=2)
        tiny = amax < np.float32(1e-30)
        scale = np.where(tiny, np.float32(0), amax / np.float32(127))
        inverse = np.where(tiny, np.float32(0), np.float32(127) / amax)
        codes = np.rint(blocks * inverse[:, :, None])
        codes = np.where(np.isfinite(amax)[:, :, None], codes, 0).astype(np.int64)
        mins = scale * codes.sum(axis=2).astype(np.float32)
    return codes.reshape(x.shape), scale, mins


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cols", [32, 64, 96, 256, 1536])
def test_the_stated_arithmetic(isa: str, cols: int) -> None:
    x = activations(9, cols)
    x[1] = 0
    x[2] *= np.float32(1e-33)
    x[3] *= np.float32(1e36)
    x[4] = np.linspace(-127, 127, cols) / 2  # halves: ties to even
    x[5, 0], x[6, 1], x[7, cols - 1] = np.nan, np.inf, -np.inf
    row = _core.quantize(x, isa)
    codes, scales, mins, sums = split(row, cols)
    want_codes, want_scales, want_mins = stated(x)
    np.testing.assert_array_equal(codes, want_codes)
    np.testing.assert_array_equal(scales, want_scales)
    np.testing.assert_array_equal(mins, want_mins)
    halves = codes.reshape(9, -1, 2, 16).sum(axis=3, dtype=np.int32)
    np.testing.assert_array_equal(sums, -np.stack([halves.sum(axis=2), halves[:, :, 1]], axis=2))
    assert row.shape[1] % 64 == 0
    assert not row[:, cols // 32 * 48 :].any()
    assert codes.min() >= -127


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_see_its_neighbours(isa: str) -> None:
    x = activations(5, 256)
    whole = _core.quantize(x, isa)
    for i in range(5):
        np.testing.assert_array_equal(_core.quantize(x[i : i + 1], isa)[0], whole[i])
    np.testing.assert_array_equal(whole, _core.quantize(x, "scalar"))


def test_partial_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="whole blocks of 32"):
        _core.quantize(np.zeros((1, 33), np.float32))
