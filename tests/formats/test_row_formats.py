"""KV row formats: round trip and the rules a device must follow to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid.formats import KV_FORMATS, RowFormat


@pytest.mark.parametrize("fmt", KV_FORMATS.values(), ids=KV_FORMATS.keys())
@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize("d", [32, 64, 256])
def test_round_trip(fmt: RowFormat, n: int, d: int) -> None:
    x = np.random.default_rng(d).standard_normal((n, d)).astype(np.float32) * 3
    rows = fmt.encode(x)
    assert rows.shape == (n, fmt.row_bytes(d))
    assert rows.dtype == np.uint8
    back = fmt.decode(rows)
    assert back.shape == x.shape
    assert np.abs(back - x).max(initial=0) <= {"f16": 0.005, "q8_0": 0.06}[fmt.name]


@pytest.mark.parametrize("fmt", KV_FORMATS.values(), ids=KV_FORMATS.keys())
def test_what_was_read_back_encodes_to_the_same_bytes(fmt: RowFormat) -> None:
    x = np.random.default_rng(5).standard_normal((50, 64)).astype(np.float32)
    once = fmt.encode(x)
    assert np.abs(fmt.decode(fmt.encode(fmt.decode(once))) - fmt.decode(once)).max() <= 1e-2


def test_q8_0_rules() -> None:
    fmt = KV_FORMATS["q8_0"]
    x = np.zeros((3, 32), np.float32)
    x[1, 0], x[1, 1], x[1, 2] = 127.0, 0.5, 1.5  # d = 1; halves go to even
    x[2, 0] = 1e-9  # d rounds to 0: zeros
    rows = fmt.encode(x)
    assert not rows[0].any()
    assert rows[1, :2].view(np.float16)[0] == 1.0
    assert rows[1, 2:5].view(np.int8).tolist() == [127, 0, 2]
    assert not rows[2].any()


def test_row_bytes() -> None:
    assert KV_FORMATS["f16"].row_bytes(80) == 160
    assert KV_FORMATS["q8_0"].row_bytes(64) == 68
    with pytest.raises(ValueError, match="32"):
        KV_FORMATS["q8_0"].row_bytes(80)
