"""Weights of candidates, as whole numbers.

Law: a weight is exp(x) in float32 by a fixed polynomial, times 2**44, as an integer. Integer sums are exact: a mass has
the same bits in any order, on any number of lanes or threads, on any device, and the draw compares integers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pellucid.errors import EngineError

F32 = NDArray[np.float32]
U64 = NDArray[np.uint64]

WEIGHT_BITS = 44
"""A weight of 1 is 2**44: 2**18 tokens still sum below 2**63; each loses less than 2**-44 of the best token."""
WEIGHT_FROM = -32.0
"""Below this x a weight is 0: exp(-32) is under 2**-44."""


def exp32(x: F32) -> F32:
    """Return exp(x) for x in [-32, 0], float32, by multiplications and additions that are each rounded (no fma).

    The polynomial is that of Cephes' expf; within 2 ulp. exp32(0) is 1.
    """
    f = np.float32
    magic = f(12582912.0)  # 1.5 * 2**23: adding it rounds to a whole number
    n = (x * f(1.44269504088896341) + magic) - magic
    r = (x - n * f(0.693359375)) - n * f(-2.12194440e-4)
    p = f(1.9875691500e-4) * r + f(1.3981999507e-3)
    p = p * r + f(8.3334519073e-3)
    p = p * r + f(4.1665795894e-2)
    p = p * r + f(1.6666665459e-1)
    p = p * r + f(5.0000001201e-1)
    y = (p * (r * r) + r) + f(1.0)
    scale = ((n.astype(np.int32) + 127) << 23).view(np.float32)
    return np.multiply(y, scale, dtype=np.float32)


def weights(x: F32) -> U64:
    """Return floor(exp(x) * 2**44) of x <= 0, and 0 below x = -32."""
    w = exp32(np.maximum(x, np.float32(WEIGHT_FROM))) * np.float32(2.0**WEIGHT_BITS)
    w[x < np.float32(WEIGHT_FROM)] = 0
    return w.astype(np.uint64)


def best(logits: F32) -> np.float32:
    """Return the largest logit. Raises EngineError if one is NaN or +inf, or if none is above -inf."""
    top = logits.max()
    if np.isnan(top) or top == np.inf:
        raise EngineError("the model gave logits that are not finite (NaN or +inf)")
    if top == -np.inf:
        raise EngineError("no token may be drawn: every logit is -inf")
    return top


def order(x: F32) -> NDArray[np.int64]:
    """Return the ids of the candidates, best first, the lower id first among equals."""
    return np.argsort(-x, kind="stable")


def fraction53(share: float) -> int:
    """Return a share in [0, 1] as a whole number of 2**-53, rounded down."""
    return int(share * 2.0**53)


def share(total: int, of: float) -> int:
    """Return that share of a mass, in integers, rounded down."""
    return fraction53(of) * total >> 53


def surprise(x: F32, w: U64) -> float:
    """Return the mean of -x under the weights, float64: the mean surprise less log(sum(exp(x))).

    Each term w * -x is rounded to float64 and down to a whole number, so that their sum, too, is exact in any order.
    """
    terms = (w.astype(np.float64) * -x.astype(np.float64)).astype(np.uint64)
    return float(terms.sum(dtype=np.uint64)) / float(w.sum(dtype=np.uint64))


def deviation(x: F32) -> float:
    """Return the standard deviation of those x that are above -inf, float64.

    Sums run in 16 lanes, an id's being id mod 16, each in order of ids; then over the lanes in order.
    """

    def total(values: NDArray[np.float64]) -> float:
        lanes = np.zeros(-(-len(values) // 16) * 16)
        lanes[: len(values)] = values
        return float(np.cumsum(np.cumsum(lanes.reshape(-1, 16), axis=0)[-1])[-1])

    finite = x > -np.inf
    count = float(finite.sum())
    mean = total(np.where(finite, x, 0).astype(np.float64)) / count
    apart = np.where(finite, x, np.float32(mean)).astype(np.float64) - mean
    return float(np.sqrt(total(np.where(finite, apart * apart, 0.0)) / count))
