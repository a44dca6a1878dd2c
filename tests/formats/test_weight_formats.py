"""Every weight format against ggml's own meaning (the gguf package), over random bytes, odd scales and edge sizes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from pellucid.formats import FORMATS, Format, Weight

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS.keys())
REAL = pytest.mark.parametrize(
    "fmt", [f for f in FORMATS.values() if f.name[0] != "i" or f.block > 1], ids=lambda f: f.name
)
INTEGERS = ("i8", "i16", "i32", "i64")
NUMBERS = dict(zip(("f64", *INTEGERS), ("<f8", "<i1", "<i2", "<i4", "<i8"), strict=True))
HALVES = {"q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "iq4_nl": (0,)}
HALVES |= {"q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "iq4_xs": (0,)}
HALVES |= {"tq1_0": (52,), "tq2_0": (64,)}
ODD_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 0xBC00]
RTN_ERROR = {"f32": 0, "f16": 3e-4, "bf16": 3e-3, "q4_0": 0.095, "q4_1": 0.085, "q5_0": 0.047, "q8_0": 0.006}
RTN_ERROR |= {"q5_1": 0.039, "iq4_nl": 0.077, "mxfp4": 0.113, "f64": 0}
RTN_ERROR |= {"q2_k": 0.28, "q3_k": 0.156, "q4_k": 0.072, "q5_k": 0.037, "q6_k": 0.018, "q8_k": 0.0072}
RTN_ERROR |= {"iq4_xs": 0.078, "tq1_0": 0.44, "tq2_0": 0.44}
"""Of normal values, as a share of their deviation. Ternary: the least that three values allow."""


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))


def witness(fmt: Format, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        if fmt.name in NUMBERS:
            return blocks.view(NUMBERS[fmt.name]).astype(np.float32)
        if fmt.name == "q8_k":  # the gguf package lays it out but does not decode it: ggml's y = d · q
            return blocks[:, :4].copy().view("<f4") * blocks[:, 4:260].copy().view("<i1").astype(np.float32)
        return dequantize(blocks, gguf.GGMLQuantizationType(fmt.ggml_type))


@pytest.mark.covers("decode", "fmt")
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
def test_every_byte_of_a_block_decodes_as_ggml_does(fmt: Format) -> None:
    """All blocks of one byte: every code, every packed scale, every exponent, NaN and infinite scales among them."""
    blocks = np.arange(256, dtype=np.uint8)[:, None].repeat(fmt.nbytes, axis=1)
    assert same_bits(fmt.decode(blocks), witness(fmt, blocks))


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("scale", [0x7C00, 0xFC00, 0x7E00])
def test_a_scale_that_is_no_number_is_passed_on(name: str, scale: int) -> None:
    """It poisons its own block, without a warning, and no other."""
    fmt = FORMATS[name]
    blocks = fmt.encode(np.random.default_rng(8).standard_normal((3, fmt.block)).astype(np.float32))
    clean = fmt.decode(blocks)
    at = HALVES[name][0]
    blocks[1, at : at + 2] = np.array([scale], "<u2").view(np.uint8)
    got = fmt.decode(blocks)
    assert not np.isfinite(got[1]).all()
    assert same_bits(got[[0, 2]], clean[[0, 2]])


@ALL
def test_no_blocks(fmt: Format) -> None:
    assert fmt.decode(np.empty((0, fmt.nbytes), np.uint8)).shape == (0, fmt.block)


@REAL
def test_round_trip_error_is_that_of_the_format(fmt: Format) -> None:
    x = np.random.default_rng(2).standard_normal((64, 512)).astype(np.float32)
    back = fmt.decode_rows(fmt.encode_rows(x))
    assert np.sqrt(np.mean((back - x) ** 2)) / x.std() <= RTN_ERROR[fmt.name]


@REAL
def test_encoding_is_stable(fmt: Format) -> None:
    """Zeros stay zeros, constants and large values stay near and finite."""
    near = 0.143 if fmt.name == "mxfp4" else 0.04  # half a step of e2m1: 3.5 lies between 3 and 4
    for value in (0.0, 1.0, -3.5, 1e-6, 6e4, -6e4):
        x = np.full((2, 256), value, np.float32)
        back = fmt.decode_rows(fmt.encode_rows(x))
        assert np.isfinite(back).all()
        assert np.abs(back - x).max() <= near * abs(value) + 6e-8 * 16, value


@REAL
def test_what_was_decoded_encodes_to_nearly_the_same(fmt: Format) -> None:
    x = np.random.default_rng(6).standard_normal((8, 256)).astype(np.float32)
    once = fmt.decode_rows(fmt.encode_rows(x))
    again = fmt.decode_rows(fmt.encode_rows(once))
    assert np.sqrt(np.mean((again - once) ** 2)) <= 0.3 * max(RTN_ERROR[fmt.name], 1e-9)


@ALL
def test_an_outlier_is_kept(fmt: Format) -> None:
    """Of a block with one large value, of either sign, that value comes back nearly whole."""
    for value in (100.0, -100.0):
        x = np.random.default_rng(7).standard_normal((1, 256)).astype(np.float32)
        x[0, 77] = value
        assert abs(fmt.decode_rows(fmt.encode_rows(x))[0, 77] - value) <= 5


@pytest.mark.parametrize("name", ["tq1_0", "tq2_0"])
def test_ternary_weights_come_back_as_they_were(name: str) -> None:
    rng = np.random.default_rng(9)
    scales = rng.uniform(1e-3, 2, (40, 1)).astype(np.float16).astype(np.float32)
    x = scales * rng.integers(-1, 2, (40, 256)).astype(np.float32)
    fmt = FORMATS[name]
    assert same_bits(fmt.decode(fmt.encode(x)), x + np.float32(0))
    assert np.array_equal(fmt.encode(x), quantize(x, gguf.GGMLQuantizationType(fmt.ggml_type)).view(np.uint8))


def test_mxfp4_takes_the_better_exponent() -> None:
    """Never worse than OCP's own rounding, and better where that cuts off values above 6 · 2^e."""
    fmt = FORMATS["mxfp4"]
    x = np.random.default_rng(10).standard_normal((500, 32)).astype(np.float32)
    ocp = fmt.decode(quantize(x, gguf.GGMLQuantizationType.MXFP4).view(np.uint8))
    ours = fmt.decode(fmt.encode(x))
    error, plain = ((ours - x) ** 2).sum(axis=1), ((ocp - x) ** 2).sum(axis=1)
    assert (error <= plain).all()
    assert error.sum() < 0.96 * plain.sum()


def test_plain_numbers_at_the_ends_of_their_range() -> None:
    with np.errstate(over="ignore"):
        x = np.array([[1e300, -1e300, 1e-320, np.nan, np.inf, 0.1, 1 / 3, -0.0]]).astype("<f8")
        assert same_bits(FORMATS["f64"].decode_rows(x.view(np.uint8)), x.astype(np.float32))
    for name in INTEGERS:
        fmt = FORMATS[name]
        limits = np.iinfo(NUMBERS[name])
        x = np.array([[limits.min, limits.max, 0, -1]], NUMBERS[name])
        assert same_bits(fmt.decode_rows(x.view(np.uint8)), x.astype(np.float32))
        back = fmt.decode_rows(fmt.encode_rows(np.array([[-1e30, 1e30, 2.5, -3.4]], np.float32)))
        assert back[0].tolist() == [float(np.float32(limits.min)), float(np.float32(limits.max)), 2.0, -3.0]


def test_q8_k_stores_the_sums_of_its_codes() -> None:
    blocks = FORMATS["q8_k"].encode(np.random.default_rng(11).standard_normal((5, 256)).astype(np.float32))
    codes = blocks[:, 4:260].copy().view(np.int8).reshape(5, 16, 16)
    assert np.array_equal(blocks[:, 260:].copy().view("<i2"), codes.sum(axis=2))


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bf16", "f16"])
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
    for name, fmt in FORMATS.items():
        block, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(fmt.ggml_type)]
        assert (fmt.name, fmt.block, fmt.nbytes) == (name, block, nbytes)
    assert [n for n, f in FORMATS.items() if f.safetensors_dtype] == ["f32", "f16", "bf16", "f64"]
