"""Forks: what a run would be if some value were other than it is.

Law: a fork is a replay of its own; the served request is never touched. Each maker here gives hooks for Replay.run, and
several join by `together`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pellucid.errors import RequestError
from pellucid.probes.anatomy import Anatomy
from pellucid.probes.attention import attend
from pellucid.probes.replay import Hook, Replay

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Hooks = dict[str, Hook]


def scale_heads(anatomy: Anatomy, layer: int, heads: Sequence[int], factor: float = 0.0) -> Hooks:
    """Multiply what some heads of a layer give by a factor; 0 ablates them."""
    for head in heads:
        anatomy.head(layer, head)
    chosen = list(heads)

    def scale(z: F32, rows: I32) -> None:
        z[:, chosen] *= np.float32(factor)

    return {anatomy.head(layer).z: scale}


def scale_part(anatomy: Anatomy, layer: int, part: str, factor: float = 0.0) -> Hooks:
    """Multiply what the attention ("attn") or the MLP ("mlp") of a layer adds to the residual stream."""
    anatomy.head(layer)
    if part not in ("attn", "mlp"):
        raise RequestError(f"part={part!r} is none; choose attn or mlp", param="part")

    def scale(x: F32, rows: I32) -> None:
        x *= np.float32(factor)

    return {f"blocks.{layer}.hook_{part}_out": scale}


def put(name: str, position: int, values: F32) -> Hooks:
    """Put values in the place of a value's row: activation patching (Meng et al. 2022)."""

    def write(x: F32, rows: I32) -> None:
        at = np.flatnonzero(rows == position)
        if len(at):
            if x.shape[1:] != values.shape:
                raise RequestError(f"{name} has rows of shape {x.shape[1:]}, not {values.shape}", param="values")
            x[at[0]] = values

    return {name: write}


def mask_span(replay: Replay, first: int, end: int, *, nothing: bool = False) -> Hooks:
    """Have no later token see the keys of positions first to end, in any layer; tokens of the span see as ever.

    nothing: mask no key, and take the same path: what that changes is the rounding of this path.
    """
    if not 0 <= first < end <= len(replay.tokens):
        raise RequestError(f"tokens {first} to {end} are no span of {len(replay.tokens)} tokens", param="span")
    masked = np.zeros(len(replay.tokens), np.bool_)
    masked[first:end] = not nothing
    asked: dict[int, F32] = {}
    hooks: Hooks = {}
    for layer in replay.anatomy.layers:

        def keep(q: F32, rows: I32, at: int = layer.layer) -> None:
            asked[at] = q.copy()

        def recompute(z: F32, rows: I32, at: int = layer.layer) -> None:
            late = rows >= end
            q = asked.pop(at)
            if late.any():
                z[late] = attend(replay, replay.anatomy.layers[at], q[late], rows[late], masked)

        hooks[layer.q] = keep
        hooks[layer.z] = recompute
    return hooks


def together(*several: Mapping[str, Hook]) -> Hooks:
    """One set of hooks that does what all do, in order."""
    out: Hooks = {}
    for hooks in several:
        for name, hook in hooks.items():
            out[name] = _both(out[name], hook) if name in out else hook
    return out


def _both(first: Hook, second: Hook) -> Hook:
    def hook(x: F32, rows: I32) -> None:
        first(x, rows)
        second(x, rows)

    return hook
