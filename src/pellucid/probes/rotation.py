"""How a layer tells positions apart: the angle of each pair of values, by distance.

Law: read from the very angles that the plan uses; a frequency above half a turn a token shows there as its remainder,
so the formula has it whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pellucid.errors import RequestError
from pellucid.graph.reference import rope_angles
from pellucid.models.spec import ModelSpec

F64 = NDArray[np.float64]
DISTANCES = (1, 4, 16, 64, 256, 1024, 4096)


@dataclass(frozen=True)
class Rotation:
    """The rotary positions of one layer (Su et al. 2021)."""

    layer: int
    base: float
    dims: int
    window: int
    """Sliding window in tokens; 0: all keys."""
    trained_context: int
    frequencies: F64
    """(dims / 2,): radians a token."""
    wavelengths: F64
    """Tokens a turn."""
    distances: NDArray[np.int64]
    angles: F64
    """(distances, dims / 2): radians."""
    mean_cosine: F64
    """(distances,): how alike a vector of ones and itself are, seen from so far."""
    linear: float
    scaled: bool
    """The frequencies have divisors."""


def rotation(spec: ModelSpec, layer: int, context: int, distances: Sequence[int] = DISTANCES) -> Rotation:
    """Read a layer's positions. Raises RequestError: there is no such layer, or it does not rotate."""
    if not 0 <= layer < spec.n_layers:
        raise RequestError(f"layer {layer} is not there; this model has 0 to {spec.n_layers - 1}", param="layer")
    found = spec.layers[layer].rope
    if found is None:
        raise RequestError(f"layer {layer} of this model does not rotate its queries and keys", param="layer")
    settled = found.at(context)
    away = np.array(distances)
    cos, sin = rope_angles(settled, np.array([0, 1]))
    step = np.arctan2(sin[1], cos[1]).astype(np.float64)
    exact = settled.base ** (-2.0 * np.arange(settled.dims // 2) / settled.dims)
    exact = exact / np.asarray(settled.factors or 1.0) / settled.linear
    step = np.where(exact > math.pi, exact, np.where(np.abs(step) > 1e-6, step, exact))
    angles = away[:, None] * step[None]
    return Rotation(
        layer,
        settled.base,
        settled.dims,
        spec.layers[layer].window,
        spec.context,
        step,
        2 * math.pi / step,
        away,
        angles,
        np.cos(angles).mean(axis=1),
        settled.linear,
        settled.factors is not None,
    )
