"""The vocabulary of the graph: a dozen kinds of op, their operands and shape rules.

Law: an op says what is computed, never how. A value is a row for each token: its `shape` is the shape of one row, and
the number of rows comes with the batch. A `Fused` op has no meaning of its own: it is its parts, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pellucid.errors import PellucidError

Activation = Literal["silu", "gelu_tanh"]
FusedKind = Literal["rms_norm", "rows", "linear", "rope_store_kv"]
"""What `fuse` makes (see there)."""


@dataclass(frozen=True)
class RopeSpec:
    """Rotary positions: pair j of the first `dims` values turns by position / linear · base^(-2j/dims) / factors[j]."""

    base: float
    dims: int
    linear: float = 1.0
    """Linear scaling: positions are divided by it."""
    factors: tuple[float, ...] | None = None
    """Divisor of each of the dims/2 frequencies (Llama 3's scaling, as in its rope_freqs)."""


@dataclass(frozen=True)
class Value:
    """A named result: one row of `shape` for each token."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Numbers in a row."""
        n = 1
        for s in self.shape:
            n *= s
        return n

    def __str__(self) -> str:
        return f"{self.name}[{'×'.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Embed:
    """out = table[token] · scale."""

    out: Value
    table: str
    scale: float


@dataclass(frozen=True)
class Normalize:
    """out = x / sqrt(mean(x²) + eps) over the last axis (RMSNorm without its weight; Zhang & Sennrich 2019)."""

    out: Value
    x: Value
    eps: float


@dataclass(frozen=True)
class Multiply:
    """out = x · weight over the last axis."""

    out: Value
    x: Value
    weight: str


@dataclass(frozen=True)
class Linear:
    """out = x · Wᵀ + bias; W is (out, in)."""

    out: Value
    x: Value
    weight: str
    bias: str | None = None


@dataclass(frozen=True)
class Rope:
    """Rotate the pairs (j, j + dims/2) of each head by its position's angles (Su et al. 2021, split halves)."""

    out: Value
    x: Value
    rope: RopeSpec


@dataclass(frozen=True)
class StoreKV:
    """Write k and v of each row to the cache of `layer`, in the cache's format."""

    layer: int
    k: Value
    v: Value


@dataclass(frozen=True)
class Attention:
    """z[h] = softmax(scale · q[h]·K) V over the keys of the row's own sequence, from the cache of `layer`.

    Query head h reads KV head h // (heads / kv_heads). Row at position p sees keys max(0, p - window + 1) … p; window 0
    sees all of 0 … p.
    """

    out: Value
    q: Value
    layer: int
    kv_heads: int
    scale: float
    window: int


@dataclass(frozen=True)
class Glu:
    """out = activation(gate) · up (Shazeer 2020)."""

    out: Value
    gate: Value
    up: Value
    activation: Activation


@dataclass(frozen=True)
class Add:
    """out = a + b."""

    out: Value
    a: Value
    b: Value


@dataclass(frozen=True)
class SelectRows:
    """out = the rows of x whose logits are wanted."""

    out: Value
    x: Value


@dataclass(frozen=True)
class Fused:
    """Several ops that a device runs as one, with float32 between them, so that the bits are those of its parts."""

    kind: FusedKind
    parts: tuple[Op, ...]
    outs: tuple[Value, ...]
    """Values that are seen outside it."""


Op = Embed | Normalize | Multiply | Linear | Rope | StoreKV | Attention | Glu | Add | SelectRows | Fused
"""Every kind of op there is."""

_VALUE_FIELDS = ("x", "k", "v", "q", "gate", "up", "a", "b")
_WEIGHT_FIELDS = ("table", "weight", "bias")


def inputs(op: Op) -> tuple[Value, ...]:
    """Values that the op reads; for a fused op those that come from outside it."""
    if isinstance(op, Fused):
        made = {v.name for p in plain(op.parts) for v in outputs(p)}
        seen = {v.name: v for p in op.parts for v in inputs(p) if v.name not in made}
        return tuple(seen.values())
    return tuple(v for f in _VALUE_FIELDS if isinstance(v := getattr(op, f, None), Value))


def outputs(op: Op) -> tuple[Value, ...]:
    """Values that the op makes; for a fused op those that are seen outside it."""
    if isinstance(op, Fused):
        return op.outs
    out = getattr(op, "out", None)
    return (out,) if isinstance(out, Value) else ()


def plain(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops with the fused ones taken apart."""
    for op in ops:
        if isinstance(op, Fused):
            yield from plain(op.parts)
        else:
            yield op


def weights(op: Op) -> tuple[str, ...]:
    """Canonical names of the weights that the op reads."""
    if isinstance(op, Fused):
        return tuple(w for p in op.parts for w in weights(p))
    return tuple(w for f in _WEIGHT_FIELDS if isinstance(w := getattr(op, f, None), str))


def check(op: Op) -> None:
    """Raise PellucidError if the operands' shapes contradict each other."""

    def need(ok: bool, what: str) -> None:
        if not ok:
            raise PellucidError(f"graph: {describe(op)}: {what}")

    match op:
        case Normalize(out, x) | Multiply(out, x) | SelectRows(out, x):
            need(out.shape == x.shape, "input and output differ in shape")
        case Rope(out, x, rope):
            need(out.shape == x.shape and len(x.shape) == 2, "rope takes and gives (heads, d_head)")
            need(rope.dims % 2 == 0 and 0 < rope.dims <= x.shape[1], "rope dims must be even and at most d_head")
            need(rope.factors is None or len(rope.factors) == rope.dims // 2, "one factor a frequency")
        case StoreKV(_, k, v):
            need(k.shape == v.shape and len(k.shape) == 2, "k and v are (kv_heads, d_head)")
        case Attention(out, q, _, kv_heads):
            need(out.shape == q.shape and len(q.shape) == 2, "q and z are (heads, d_head)")
            need(q.shape[0] % kv_heads == 0, "heads must be a multiple of kv_heads")
        case Glu(out, gate, up):
            need(out.shape == gate.shape == up.shape, "gate, up and output differ in shape")
        case Add(out, a, b):
            need(out.shape == a.shape == b.shape, "operands and output differ in shape")
        case Fused(parts=parts):
            for p in parts:
                check(p)
        case Embed() | Linear():
            pass


def describe(op: Op) -> str:
    """One line for people: output = kind(inputs; weights; attributes)."""
    kind = op.kind if isinstance(op, Fused) else type(op).__name__.lower()
    operands = ", ".join(v.name for v in inputs(op))
    attributes: list[str] = [*weights(op)]
    for field in ("layer", "eps", "scale", "window", "activation"):
        value = getattr(op, field, None)
        if value is not None:
            attributes.append(f"{field}={value:.9g}" if isinstance(value, float) else f"{field}={value}")
    if isinstance(op, Rope):
        r = op.rope
        scaling = f" linear={r.linear:g}" if r.linear != 1 else ""
        attributes.append(f"base={r.base:g} dims={r.dims}{scaling}{' factors' if r.factors else ''}")
    results = ", ".join(map(str, outputs(op))) or "-"
    return f"{results} = {kind}({operands}{'; ' if attributes else ''}{', '.join(attributes)})"
