"""Lowering for the CPU: from a fused graph to the flat list of records that the native plan is built from.

Law: a record names a native op, what it reads and writes, and its numbers; nothing is decided after this. Where a
linear layer's weights are quantised its input is quantised once, by the op that makes it if that op holds whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pellucid.errors import PellucidError
from pellucid.graph.arena import Life, place
from pellucid.graph.graph import Graph
from pellucid.graph.ops import (
    Add,
    Attention,
    Embed,
    Fused,
    Glu,
    Linear,
    Multiply,
    Normalize,
    Op,
    Rope,
    RopeSpec,
    SelectRows,
    StoreKV,
    Value,
)


@dataclass(frozen=True)
class LinearPart:
    """One weight matrix of a linear record."""

    out: Value
    weight: str
    bias: str | None


@dataclass(frozen=True)
class Record:
    """One native op. Operands that the kind does not use keep their defaults."""

    kind: str
    out: Value | None = None
    reads: tuple[Value, ...] = ()
    weight: str | None = None
    quant: Value | None = None
    """A quantised copy: of the output where the op makes it, of the input where the op reads it."""
    parts: tuple[LinearPart, ...] = ()
    residual: Value | None = None
    rope: RopeSpec | None = None
    layer: int = -1
    number: float = 0.0
    """Scale or epsilon."""
    window: int = 0
    gelu: bool = False
    selected: bool = False
    """The rows are those whose logits are wanted."""

    def writes(self) -> Iterator[Value]:
        """Values made by the record."""
        if self.out is not None:
            yield self.out
        if self.quant is not None and self.kind != "linear":
            yield self.quant
        for part in self.parts:
            yield part.out

    def needs(self) -> Iterator[Value]:
        """Values read by the record."""
        yield from self.reads
        if self.quant is not None and self.kind == "linear":
            yield self.quant
        if self.residual is not None:
            yield self.residual

    def describe(self) -> str:
        """One line for golden dumps."""
        made = ", ".join(v.name for v in self.writes()) or "-"
        words = [v.name for v in self.needs()]
        words += [w for w in (self.weight, *(p.weight for p in self.parts)) if w]
        words += [f"bias {p.bias}" for p in self.parts if p.bias]
        if self.layer >= 0:
            words.append(f"layer={self.layer}")
        if self.gelu:
            words.append("gelu")
        if self.window:
            words.append(f"window={self.window}")
        if self.number:
            words.append(f"{self.number:.9g}")
        if self.rope is not None:
            words.append(f"base={self.rope.base:g}")
        return f"{made} <- {self.kind}({', '.join(words)}){' selected' if self.selected else ''}"


@dataclass(frozen=True)
class Lowered:
    """The records of a plan and where their values lie."""

    records: tuple[Record, ...]
    result: str
    offsets: dict[str, int] = field(default_factory=dict[str, int])
    """Value name → bytes a row from the start of the arena."""
    row_bytes: dict[str, int] = field(default_factory=dict[str, int])
    arena_row_bytes: int = 0

    def dump(self) -> str:
        """The plan as text: a line a record, then the arena's size."""
        lines = [r.describe() for r in self.records]
        return "\n".join([*lines, f"arena: {self.arena_row_bytes} bytes a row"]) + "\n"


QUANT_SUFFIX = ".int8"


def quant_row_bytes(cols: int) -> int:
    """Bytes of a quantised row (native/kernels.h)."""
    return (cols + cols // 32 * 8 + cols // 16 * 4 + 63) // 64 * 64


def lower(graph: Graph, quantized: Callable[[str], bool]) -> Lowered:
    """Lower a fused graph.

    Args:
        graph: as `fuse` gives it.
        quantized: whether the weight of that name takes quantised activations.
    """
    records: list[Record] = []
    selected: set[str] = set()
    for op in graph.ops:
        record = _record(op, quantized)
        if record.kind == "select" or any(v.name.removesuffix(QUANT_SUFFIX) in selected for v in record.needs()):
            record = replace(record, selected=True)
            selected.update(v.name for v in record.writes())
        records.append(record)
    records = _quantise_inputs(records)
    return _place(records, graph.result)


def _record(op: Op, quantized: Callable[[str], bool]) -> Record:
    match op:
        case Embed(out, table, scale):
            return Record("embed", out, weight=table, number=scale)
        case Normalize(out, x, eps):
            return Record("rms_norm", out, (x,), number=eps)
        case Multiply(out, x, weight):
            return Record("multiply", out, (x,), weight=weight)
        case Fused("rms_norm", (Normalize(_, x, eps), Multiply(out, _, weight))):
            return Record("rms_norm", out, (x,), weight=weight, number=eps)
        case Linear():
            return _linear((op,), None, quantized)
        case Fused("linears", parts):
            return _linear(tuple(p for p in parts if isinstance(p, Linear)), None, quantized)
        case Fused("linear_add", (Linear() as linear, Add(out, a, b))):
            residual = b if a == linear.out else a
            return _linear((replace(linear, out=out),), residual, quantized)
        case Rope(out, x, rope):
            return Record("rope", out, (x,), rope=rope)
        case StoreKV(layer, k, v):
            return Record("store_kv", None, (k, v), layer=layer)
        case Attention(out, q, layer, _, scale, window):
            return Record("attention", out, (q,), layer=layer, number=scale, window=window)
        case Glu(out, gate, up, activation):
            return Record("glu", out, (gate, up), gelu=activation == "gelu_tanh")
        case Add(out, a, b):
            return Record("add", out, (a, b))
        case SelectRows(out, x):
            return Record("select", out, (x,))
        case Fused(kind):
            raise PellucidError(f"lower: no native op for the fused kind {kind!r}")


def _linear(ops: tuple[Linear, ...], residual: Value | None, quantized: Callable[[str], bool]) -> Record:
    x = ops[0].x
    kinds = {quantized(o.weight) for o in ops}
    quant = Value(x.name + QUANT_SUFFIX, (x.size,)) if True in kinds else None
    parts = tuple(LinearPart(o.out, o.weight, o.bias) for o in ops)
    return Record("linear", None, (x,) if False in kinds else (), quant=quant, parts=parts, residual=residual)


def _quantise_inputs(records: list[Record]) -> list[Record]:
    """Have every quantised input made once: by its producer, or by a record of its own before the first reader."""
    out: list[Record] = []
    at: dict[str, int] = {}  # value name → index of its producer in out
    made: set[str] = set()
    for record in records:
        quant = record.quant
        if record.kind == "linear" and quant is not None and quant.name not in made:
            made.add(quant.name)
            name = quant.name.removesuffix(QUANT_SUFFIX)
            producer = out[at[name]]
            source = next(v for v in producer.writes() if v.name == name)
            if producer.kind in ("rms_norm", "glu"):
                out[at[name]] = replace(producer, quant=quant)
            else:
                out.append(Record("quantize", quant, (source,), selected=producer.selected))
        for v in record.writes():
            at[v.name] = len(out)
        out.append(record)
    return out


def _place(records: list[Record], result: Value) -> Lowered:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    size: dict[str, int] = {}
    for i, record in enumerate(records):
        for v in record.writes():
            first[v.name] = last[v.name] = i
            size[v.name] = quant_row_bytes(v.size) if v.name.endswith(QUANT_SUFFIX) else -(-4 * v.size // 64) * 64
        for v in record.needs():
            last[v.name] = i
    names = [n for n in first if n != result.name]
    offsets, total = place([Life(size[n], first[n], last[n]) for n in names])
    return Lowered(tuple(records), result.name, dict(zip(names, offsets, strict=True)), size, total)
