"""Rotary positions: from a file's few numbers to the divisor of every frequency, and which layers rotate.

Law: each is a pure function of what the file states; both importers use the same. The divisors are computed in float64
and used in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pellucid.checkpoint.families import Family
from pellucid.models.spec import LayerSpec

Factors = tuple[float, ...]


def llama3_factors(base: float, dims: int, factor: float, low: float, high: float, trained: int) -> Factors:
    """1 for short waves, `factor` for long ones, and between them 1/f interpolated.

    Source: transformers' modeling_rope_utils, llama3.
    """
    factors: list[float] = []
    for j in range(dims // 2):
        turns = trained / (2 * math.pi * base ** (2 * j / dims))
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - smooth) / factor + smooth))
    return tuple(factors)


def yarn_factors(
    base: float, dims: int, factor: float, trained: int, fast: float, slow: float, *, whole: bool = True
) -> Factors:
    """YaRN (Peng et al. 2023): 1 for pairs that turn more than `fast` times in `trained` tokens, `factor` for those
    that turn less than `slow` times, and between them 1/f interpolated by the pair's number; `whole`: between whole
    numbers of pairs.
    """

    def pair(turns: float) -> float:
        """The pair, as a real number, that turns so often."""
        return dims * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(fast), pair(slow)
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    width = max(high - low, 0.001)
    ramp = (min(1.0, max(0.0, (j - low) / width)) for j in range(dims // 2))
    return tuple(1 / (r / factor + 1 - r) for r in ramp)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """YaRN's factor of q and of k, which sharpens the attention over longer sequences."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def longrope_magnitude(factor: float, trained: int) -> float:
    """LongRoPE's factor of q and of k (Ding et al. 2024)."""
    return 1.0 if factor <= 1 or trained <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))


def rotated_layers(
    family: Family, layers: Sequence[LayerSpec], interval: int, listed: Sequence[bool] | None = None
) -> tuple[LayerSpec, ...]:
    """The layers, without rotation where the family has none; a list of those that rotate wins over every
    `interval`-th that does not."""

    def rotates(i: int) -> bool:
        if family.rotated == "interval":
            return listed[i] if listed is not None else (i + 1) % interval != 0
        return family.rotated == "all" or (family.rotated == "windowed" and layers[i].window > 0)

    return tuple(layer if rotates(i) else replace(layer, rope=None) for i, layer in enumerate(layers))
