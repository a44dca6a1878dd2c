"""Matrix products: right within a stated bound, and bits that know nothing of tiles, neighbours, panels or ISA."""

from __future__ import annotations

import numpy as np
import pytest

from kernelcases import CODES, ISAS, NAMES, QUANTIZED, activations, kernel_rows, packed, rounded, weights
from pellucid import _core
from pellucid.formats import FORMATS

ROWS = [1, 15, 16, 17, 100]
BOUND = 2e-6
"""Rounding of the sums, as a share of the sum of magnitudes (24 bits, up to about 50 blocks in a chain)."""

WITH_MINIMA = ("q4_1", "q5_1", "q2_k", "q4_k", "q5_k")


def cols_of(name: str) -> list[int]:
    block = FORMATS[name].block
    return [block, 2 * block, 5 * block] if block > 1 else [1, 2, 31, 160]


@pytest.mark.covers("products", "name")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_products_are_right_and_every_tile_gives_the_same_bits(name: str, isa: str, rows: int) -> None:
    for cols in cols_of(name):
        data = weights(name, rows, cols)
        w = FORMATS[name].decode_rows(data).astype(np.float64)
        matrix = packed(name, data, cols)
        x = activations(33, cols)
        got = matrix.linear(x, isa=isa)

        # Minima and offsets cancel against what they are added to, so magnitudes are those of the parts.
        parts = np.abs(w) + (np.abs(w).max(axis=1, keepdims=True) if name in WITH_MINIMA else 0)
        if FORMATS[name].block > 1:
            seen, scales = rounded(x)
            error = np.abs(got - x.astype(np.float64) @ w.T)
            assert (error <= (0.5001 * scales) @ np.abs(w).T + BOUND * (np.abs(seen) @ parts.T)).all()
        else:
            seen = x.astype(np.float64)
        error = np.abs(got - seen @ w.T)
        assert (error <= BOUND * (np.abs(seen) @ parts.T)).all()

        for tokens in range(1, 21):
            np.testing.assert_array_equal(matrix.linear(x[:tokens], isa=isa), got[:tokens])
        for t in (0, 7, 8, 32):
            np.testing.assert_array_equal(matrix.linear(x[t : t + 1], isa=isa)[0], got[t])


@pytest.mark.parametrize("name", NAMES)
def test_instruction_sets_agree_to_the_bit(name: str) -> None:
    cols = 1024 if FORMATS[name].block > 1 else 1023
    matrix = packed(name, weights(name, 49, cols), cols)
    for tokens in (3, 29):
        x = activations(tokens, cols)
        bias = activations(1, 49)[0]
        residual = activations(tokens, 49)
        first, *others = (matrix.linear(x, bias, residual, isa=isa) for isa in ISAS)
        for other in others:
            np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_many_tokens_are_cut_into_blocks_without_a_trace(name: str, isa: str) -> None:
    """More activations than are swept at once: at each border of tiles and of blocks of tokens, and none of a tile."""
    cols = 512
    matrix = packed(name, weights(name, 20, cols), cols)
    x = activations(400, cols)
    residual = activations(400, 20)
    few = [matrix.linear(x[t : t + 3], None, residual[t : t + 3], isa=isa) for t in range(0, 399, 3)]
    want = np.concatenate([*few, matrix.linear(x[399:], None, residual[399:], isa=isa)])
    borders = (4, 8, 9, 11, 12, 13, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 95, 97, 191, 192, 193, 205, 383, 385)
    for tokens in (*borders, 400):
        got = matrix.linear(x[-tokens:], None, residual[-tokens:], isa=isa)
        np.testing.assert_array_equal(got, want[-tokens:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", QUANTIZED)
def test_long_rows_are_cut_into_chunks_without_a_trace(name: str, isa: str) -> None:
    """Around the cols that are expanded at once, and so many that only a few rows fit."""
    block = FORMATS[name].block
    for cols, tokens in ((1024 - block, 14), (1024, 14), (1024 + block, 14), (2048 + block, 30), (31 * 256, 105)):
        matrix = packed(name, weights(name, 17, cols), cols)
        x = activations(tokens, cols)
        want = np.concatenate([matrix.linear(x[t : t + 2], isa=isa) for t in range(0, tokens, 2)])
        np.testing.assert_array_equal(matrix.linear(x, isa=isa), want)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_too_long_to_be_swept(isa: str) -> None:
    cols, tokens = 96 << 10, 13
    matrix = packed("q4_1", weights("q4_1", 16, cols), cols)
    x = activations(tokens, cols)
    want = np.concatenate([matrix.linear(x[t : t + 1], isa=isa) for t in range(tokens)])
    np.testing.assert_array_equal(matrix.linear(x, isa=isa), want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["f16", "q4_k", "q8_0"])
def test_bias_then_residual_in_the_stated_order(name: str, isa: str) -> None:
    cols, rows = 256, 35
    matrix = packed(name, weights(name, rows, cols), cols)
    x, residual, bias = activations(5, cols), activations(5, rows), activations(1, rows)[0]
    plain = matrix.linear(x, isa=isa)
    np.testing.assert_array_equal(matrix.linear(x, bias, isa=isa), bias + plain)
    np.testing.assert_array_equal(matrix.linear(x, None, residual, isa=isa), residual + plain)
    np.testing.assert_array_equal(matrix.linear(x, bias, residual, isa=isa), residual + (bias + plain))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_only_the_asked_panels_are_written(name: str, isa: str) -> None:
    cols, rows, tokens = 256, 70, 11
    matrix = packed(name, weights(name, rows, cols), cols)
    x = activations(tokens, cols)
    want = matrix.linear(x, isa=isa)
    rows_in = kernel_rows(FORMATS[name], x, isa)
    wide = np.zeros((tokens, rows_in.shape[1] + 64), np.uint8)
    wide[:, : rows_in.shape[1]] = rows_in
    for a, b in ((0, 5), (1, 3), (4, 5), (2, 2)):
        frame = np.full((tokens + 2, rows + 40), 12345.0, np.float32)
        out = frame[1:-1, 20:-20]
        _core.linear(name, matrix.packed, rows, cols, wide[:, : rows_in.shape[1]], out, isa=isa, panel0=a, panel1=b)
        lo, hi = 16 * a, min(rows, 16 * b)
        np.testing.assert_array_equal(out[:, lo:hi], want[:, lo:hi])
        out[:, lo:hi] = 12345.0
        assert (frame == 12345.0).all()


@pytest.mark.parametrize("isa", ISAS)
def test_the_result_may_be_added_in_place(isa: str) -> None:
    cols, rows = 64, 33
    matrix = packed("q8_0", weights("q8_0", rows, cols), cols)
    x, out = activations(40, cols), activations(40, rows)
    want = matrix.linear(x, None, out, isa=isa)
    _core.linear("q8_0", matrix.packed, rows, cols, _core.quantize(x, isa), out, residual=out, isa=isa)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_a_poisoned_row_poisons_itself_alone(name: str, bad: float, isa: str) -> None:
    cols, rows = 256, 33
    data = weights(name, rows, cols)
    matrix = packed(name, data, cols)
    x = activations(14, cols)
    want = matrix.linear(x, isa=isa)
    x[4, 99] = bad
    got = matrix.linear(x, isa=isa)
    assert not np.isfinite(got[4]).any()
    np.testing.assert_array_equal(np.delete(got, 4, 0), np.delete(want, 4, 0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", QUANTIZED)
def test_the_greatest_codes_do_not_saturate(name: str, isa: str) -> None:
    """All codes at both ends of their range, against activations of one sign and of both."""
    cols, rows = 256, 32
    format = FORMATS[name]
    data = weights(name, rows, cols)
    blocks = data.reshape(rows, -1, format.nbytes)
    start, end = CODES[name]
    most, least = {"q8_0": (0x80, 0x7F), "q8_k": (0x80, 0x7F), "mxfp4": (0x77, 0xFF)}.get(name, (0xFF, 0x00))
    blocks[::3, :, start:end] = most
    blocks[1::3, :, start:end] = least
    w = format.decode_rows(data).astype(np.float64)
    x = np.full((13, cols), 3.0, np.float32)
    x[1::4] *= -1
    x[2::4, ::2] *= -1
    x[3::4, ::3] *= -1
    seen, _ = rounded(x)
    matrix = packed(name, data, cols)
    got = matrix.linear(x, isa=isa)
    np.testing.assert_array_equal(matrix.linear(x[:4], isa=isa), got[:4])
    # Codes and minima cancel nearly whole here, so the bound is that of the largest part.
    assert (np.abs(got - seen @ w.T) <= 1e-5 * np.abs(seen).sum(axis=1)[:, None] * np.abs(w).max()).all()


@pytest.mark.parametrize("isa", ISAS)
def test_every_exponent_of_mxfp4_is_a_power_of_two(isa: str) -> None:
    """Down to the subnormal ones; what is 127 rounds to itself under a scale of 1."""
    data = np.full((256, 17), 0x11, np.uint8)
    data[:, 0] = np.arange(256)
    got = packed("mxfp4", data, 32).linear(np.full((1, 32), 127.0, np.float32), isa=isa)[0]
    want = np.ldexp(32 * 127.0, np.arange(256) - 128)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, want.astype(np.float32))
