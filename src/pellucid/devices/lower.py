"""Lowering for the CPU: from a fused graph to the flat list of records that the native plan is built from.

Law: a record names a native op, what it reads and writes, and its numbers; nothing is decided after this. All threads
meet after each record. Where a linear layer's weights are quantised its input is quantised once: by the op that makes
it if that op holds whole rows or whole blocks of them, else by the linear itself before it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pellucid.devices.base import Tap
from pellucid.errors import PellucidError, RequestError
from pellucid.graph.arena import Life, place
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
    Value,
)


@dataclass(frozen=True)
class LinearPart:
    """One weight matrix of a linear record."""

    out: Value
    weight: str
    bias: str | None


@dataclass(frozen=True)
class Turn:
    """Heads that a record rotates, after a norm where `weight` names one."""

    out: Value
    x: Value
    rope: RopeSpec
    weight: str | None = None
    eps: float = 0.0
    normed: Value | None = None
    """Where what lies between is kept, if anyone wants to see it."""


@dataclass(frozen=True)
class Record:
    """One native op. Operands that the kind does not use keep their defaults."""

    kind: str
    out: Value | None = None
    reads: tuple[Value, ...] = ()
    weight: str | None = None
    quant: Value | None = None
    """The quantised copy of what the op makes."""
    quant_in: Value | None = None
    """The quantised copy of what a linear reads."""
    steps: tuple[Record, ...] = ()
    """Row by row ops: all that a "rows" record is, and what a linear does first."""
    parts: tuple[LinearPart, ...] = ()
    residual: Value | None = None
    turns: tuple[Turn, ...] = ()
    rope: RopeSpec | None = None
    layer: int = -1
    scratch: tuple[Value, ...] = ()
    """What the record alone needs memory for."""
    chosen: Value | None = None
    """The experts that a route chooses, or that a record multiplies by."""
    groups: int = 1
    """Equal parts of the row that a step takes one by one; experts that a row is given to."""
    number: float = 0.0
    """Factor, epsilon or cap; of a route, whether weights are normalized."""
    cap: float = 0.0
    """Bound of an attention's scores, or 0."""
    window: int = 0
    activation: Activation | None = None
    """Of a glu, or of experts'. A linear of two parts that has one puts activation(first) · second in the first one's
    place."""
    selected: bool = False
    """The rows are those whose logits are wanted."""
    tap: Tap | None = None

    def writes(self) -> Iterator[Value]:
        """Values made by the record."""
        for step in self.steps:
            yield from step.writes()
        for turn in self.turns:
            yield from (turn.out,) if turn.normed is None else (turn.normed, turn.out)
        for part in self.parts:
            yield part.out
        if self.kind == "route" and self.chosen is not None:
            yield self.chosen
        yield from self.scratch
        if self.out is not None:
            yield self.out
        if self.quant is not None:
            yield self.quant

    def needs(self) -> Iterator[Value]:
        """Values read by the record that others made."""
        made: set[str] = set()
        for step in self.steps:
            yield from (v for v in step.needs() if v.name not in made)
            made.update(v.name for v in step.writes())
        yield from (v for v in self._operands() if v.name not in made)

    def _operands(self) -> Iterator[Value]:
        """Values read by the record itself, after its steps."""
        for turn in self.turns:
            yield turn.x
        yield from self.reads
        if self.kind != "route" and self.chosen is not None:
            yield self.chosen
        if self.quant_in is not None:
            yield self.quant_in
        if self.residual is not None:
            yield self.residual

    def describe(self) -> str:
        """For golden dumps: a line for the record, and an indented one for each of its steps, which come first."""
        return "\n".join([self._describe(), *(f"  {step.describe()}" for step in self.steps)])

    def _describe(self) -> str:
        if self.kind == "rows":
            return "rows"
        inside = {v.name for step in self.steps for v in step.writes()} | {v.name for v in self.scratch}
        if self.kind == "experts":
            inside |= {part.out.name for part in self.parts}
        made = ", ".join(v.name for v in self.writes() if v.name not in inside) or "-"
        words = [v.name for v in self._operands()]
        if self.tap:
            words += [f"{self.tap.form} {self.tap.count}" if self.tap.count else self.tap.form]
        words += [w for w in (self.weight, *(t.weight for t in self.turns), *(p.weight for p in self.parts)) if w]
        words += [f"bias {p.bias}" for p in self.parts if p.bias]
        if self.layer >= 0:
            words.append(f"layer={self.layer}")
        if self.activation:
            words.append(self.activation)
        if self.window:
            words.append(f"window={self.window}")
        if self.number:
            words.append(f"{self.number:.9g}")
        if self.cap:
            words.append(f"cap={self.cap:g}")
        words += [f"base={rope.base:g}" for rope in (self.rope, *(t.rope for t in self.turns)) if rope]
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
        """The plan as text: the records, then the arena's size."""
        lines = [r.describe() for r in self.records]
        return "\n".join([*lines, f"arena: {self.arena_row_bytes} bytes a row"]) + "\n"


QUANT_SUFFIX = ".int8"


def quant_row_bytes(cols: int) -> int:
    """Bytes of a quantised row (native/kernels.h)."""
    return (cols + cols // 32 * 8 + cols // 16 * 4 + 63) // 64 * 64


def lower(graph: Graph, quantized: Callable[[str], bool], taps: Sequence[Tap] = ()) -> Lowered:
    """Lower a fused graph.

    Args:
        graph: as `fuse` gives it, with the values that are tapped kept.
        quantized: whether the weight of that name takes quantised activations.
        taps: what is looked at. Raises RequestError: the graph has no such value, or it has fewer numbers.
    """
    records: list[Record] = []
    selected: set[str] = set()
    for op in graph.ops:
        record = _record(op, quantized)
        if any(r.kind == "select" for r in (record, *record.steps)) or any(v.name in selected for v in record.needs()):
            record = _select(record)
            selected.update(v.name for v in record.writes())
        records.append(record)
    if taps:
        records = list(_tapped(graph, records, taps))
    return _place(_quantise_inputs(_in_place(records, graph.result)), graph.result)


def _tapped(graph: Graph, records: list[Record], taps: Sequence[Tap]) -> Iterator[Record]:
    """The records, each tap after the one that makes its value."""
    values = {value.name: value for value in graph.values()}
    for tap in taps:
        value = values.get(tap.name)
        if value is None:
            raise RequestError(f"this model makes no value {tap.name!r}", param="names")
        if not 0 <= tap.count <= value.size or (tap.count == 0) != (tap.form in ("row", "stats")):
            raise RequestError(f"{tap.name} has {value.size} numbers; {tap.form} of {tap.count} is not to be had")
    for record in records:
        yield record
        made = {value.name for value in record.writes()}
        for tap in taps:
            if tap.name in made:
                yield Record("tap", reads=(values[tap.name],), tap=tap, selected=record.selected)


def _select(record: Record) -> Record:
    return replace(record, selected=True, steps=tuple(map(_select, record.steps)))


def _record(op: Op, quantized: Callable[[str], bool]) -> Record:
    match op:
        case Embed(out, table, scale):
            return Record("embed", out, weight=table, number=scale)
        case EmbedPosition(out, table):
            return Record("embed_position", out, weight=table, number=1.0)
        case Linear():
            return _linear((op,), quantized)
        case Fused("linear", parts):
            return _linear(parts, quantized)
        case Rope(out, x, rope):
            return Record("rope", out, (x,), rope=rope)
        case StoreKV(layer, k, v):
            return Record("store_kv", None, (k, v), layer=layer)
        case ExpertLinear(out, x, chosen, weight, bias):
            takes = quantized(weight)
            return Record(
                "expert_linear",
                reads=() if takes else (x,),
                quant_in=Value(x.name + QUANT_SUFFIX, x.shape) if takes else None,
                chosen=chosen,
                groups=out.shape[0],
                parts=(LinearPart(out, weight, bias),),
            )
        case Fused("experts", parts):
            return _experts(parts, quantized)
        case Fused("rope_store_kv", parts, seen):
            return _rope_store(parts, seen)
        case Attention(out, q, layer, _, scale, window, cap, sinks):
            return Record("attention", out, (q,), sinks, layer=layer, number=scale, cap=cap, window=window)
        case Patch(out, x):
            return Record("patch", out, (x,))
        case Fused("rows", parts):
            return Record("rows", steps=tuple(map(_step, parts)))
        case _:
            return Record("rows", steps=(_step(op),))


def _step(op: Op) -> Record:
    """An op that works row by row."""
    match op:
        case Normalize(out, x, eps, groups, centered):
            return Record("layer_norm" if centered else "rms_norm", out, (x,), groups=groups, number=eps)
        case Multiply(out, x, weight, groups):
            return Record("multiply", out, (x,), weight=weight, groups=groups)
        case Fused("rms_norm" | "layer_norm" as kind, (Normalize(_, x, eps, groups), Multiply(out, _, weight))):
            return Record(kind, out, (x,), weight=weight, groups=groups, number=eps)
        case Shift(out, x, bias):
            return Record("shift", out, (x,), weight=bias)
        case Scale(out, x, scale):
            return Record("scale", out, (x,), number=scale)
        case SoftCap(out, x, cap):
            return Record("soft_cap", out, (x,), number=cap)
        case Activate(out, x, activation):
            return Record("activate", out, (x,), activation=activation)
        case Glu(out, gate, up, activation):
            return Record("glu", out, (gate, up), activation=activation)
        case Gate(out, x, gate):
            return Record("gate", out, (x, gate))
        case Route(out, chosen, x, normalized):
            return Record("route", out, (x,), chosen=chosen, groups=out.size, number=float(normalized))
        case Mix(out, x, shares):
            return Record("mix", out, (x, shares), groups=shares.size)
        case Add(out, a, b):
            return Record("add", out, (a, b))
        case SelectRows(out, x):
            return Record("select", out, (x,))
        case _:
            kind = op.kind if isinstance(op, Fused) else type(op).__name__
            raise PellucidError(f"lower: {kind} does not work row by row")


def _linear(ops: tuple[Op, ...], quantized: Callable[[str], bool]) -> Record:
    linears = [op for op in ops if isinstance(op, Linear)]
    first = ops.index(linears[0])
    x = linears[0].x
    kinds = {quantized(o.weight) for o in linears}
    parts = [LinearPart(o.out, o.weight, o.bias) for o in linears]
    residual = activation = None
    match ops[first + len(linears) :]:
        case (Add(out, a, b),):
            residual = b if a == parts[0].out else a
            parts[0] = replace(parts[0], out=out)
        case (Glu(out, _, _, activation),):
            parts[0] = replace(parts[0], out=out)
        case _:
            pass
    return Record(
        "linear",
        reads=(x,) if False in kinds else (),
        quant_in=Value(x.name + QUANT_SUFFIX, (x.size,)) if True in kinds else None,
        steps=tuple(map(_step, ops[:first])),
        parts=tuple(parts),
        residual=residual,
        activation=activation,
    )


def _experts(ops: tuple[Op, ...], quantized: Callable[[str], bool]) -> Record:
    """A whole mixture: parts are gate, up and down."""
    gate, up, glu, down, mix = ops[-5:]
    linears = [op for op in (gate, up, down) if isinstance(op, ExpertLinear)]
    if len(linears) != 3 or not isinstance(glu, Glu) or not isinstance(mix, Mix):
        raise PellucidError("lower: experts are a gate, an up, a glu, a down and a mix")
    first, x, post = linears[0], linears[0].x, glu.out
    kinds = {quantized(op.weight) for op in linears[:2]}
    together = f"{first.out.name}.sorted"
    each = (first.out.shape[0], x.size)
    scratch = [Value(together, each)] if False in kinds else []
    scratch += [Value(together + QUANT_SUFFIX, each)] if True in kinds else []
    scratch += [Value(post.name + QUANT_SUFFIX, post.shape)] if quantized(linears[2].weight) else []
    return Record(
        "experts",
        mix.out,
        (mix.weights, x) if False in kinds else (mix.weights,),
        quant_in=Value(x.name + QUANT_SUFFIX, x.shape) if True in kinds else None,
        steps=tuple(map(_step, ops[:-5])),
        parts=tuple(LinearPart(op.out, op.weight, op.bias) for op in linears),
        scratch=tuple(scratch),
        chosen=first.chosen,
        groups=first.out.shape[0],
        activation=glu.activation,
    )


def _rope_store(ops: tuple[Op, ...], seen: tuple[Value, ...]) -> Record:
    norms: dict[str, Record] = {}
    turns: list[Turn] = []
    for op in ops:
        match op:
            case Rope(out, x, rope) if (norm := norms.get(x.name)) is not None:
                normed = x if x in seen else None
                turns.append(Turn(out, norm.reads[0], rope, norm.weight, norm.number, normed))
            case Rope(out, x, rope):
                turns.append(Turn(out, x, rope))
            case StoreKV(layer, _, v):
                return Record("rope_store_kv", reads=(v,), turns=tuple(turns), layer=layer)
            case _:
                norm = _step(op)
                norms |= {v.name: norm for v in norm.writes()}
    raise PellucidError("lower: a rope_store_kv stores nothing")


def _quantise_inputs(records: list[Record]) -> list[Record]:
    """Have every quantised input made once: by the record that makes the input, or by a step of its first reader."""
    out: list[Record] = []
    maker: dict[str, int] = {}  # value name → index of the record that makes it
    made: set[str] = set()
    for record in records:
        quant = record.quant_in
        if quant is not None and quant.name not in made:
            made.add(quant.name)
            name = quant.name.removesuffix(QUANT_SUFFIX)
            steps = _quantising(record.steps, name, quant)
            at = maker.get(name)
            before = _quantising(out[at].steps, name, quant) if at is not None else None
            if steps is not None:
                record = replace(record, steps=steps)
            elif at is not None and before is not None:
                out[at] = replace(out[at], steps=before)
            elif at is not None and _makes_blocks(out[at], name):
                out[at] = replace(out[at], quant=quant)
            else:
                groups = quant.size // quant.shape[-1]
                step = Record("quantize", quant, (Value(name, quant.shape),), groups=groups, selected=record.selected)
                record = replace(record, steps=(*record.steps, step))
        maker |= {v.name: len(out) for v in record.writes()}
        out.append(record)
    return out


def _quantising(steps: tuple[Record, ...], name: str, quant: Value) -> tuple[Record, ...] | None:
    """The steps, the one that makes `name` quantising it as well; None if none can: of several rows beside each other
    each is quantised for itself, which only a step of its own does."""
    if len(quant.shape) > 1:
        return None
    for i, step in enumerate(steps):
        if step.kind != "quantize" and step.out is not None and step.out.name == name:
            return (*steps[:i], replace(step, quant=quant), *steps[i + 1 :])
    return None


def _makes_blocks(record: Record, name: str) -> bool:
    """Whether each thread of the record makes whole blocks of the value, and can quantise them."""
    return record.kind == "linear" and record.activation is not None and record.parts[0].out.name == name


def _in_place(records: list[Record], result: Value) -> list[Record]:
    """Have the factor and the bound of the result work in its own memory: a second row of logits for each row that a
    step may have would take hundreds of megabytes."""
    for last in reversed([step for record in records for step in record.steps]):
        if last.out != result or last.kind not in ("scale", "soft_cap"):
            continue
        (x,) = last.reads
        every = [op for record in records for op in (record, *record.steps)]
        if sum((*op.reads, op.residual).count(x) for op in every) > 1:
            break
        records = [_renamed(record, x, result) for record in records]
    return records


def _renamed(record: Record, old: Value, new: Value) -> Record:
    """The record with one value in the place of another."""
    return replace(
        record,
        out=new if record.out == old else record.out,
        reads=tuple(new if v == old else v for v in record.reads),
        steps=tuple(_renamed(step, old, new) for step in record.steps),
        parts=tuple(replace(part, out=new) if part.out == old else part for part in record.parts),
    )


def _place(records: list[Record], result: Value) -> Lowered:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    size: dict[str, int] = {}
    for i, record in enumerate(records):
        for v in record.writes():
            first[v.name] = last[v.name] = i
            rows, width = v.size // v.shape[-1], v.shape[-1]
            quantised = v.name.endswith(QUANT_SUFFIX)
            size[v.name] = rows * quant_row_bytes(width) if quantised else -(-4 * v.size // 64) * 64
        for v in record.needs():
            last[v.name] = i
    names = [n for n in first if n != result.name]
    offsets, total = place([Life(size[n], first[n], last[n]) for n in names])
    return Lowered(tuple(records), result.name, dict(zip(names, offsets, strict=True)), size, total)
