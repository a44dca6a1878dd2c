"""What a head looks at, by the core, against NumPy: windows, bounds, sinks, any rows, every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from pellucid import _core


def groups_of(k: np.ndarray) -> np.ndarray:
    room = -(-len(k) // 16) * 16
    padded = np.zeros((room, k.shape[1]), np.float32)
    padded[: len(k)] = k
    padded[len(k) :] = np.nan  # nobody may read keys that are not there
    return np.ascontiguousarray(padded.reshape(-1, 16, k.shape[1]).transpose(0, 2, 1))


@pytest.mark.parametrize("isa", _core.isas())
@pytest.mark.parametrize("window", [0, 5, 40])
@pytest.mark.parametrize(("cap", "sink"), [(0.0, None), (3.0, None), (0.0, 0.7)])
@pytest.mark.parametrize("rows", [[0], [76], [3, 4, 5, 6, 7], [0, 15, 16, 17, 40, 76]])
def test_weights_are_numpys(isa: str, window: int, cap: float, sink: float | None, rows: list[int]) -> None:
    rng = np.random.default_rng(1)
    n, d, scale = 77, 24, 0.3
    k = rng.standard_normal((n, d)).astype(np.float32)
    both = rng.standard_normal((len(rows), 2, d)).astype(np.float32)
    q = both[:, 1]  # strided, as one head among several
    tokens = rng.integers(0, 5, n)
    previous = np.full(81, -1, np.float32)
    previous[1 : n + 1] = tokens
    sums, weights = np.zeros(9 + 1), np.zeros((len(rows), n), np.float32)
    spans = np.array([[2, 9]], np.int32)
    positions = np.array(rows, np.int32)
    _core.look(q, positions, groups_of(k), scale, cap, window, sink, previous, spans, sums, weights, isa)

    due = np.zeros((len(rows), n))
    total = np.zeros(10)
    for i, p in enumerate(rows):
        s = (q[i].astype(np.float64) @ k.T.astype(np.float64)) * scale
        s = cap * np.tanh(s / cap) if cap else s
        first = max(0, p - window + 1) if window else 0
        e = np.zeros(n)
        e[first : p + 1] = np.exp(s[first : p + 1])
        extra = np.exp(sink) if sink is not None else 0.0
        w = due[i] = e / (e.sum() + extra)
        share = extra / (e.sum() + extra)
        back = p - np.arange(n)
        logs = np.where(w > 0, w * np.log(np.where(w > 0, w, 1)), 0).sum() + (share * np.log(share) if share else 0)
        follows = np.array([j > 0 and tokens[j - 1] == tokens[p] for j in range(n)])
        total += [
            w[p],
            w[p - 1] if p else 0,
            w[0],
            w[max(0, p - 15) : p + 1].sum(),
            -logs,
            (w * back).sum(),
            (w * back**2).sum() - (w * back).sum() ** 2,
            w[follows].sum(),
            share,
            w[2:9].sum(),
        ]
    assert np.allclose(weights, due, atol=2e-6)
    assert np.allclose(sums, total, atol=2e-4)


def test_arrays_that_do_not_fit_are_refused() -> None:
    q, keys, previous = np.zeros((2, 8), np.float32), np.zeros((1, 8, 16), np.float32), np.zeros(17, np.float32)
    spans = np.empty((0, 2), np.int32)
    good = np.array([0, 1], np.int32)
    for positions, before, wide, message in (
        (np.array([1, 0], np.int32), previous, 16, "ascend"),
        (np.array([0, 16], np.int32), previous, 16, "have keys"),
        (np.array([-1, 0], np.int32), previous, 16, "have keys"),
        (good, previous[:16], 16, "differ in size"),
        (good, previous, 1, "have keys"),
        (good[:1], previous, 16, "differ in size"),
    ):
        with pytest.raises(ValueError, match=message):
            weights = np.zeros((2, wide), np.float32)
            _core.look(q, positions, keys, 1.0, 0.0, 0, None, before, spans, None, weights, "")
