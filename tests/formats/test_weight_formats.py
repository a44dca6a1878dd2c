"""Every weight format against ggml's own meaning (the gguf package), over random bytes, odd scales and edge sizes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from pellucid.formats import FORMATS, Format, Weight

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS.keys())
HALVES = {"q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q8_0": (0,), "q4_k": (0, 2), "q6_k": (208,)}
ODD_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 0xBC00]
RTN_ERROR = {"f32": 0, "f16": 3e-4, "bf16": 3e-3, "q4_0": 0.095, "q4_1": 0.085, "q5_0": 0.047, "q8_0": 0.006}
RTN_ERROR |= {"q4_k": 0.072, "q6_k": 0.018}


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))


def witness(fmt: Format, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return dequantize(blocks, gguf.GGMLQuantizationType(fmt.ggml_type))


@ALL
@pytest.mark.parametrize("n", [1, 2, 3, 17, 301])
def test_decode_equals_ggml_on_random_bytes(fmt: Format, n: int) -> None:
    blocks = np.random.default_rng(n).integers(0, 256, (n, fmt.nbytes), dtype=np.uint8)
    assert same_bits(fmt.decode(blocks), witness(fmt, blocks))


@ALL
def test_decode_equals_ggml_on_odd_scales(fmt: Format) -> None:
    places = HALVES.get(fmt.name, ())
    blocks = np.random.default_rng(1).integers(0, 256, (len(ODD_HALVES), fmt.nbytes), dtype=np.uint8)
    for shift, at in enumerate(places):
        blocks[:, at : at + 2] = np.roll(np.array(ODD_HALVES, "<u2"), shift)[:, None].view(np.uint8)
    assert same_bits(fmt.decode(blocks), witness(fmt, blocks))


@ALL
def test_no_blocks(fmt: Format) -> None:
    assert fmt.decode(np.empty((0, fmt.nbytes), np.uint8)).shape == (0, fmt.block)


@ALL
def test_round_trip_error_is_that_of_the_format(fmt: Format) -> None:
    x = np.random.default_rng(2).standard_normal((64, 512)).astype(np.float32)
    back = fmt.decode_rows(fmt.encode_rows(x))
    assert np.sqrt(np.mean((back - x) ** 2)) / x.std() <= RTN_ERROR[fmt.name]


@ALL
def test_encoding_is_stable(fmt: Format) -> None:
    """Zeros stay zeros, constants and large values stay near and finite."""
    for value in (0.0, 1.0, -3.5, 1e-6, 6e4, -6e4):
        x = np.full((2, 256), value, np.float32)
        back = fmt.decode_rows(fmt.encode_rows(x))
        assert np.isfinite(back).all()
        assert np.abs(back - x).max() <= 0.04 * abs(value) + 6e-8 * 16, value


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q8_0", "bf16", "f16"])
def test_encode_equals_ggml_reference(name: str) -> None:
    fmt = FORMATS[name]
    x = np.random.default_rng(3).standard_normal((33, 64)).astype(np.float32)
    assert np.array_equal(fmt.encode_rows(x), quantize(x, gguf.GGMLQuantizationType(fmt.ggml_type)).view(np.uint8))


def test_bf16_keeps_nan_and_rounds_to_even() -> None:
    bits = np.array([[0x7F800001, 0xFF800001, 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7FC00000]], np.uint32)
    got = FORMATS["bf16"].encode_rows(bits.view(np.float32)).view(np.uint16)[0]
    assert got.tolist() == [0x7FC0, 0xFFC0, 0x3F80, 0x3F82, 0x7F80, 0x7FC0]


@ALL
def test_row_bytes(fmt: Format) -> None:
    assert fmt.row_bytes(512) == 512 // fmt.block * fmt.nbytes
    if fmt.block > 1:
        with pytest.raises(ValueError, match=fmt.name):
            fmt.row_bytes(fmt.block + 1)


@ALL
@pytest.mark.parametrize("shape", [(256,), (1, 256), (5, 512), (4099, 256)])
def test_weight_decodes_to_its_shape(fmt: Format, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    if shape[0] > 1000 and fmt.block == 256:
        x = x[:40]
    w = Weight.from_float32("w", x, fmt)
    assert w.to_float32().shape == x.shape
    assert w.data.shape == (x.size // x.shape[-1], fmt.row_bytes(x.shape[-1]))
    assert same_bits(w.to_float32().reshape(-1, x.shape[-1]), fmt.decode_rows(w.data))


def test_table() -> None:
    assert list(FORMATS) == ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q8_0", "q4_k", "q6_k"]
    for name, fmt in FORMATS.items():
        block, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(fmt.ggml_type)]
        assert (fmt.name, fmt.block, fmt.nbytes) == (name, block, nbytes)
