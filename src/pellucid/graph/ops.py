"""The vocabulary of the graph: some twenty-five kinds of op, their operands and shape rules.

Law: an op says what is computed, never how. A value is a row for each token: its `shape` is the shape of one row, and
the number of rows comes with the batch. A `Fused` op has no meaning of its own: it is its parts, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from pellucid.errors import PellucidError

Activation = Literal["silu", "gelu_tanh", "clamped"]
"""clamped: of Glu only (see there)."""
FusedKind = Literal["rms_norm", "layer_norm", "rows", "linear", "experts", "rope_store_kv"]
"""What `fuse` makes (see there)."""


@dataclass(frozen=True)
class RopeSpec:
    """Rotary positions: pair j of the first `dims` values turns by position / linear · base^(-2j/dims) / factors[j].

    Some models turn otherwise when sequences may be longer than those they were first trained on. What then holds
    depends on the longest sequence that is served, never on a sequence's own length: `at` settles it, once, so that a
    key in the cache is right for every later query and no bits depend on what came with it.
    """

    base: float
    dims: int
    linear: float = 1.0
    """Linear scaling: positions are divided by it."""
    factors: tuple[float, ...] | None = None
    """Divisor of each of the dims/2 frequencies (Llama 3's scaling, YaRN's, LongRoPE's for short sequences)."""
    magnitude: float = 1.0
    """Factor of what was rotated, on q and k alike (YaRN's and LongRoPE's correction of the attention)."""
    trained: int = 0
    """Length up to which the above holds; 0: always."""
    long_factors: tuple[float, ...] | None = None
    """The divisors where sequences may be longer than `trained` (LongRoPE; Ding et al. 2024)."""
    stretch: float = 0.0
    """Where sequences may be longer than `trained`, the base grows with their length by this factor (dynamic NTK); 0:
    it does not."""

    def at(self, context: int) -> RopeSpec:
        """What holds where sequences may be `context` tokens long, free of conditions."""
        settled = replace(self, trained=0, long_factors=None, stretch=0.0)
        if not self.trained or context <= self.trained:
            return settled
        base = self.base
        if self.stretch and self.dims > 2:
            base *= (self.stretch * context / self.trained - self.stretch + 1.0) ** (self.dims / (self.dims - 2))
        return replace(settled, base=base, factors=self.long_factors or self.factors)


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
class EmbedPosition:
    """out = table[position] (learned absolute positions)."""

    out: Value
    table: str


@dataclass(frozen=True)
class Normalize:
    """out = x / sqrt(mean(x²) + eps) over each of `groups` equal parts of the row (RMSNorm without its weight; Zhang &
    Sennrich 2019). Centered: the part's mean is taken off first (LayerNorm; Ba et al. 2016)."""

    out: Value
    x: Value
    eps: float
    groups: int = 1
    centered: bool = False


@dataclass(frozen=True)
class Multiply:
    """out = x · weight over each of `groups` equal parts of the row."""

    out: Value
    x: Value
    weight: str
    groups: int = 1


@dataclass(frozen=True)
class Shift:
    """out = x + bias."""

    out: Value
    x: Value
    bias: str


@dataclass(frozen=True)
class Scale:
    """out = x · scale."""

    out: Value
    x: Value
    scale: float


@dataclass(frozen=True)
class SoftCap:
    """out = cap · tanh(x / cap)."""

    out: Value
    x: Value
    cap: float


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
    """z[h] = softmax(c(scale · q[h]·K)) V over the keys of the row's own sequence, from the cache of `layer`; c is
    SoftCap with `cap`, or nothing where that is 0. With sinks the sum that the softmax divides by also counts
    exp(sinks[h]), as if a key were seen whose value is 0 (Xiao et al. 2023).

    Query head h reads KV head h // (heads / kv_heads). Row at position p sees keys max(0, p - window + 1) … p; window 0
    sees all of 0 … p.
    """

    out: Value
    q: Value
    layer: int
    kv_heads: int
    scale: float
    window: int
    cap: float = 0.0
    sinks: str | None = None
    """One number a head."""


@dataclass(frozen=True)
class Activate:
    """out = activation(x)."""

    out: Value
    x: Value
    activation: Activation


@dataclass(frozen=True)
class Glu:
    """out = activation(gate) · up (Shazeer 2020). clamped: g · sigmoid(1.702 g) · (u + 1), where g is the lesser of
    gate and 7, and u is up kept within ±7."""

    out: Value
    gate: Value
    up: Value
    activation: Activation


@dataclass(frozen=True)
class Gate:
    """out = x · sigmoid(gate), the gate one number a row."""

    out: Value
    x: Value
    gate: Value


@dataclass(frozen=True)
class Route:
    """Choose experts by the logits x, one an expert.

    chosen: the `top` experts of the greatest logits (of equal ones those of lower numbers; a NaN is less than any
    number), in ascending order of their numbers. out: softmax of the chosen ones' logits, or, not normalized, their
    share of the softmax over all (Shazeer et al. 2017).
    """

    out: Value
    chosen: Value
    """Whole numbers."""
    x: Value
    normalized: bool


@dataclass(frozen=True)
class ExpertLinear:
    """out[j] = x[j] · W[chosen[j]]ᵀ + bias[chosen[j]], where all j share x if that is a single vector; W is (experts,
    out, in)."""

    out: Value
    x: Value
    chosen: Value
    weight: str
    bias: str | None = None


@dataclass(frozen=True)
class Mix:
    """out = the sum of weights[j] · x[j], in the order of j: that of the experts' numbers."""

    out: Value
    x: Value
    weights: Value


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
class Patch:
    """out = x, as whoever runs a fork leaves it: the one place where a run may be changed from outside."""

    out: Value
    x: Value


@dataclass(frozen=True)
class Fused:
    """Several ops that a device runs as one, with float32 between them, so that the bits are those of its parts."""

    kind: FusedKind
    parts: tuple[Op, ...]
    outs: tuple[Value, ...]
    """Values that are seen outside it."""


Op = (
    Embed
    | EmbedPosition
    | Normalize
    | Multiply
    | Shift
    | Scale
    | SoftCap
    | Linear
    | Rope
    | StoreKV
    | Attention
    | Activate
    | Glu
    | Gate
    | Route
    | ExpertLinear
    | Mix
    | Add
    | SelectRows
    | Patch
    | Fused
)
"""Every kind of op there is."""

_VALUE_FIELDS = ("x", "k", "v", "q", "gate", "up", "weights", "a", "b")
_WEIGHT_FIELDS = ("table", "weight", "bias", "sinks")


def inputs(op: Op) -> tuple[Value, ...]:
    """Values that the op reads; for a fused op those that come from outside it."""
    if isinstance(op, Fused):
        made = {v.name for p in plain(op.parts) for v in outputs(p)}
        seen = {v.name: v for p in op.parts for v in inputs(p) if v.name not in made}
        return tuple(seen.values())
    fields = (*_VALUE_FIELDS, "chosen") if isinstance(op, ExpertLinear) else _VALUE_FIELDS
    return tuple(v for f in fields if isinstance(v := getattr(op, f, None), Value))


def outputs(op: Op) -> tuple[Value, ...]:
    """Values that the op makes; for a fused op those that are seen outside it."""
    if isinstance(op, Fused):
        return op.outs
    if isinstance(op, Route):
        return (op.chosen, op.out)
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
        case Normalize(out, x, groups=groups) | Multiply(out, x, groups=groups):
            need(out.shape == x.shape, "input and output differ in shape")
            need(groups > 0 and x.size % groups == 0, "the row does not divide into its groups")
        case Shift(out, x) | Scale(out, x) | SoftCap(out, x) | Activate(out, x) | SelectRows(out, x) | Patch(out, x):
            need(out.shape == x.shape, "input and output differ in shape")
        case Rope(out, x, rope):
            need(out.shape == x.shape and len(x.shape) == 2, "rope takes and gives (heads, d_head)")
            need(rope.dims % 2 == 0 and 0 < rope.dims <= x.shape[1], "rope dims must be even and at most d_head")
            for factors in (rope.factors, rope.long_factors):
                need(factors is None or len(factors) == rope.dims // 2, "one factor a frequency")
        case StoreKV(_, k, v):
            need(k.shape == v.shape and len(k.shape) == 2, "k and v are (kv_heads, d_head)")
        case Attention(out, q, _, kv_heads):
            need(out.shape == q.shape and len(q.shape) == 2, "q and z are (heads, d_head)")
            need(q.shape[0] % kv_heads == 0, "heads must be a multiple of kv_heads")
        case Glu(out, gate, up):
            need(out.shape == gate.shape == up.shape, "gate, up and output differ in shape")
        case Gate(out, x, gate):
            need(out.shape == x.shape and gate.shape == (1,), "a gate is one number, and input and output of one shape")
        case Route(out, chosen, x):
            need(out.shape == chosen.shape and len(out.shape) == 1, "each chosen expert has one weight")
            need(0 < out.size <= x.size, "no more experts can be chosen than there are")
        case ExpertLinear(out, x, chosen):
            need(len(out.shape) == 2 and chosen.shape == out.shape[:1], "the output has a row for each chosen expert")
            need(len(x.shape) == 1 or x.shape[0] == out.shape[0], "the input is one row, or one for each chosen expert")
        case Mix(out, x, shares):
            need(x.shape == (*shares.shape, *out.shape), "the input has a row for each weight")
        case Add(out, a, b):
            need(out.shape == a.shape == b.shape, "operands and output differ in shape")
        case Fused(parts=parts):
            for p in parts:
                check(p)
        case Embed() | EmbedPosition() | Linear():
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
    if isinstance(op, Normalize) and op.centered:
        attributes.append("centered")
    if isinstance(op, Route):
        attributes.append("of the chosen" if op.normalized else "of all")
    if cap := getattr(op, "cap", 0.0):
        attributes.append(f"cap={cap:g}")
    if isinstance(op, Rope):
        attributes.append(describe_rope(op.rope))
    results = ", ".join(map(str, outputs(op))) or "-"
    return f"{results} = {kind}({operands}{'; ' if attributes else ''}{', '.join(attributes)})"


def describe_rope(rope: RopeSpec) -> str:
    """The rotation in a few words; what is as usual is left out."""
    words = [f"base={rope.base:g} dims={rope.dims}"]
    words += [f"linear={rope.linear:g}"] if rope.linear != 1 else []
    words += ["factors"] if rope.factors else []
    words += [f"magnitude={rope.magnitude:g}"] if rope.magnitude != 1 else []
    words += [f"trained={rope.trained}"] if rope.trained else []
    return " ".join(words)
