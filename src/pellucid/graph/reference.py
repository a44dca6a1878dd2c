"""The reference: NumPy in float32 is the meaning of every op.

Law: readable first, fast never. An op exists when it has a line here. Attention is the textbook one, which builds the
whole score matrix of a sequence. The reference runs one sequence; batches, pages and chunks are a device's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pellucid.errors import PellucidError
from pellucid.formats import KV_FORMATS
from pellucid.graph.graph import Graph
from pellucid.graph.ops import (
    Activate,
    Activation,
    Add,
    Attention,
    Embed,
    EmbedPosition,
    ExpertLinear,
    Fused,
    Gate,
    Glu,
    Linear,
    Mix,
    Multiply,
    Normalize,
    Op,
    Patch,
    Rope,
    RopeSpec,
    Route,
    Scale,
    SelectRows,
    Shift,
    SoftCap,
    StoreKV,
)

Array = NDArray[np.float32]


class Reference:
    """Runs a graph on one sequence with weights in float32.

    Args:
        graph: fused or not.
        weights: canonical name → float32 array.
        kv: format that K and V pass through ("f16", "q8_0"); None keeps them in float32.
        context: longest sequence that is served, for rotary positions that depend on it (RopeSpec.at).
    """

    def __init__(self, graph: Graph, weights: Mapping[str, Array], *, kv: str | None = None, context: int = 0) -> None:
        if missing := [w for w in graph.weights() if w not in weights]:
            raise PellucidError(f"reference: no weight {missing[0]} ({len(missing)} missing)")
        self.graph = graph
        self.weights = weights
        self.kv = kv
        self.context = context

    def run(
        self,
        tokens: Sequence[int],
        *,
        rows: Sequence[int] | None = None,
        watch: Callable[[str, Array], None] | None = None,
        patch: Callable[[str, Array], Array] | None = None,
    ) -> Array:
        """Logits (rows, vocab) of a sequence of tokens from position 0.

        Args:
            tokens: token ids.
            rows: rows whose logits are wanted; None: all.
            watch: called with the name and (tokens, *shape) of every value as it is made.
            patch: what Patch ops make of a value, by its name; None: they leave it.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        selected = np.arange(len(ids)) if rows is None else np.asarray(rows, dtype=np.int64)
        values: dict[str, Array] = {}
        cache: dict[int, tuple[Array, Array]] = {}

        def make(name: str, value: Array) -> None:
            values[name] = value.astype(np.float32, copy=False)
            if watch is not None:
                watch(name, values[name])

        def run(op: Op) -> None:
            w = self.weights
            match op:
                case Embed(out, table, scale):
                    make(out.name, w[table][ids] * np.float32(scale))
                case EmbedPosition(out, table):
                    make(out.name, w[table][: len(ids)])
                case Normalize(out, x, eps, groups, centered):
                    parts = values[x.name].reshape(len(values[x.name]), groups, -1)
                    make(out.name, normalize(parts, eps, centered).reshape(-1, *out.shape))
                case Multiply(out, x, weight, groups):
                    parts = values[x.name].reshape(len(values[x.name]), groups, -1)
                    make(out.name, (parts * w[weight]).reshape(-1, *out.shape))
                case Shift(out, x, bias):
                    make(out.name, values[x.name] + w[bias])
                case Scale(out, x, scale):
                    make(out.name, values[x.name] * np.float32(scale))
                case SoftCap(out, x, cap):
                    make(out.name, soft_cap(values[x.name], cap))
                case Linear(out, x, weight, bias):
                    flat = values[x.name].reshape(len(values[x.name]), -1) @ w[weight].T
                    make(out.name, (flat + w[bias] if bias else flat).reshape(-1, *out.shape))
                case Rope(out, x, rope):
                    make(out.name, rotate(values[x.name], rope.at(self.context), np.arange(len(ids))))
                case StoreKV(layer, k, v):
                    cache[layer] = (self._stored(values[k.name]), self._stored(values[v.name]))
                case Attention(out, q, layer, _, scale, window, cap, sinks):
                    sunk = w[sinks] if sinks else None
                    kv = cache[layer]
                    make(out.name, attend(values[q.name], *kv, scale=scale, window=window, cap=cap, sinks=sunk))
                case Activate(out, x, activation):
                    make(out.name, activate(values[x.name], activation))
                case Glu(out, gate, up, activation):
                    make(out.name, glu(values[gate.name], values[up.name], activation))
                case Gate(out, x, gate):
                    make(out.name, values[x.name] * sigmoid(values[gate.name]))
                case Route(out, chosen, x, normalized):
                    experts, shares = route(values[x.name], out.size, normalized)
                    make(chosen.name, experts)
                    make(out.name, shares)
                case ExpertLinear(out, x, chosen, weight, bias):
                    experts, rows = values[chosen.name].astype(np.int64), values[x.name]
                    rows = np.broadcast_to(
                        rows.reshape(len(rows), -1, rows.shape[-1]), (*experts.shape, rows.shape[-1])
                    )
                    product = expert_products(rows, experts, w[weight])
                    make(out.name, product + w[bias][experts] if bias else product)
                case Mix(out, x, shares):
                    parts = values[x.name] * values[shares.name][..., None]
                    make(out.name, sum((parts[:, j] for j in range(1, parts.shape[1])), parts[:, 0]))
                case Add(out, a, b):
                    make(out.name, values[a.name] + values[b.name])
                case SelectRows(out, x):
                    make(out.name, values[x.name][selected])
                case Patch(out, x):
                    make(out.name, values[x.name] if patch is None else patch(x.name, values[x.name].copy()))
                case Fused(parts=parts):
                    for part in parts:
                        run(part)

        for op in self.graph.ops:
            run(op)
        return values[self.graph.result.name]

    def _stored(self, x: Array) -> Array:
        if self.kv is None:
            return x
        f = KV_FORMATS[self.kv]
        return f.decode(f.encode(x.reshape(-1, x.shape[-1]))).reshape(x.shape)


def normalize(x: Array, eps: float, centered: bool = False) -> Array:
    """x / sqrt(mean(x²) + eps) over the last axis; centered: of x less its mean."""
    if centered:
        x = x - np.mean(x, axis=-1, keepdims=True)
    return x * (1.0 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps)))


def soft_cap(x: Array, cap: float) -> Array:
    """cap · tanh(x / cap)."""
    return np.float32(cap) * np.tanh(x / np.float32(cap))


def rope_angles(rope: RopeSpec, positions: NDArray[np.int64]) -> tuple[Array, Array]:
    """Cosines and sines (positions, dims/2), times the magnitude, of a rotation free of conditions (RopeSpec.at);
    frequencies and angles in float32, as the models were trained."""
    exponent = np.arange(0, rope.dims, 2, dtype=np.float32) / np.float32(rope.dims)
    frequency = np.float32(1.0) / np.power(np.float32(rope.base), exponent, dtype=np.float32)
    if rope.factors is not None:
        frequency = frequency / np.asarray(rope.factors, dtype=np.float32)
    frequency = frequency / np.float32(rope.linear)
    angles = (positions.astype(np.float32)[:, None] * frequency[None, :]).astype(np.float64)
    magnitude = np.float32(rope.magnitude)
    return np.cos(angles).astype(np.float32) * magnitude, np.sin(angles).astype(np.float32) * magnitude


def rotate(x: Array, rope: RopeSpec, positions: NDArray[np.int64]) -> Array:
    """Rotate pairs (j, j + dims/2) of each head of x (tokens, heads, d_head)."""
    cos, sin = (a[:, None, :] for a in rope_angles(rope, positions))
    half = rope.dims // 2
    out = x.copy()
    a, b = x[..., :half], x[..., half : rope.dims]
    out[..., :half] = a * cos - b * sin
    out[..., half : rope.dims] = b * cos + a * sin
    return out


def attend(
    q: Array, k: Array, v: Array, *, scale: float, window: int, cap: float = 0.0, sinks: Array | None = None
) -> Array:
    """Causal attention of q (tokens, heads, d) over k, v (tokens, kv_heads, d); materialises tokens × tokens scores."""
    n, heads, _ = q.shape
    group = heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * np.float32(scale)
    if cap:
        scores = soft_cap(scores, cap)
    seen = np.tri(n, dtype=np.bool_)
    if window:
        seen &= ~np.tri(n, k=-window, dtype=np.bool_)
    scores = np.where(seen, scores, -np.inf)
    most = scores.max(axis=-1, keepdims=True)
    sunk = None if sinks is None else np.broadcast_to(sinks[:, None, None], most.shape)
    if sunk is not None:
        most = np.maximum(most, sunk)
    weights = np.exp(scores - most)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= total if sunk is None else total + np.exp(sunk - most)
    return np.einsum("hqk,khd->qhd", weights, v)


def activate(x: Array, kind: Activation) -> Array:
    """silu: x · sigmoid(x). gelu_tanh: the tanh form of GELU (Hendrycks & Gimpel 2016)."""
    if kind == "silu":
        return x * sigmoid(x)
    inner = np.float32(np.sqrt(2.0 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1.0) + np.tanh(inner))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    # exp(-|x|) cannot overflow; both branches are the same function.
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e)).astype(np.float32)


def glu(gate: Array, up: Array, kind: Activation) -> Array:
    """What Glu says."""
    if kind != "clamped":
        return activate(gate, kind) * up
    low, high, one = np.float32(-7), np.float32(7), np.float32(1)
    bounded: Array = np.minimum(gate, high)
    other: Array = np.minimum(np.maximum(up, low), high)
    product = bounded * sigmoid(np.float32(1.702) * bounded) * (other + one)
    return product.astype(np.float32, copy=False)


def route(logits: Array, top: int, normalized: bool) -> tuple[Array, Array]:
    """What Route says: numbers and weights (tokens, top) of the chosen of (tokens, experts)."""
    # A stable sort keeps the lower number first among equals. NaN, below all numbers, comes after -inf.
    sunk = np.where(np.isnan(logits), -np.inf, logits)
    order = np.lexsort((np.isnan(logits), -sunk), axis=-1)
    chosen = np.sort(order[:, :top], axis=-1)
    taken = np.take_along_axis(logits, chosen, axis=-1)
    with np.errstate(invalid="ignore"):
        most = sunk.max(axis=-1, keepdims=True)
        total = np.exp((taken if normalized else logits) - most).sum(axis=-1, keepdims=True)
        return chosen.astype(np.float32), np.exp(taken - most) / total


def expert_products(x: Array, chosen: NDArray[np.int64], weight: Array) -> Array:
    """x (tokens, chosen, in) times the matrix of each chosen expert: (tokens, chosen, out)."""
    out = np.empty((*chosen.shape, weight.shape[1]), np.float32)
    for expert in np.unique(chosen):
        at = chosen == expert
        out[at] = x[at] @ weight[expert].T
    return out
