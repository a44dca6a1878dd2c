"""Repacked weights decode to the bits of pellucid.formats, for all bits a file may hold."""

from __future__ import annotations

import numpy as np
import pytest

from kernelcases import NAMES, packed, weights
from pellucid import _core
from pellucid.formats import FORMATS


@pytest.mark.covers("packed", "name")
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("name", NAMES)
def test_rows_decode_to_the_bits_of_the_format(name: str, rows: int) -> None:
    cols = 3 * FORMATS[name].block if FORMATS[name].block > 1 else 77
    data = weights(name, rows, cols)
    matrix = packed(name, data, cols)
    got = np.stack([matrix.row(i) for i in range(rows)])
    assert got.view(np.uint32).tolist() == FORMATS[name].decode_rows(data).view(np.uint32).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_any_bits_decode(name: str) -> None:
    """Scales that are infinite, NaN or denormal come out as the format says."""
    cols = 4 * FORMATS[name].block if FORMATS[name].block > 1 else 64
    data = np.random.default_rng(3).integers(0, 256, (64, FORMATS[name].row_bytes(cols)), np.uint8)
    matrix = packed(name, data, cols)
    with np.errstate(invalid="ignore"):
        want = FORMATS[name].decode_rows(data)
    np.testing.assert_array_equal(np.stack([matrix.row(i) for i in range(64)]), want)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [5, 16, 33])
def test_several_matrices_are_packed_one_behind_the_other(name: str, rows: int) -> None:
    """For each expert one, each with panels of its own; by `pack` and in the background."""
    cols, count = 2 * FORMATS[name].block if FORMATS[name].block > 1 else 19, 7
    data = weights(name, count * rows, cols)
    due = np.concatenate([packed(name, data[i * rows : (i + 1) * rows], cols).packed for i in range(count)])
    one, other = (_core.Matrix(name, rows, cols, count=count) for _ in range(2))
    one.pack(data, threads=3)
    packing = _core.Packing(2)
    packing.add(other, data)
    while not packing.wait(1.0):
        pass
    assert packing.unmapped_bytes_left == 0
    assert packing.bytes_done == data.nbytes
    for matrix in (one, other):
        assert (matrix.rows, matrix.count, matrix.nbytes) == (rows, count, due.nbytes)
        assert np.array_equal(matrix.packed, due)
    got = np.stack([one.row(i) for i in range(count * rows)])
    assert got.view(np.uint32).tolist() == FORMATS[name].decode_rows(data).view(np.uint32).tolist()


@pytest.mark.parametrize("count", [0, -1, 1 << 30])
def test_absurd_numbers_of_matrices_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="outside what the kernels take"):
        _core.Matrix("q8_0", 1 << 10, 32, count=count)


@pytest.mark.parametrize("name", ["f16", "q4_0", "q6_k"])
def test_every_half_decodes(name: str) -> None:
    halves = np.arange(65536, dtype=np.uint16)
    if name == "f16":
        data = halves.view(np.uint8).reshape(256, 512)
        matrix = packed("f16", data, 256)
        got = np.stack([matrix.row(i) for i in range(256)]).ravel()
        np.testing.assert_array_equal(got, halves.view(np.float16).astype(np.float32))
        return
    format = FORMATS[name]
    data = np.full((65536, format.nbytes), 0x5A, np.uint8)
    at = 0 if name == "q4_0" else 208
    data[:, at : at + 2] = halves[:, None].view(np.uint8)
    matrix = packed(name, data, format.block)
    with np.errstate(invalid="ignore"):
        want = format.decode_rows(data)
    for i in range(0, 65536, 97):
        np.testing.assert_array_equal(matrix.row(i), want[i])


@pytest.mark.parametrize("name", NAMES)
def test_threads_pack_alike_and_keep_the_file_size(name: str) -> None:
    cols = 512
    data = weights(name, 100, cols)
    data.flags.writeable = False
    one, many = packed(name, data, cols), _core.Matrix(name, 100, cols)
    many.pack(data, threads=5)
    assert np.array_equal(one.packed, many.packed)
    assert one.nbytes <= 1.03 * FORMATS[name].row_bytes(cols) * 112
    assert not one.packed.flags.writeable


def test_every_format_that_is_called_native_is() -> None:
    for name, format in FORMATS.items():
        assert format.native or format.block == 1, name
        if format.native:
            assert _core.Matrix(name, 1, format.block).format == name
            continue
        with pytest.raises(ValueError, match="no format named"):
            _core.Matrix(name, 1, 1)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="whole blocks of 256"):
        _core.Matrix("q4_k", 16, 128)
    with pytest.raises(ValueError, match="no format named q9_9"):
        _core.Matrix("q9_9", 16, 128)
    with pytest.raises(ValueError, match="outside"):
        _core.Matrix("f32", 0, 128)
    matrix = _core.Matrix("q8_0", 16, 64)
    with pytest.raises(ValueError, match="data must have"):
        matrix.pack(np.zeros((16, 67), np.uint8))
    with pytest.raises(IndexError):
        matrix.row(16)
    with pytest.raises(ValueError, match="x must have"):
        matrix.linear(np.zeros((1, 32), np.float32))
    with pytest.raises(ValueError, match="bias must have"):
        matrix.linear(np.zeros((1, 64), np.float32), bias=np.zeros(15, np.float32))
