"""Fusion: which neighbouring ops a device runs as one. Decided here, once, for every device.

Law: fusion changes no bit, since a fused op is its parts with float32 between them. It never hides a value in `keep`,
nor one that something outside the fused op reads. What is fused here:

    rms_norm        a norm and its weight
    layer_norm      a centered norm and its weight
    linear          what makes the input row by row (norms, sums, the choice of rows), the linears that read it, and
                    then a residual sum, or the gated activation of two of them
    experts         a mixture of experts: what chooses them, their gated MLPs, the sum of what they make
    rope_store_kv   the norms of queries and keys, their rotation, and the write of keys and values to the cache
    rows            what else works row by row, one op after the other
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pellucid.graph.graph import Graph
from pellucid.graph.ops import (
    Activate,
    Add,
    ExpertLinear,
    Fused,
    FusedKind,
    Gate,
    Glu,
    Linear,
    Mix,
    Multiply,
    Normalize,
    Op,
    Rope,
    Route,
    Scale,
    SelectRows,
    Shift,
    SoftCap,
    StoreKV,
    inputs,
    outputs,
    plain,
)

_BY_ROW = (
    Normalize | Multiply | Shift | Scale | SoftCap | Add | Activate | Glu | Gate | Route | Mix | SelectRows | Fused
)


def fuse(graph: Graph, keep: Collection[str] = ()) -> Graph:
    """Return the graph with neighbours fused; values named in `keep` stay visible."""
    return _Fusion(graph, keep).run()


class _Fusion:
    """One walk over the ops of a graph: those that work row by row wait for the op that can take them in."""

    def __init__(self, graph: Graph, keep: Collection[str]) -> None:
        self.graph = graph
        self.wanted = {*keep, graph.result.name}
        self.readers: dict[str, list[Op]] = {}
        for op in graph.ops:
            for value in inputs(op):
                self.readers.setdefault(value.name, []).append(op)
        self.done: list[Op] = []
        self.waiting: list[Op] = []

    def run(self) -> Graph:
        ops = tuple(self._norms())
        at = 0
        while at < len(ops):
            op = ops[at]
            if isinstance(op, Linear):
                at += self._linear(op, ops[at:])
            elif isinstance(op, ExpertLinear):
                at += self._experts(op, ops[at:])
            elif isinstance(op, Rope):
                at += self._rope(op, ops[at:])
            else:
                by_row = isinstance(op, _BY_ROW)
                if not by_row or isinstance(op, SelectRows):  # which changes the number of rows
                    self._flush()
                (self.waiting if by_row else self.done).append(op)
                at += 1
        self._flush()
        return Graph(tuple(self.done), self.graph.result)

    def _norms(self) -> Iterator[Op]:
        """The ops with each norm and its weight joined."""
        ops = self.graph.ops
        skip = False
        for op, after in zip(ops, (*ops[1:], None), strict=True):
            if skip:
                skip = False
            elif (
                isinstance(op, Normalize)
                and isinstance(after, Multiply)
                and (after.x, after.groups) == (op.out, op.groups)
                and self._hidden(op)
            ):
                skip = True
                yield self._fused("layer_norm" if op.centered else "rms_norm", (op, after))
            else:
                yield op

    def _linear(self, first: Linear, ops: tuple[Op, ...]) -> int:
        """Fuse the linears at the start of `ops` with what stands around them; return how many ops that takes."""
        group: list[Op] = [first]
        while isinstance(peer := _at(ops, len(group)), Linear) and peer.x == first.x:
            group.append(peer)
        after = _at(ops, len(group))
        read = inputs(after) if after is not None else ()
        sums = isinstance(after, Add) and len(group) == 1 and first.out in read
        gates = isinstance(after, Glu) and len(group) == 2 and read == tuple(v for op in group for v in outputs(op))
        if after is not None and (sums or gates) and all(self._hidden(op) for op in group):
            group.append(after)
        taken = len(group)
        if self.waiting and first.x in outputs(self.waiting[-1]):
            group = [*self.waiting, *group]
            self.waiting = []
        self._flush()
        self.done.append(self._fused("linear", tuple(group)) if len(group) > 1 else first)
        return taken

    def _experts(self, gate: ExpertLinear, ops: tuple[Op, ...]) -> int:
        """Fuse the whole mixture, if none of what lies inside is looked at; return how many ops that takes."""
        up, glu, down, mix = (_at(ops, i) for i in range(1, 5))
        whole = (
            isinstance(up, ExpertLinear)
            and isinstance(glu, Glu)
            and isinstance(down, ExpertLinear)
            and isinstance(mix, Mix)
            and (up.x, up.chosen, down.chosen) == (gate.x, gate.chosen, gate.chosen)
            and (glu.gate, glu.up, down.x, mix.x) == (gate.out, up.out, glu.out, down.out)
            and all(self._hidden(op) for op in (gate, up, glu, down))
        )
        if not whole:
            self._flush()
            self.done.append(gate)
            return 1
        steps: list[Op] = []
        if self.waiting and gate.chosen in outputs(self.waiting[-1]):
            steps, self.waiting = self.waiting, []
        self._flush()
        self.done.append(self._fused("experts", (*steps, *ops[:5])))
        return 5

    def _rope(self, first: Rope, ops: tuple[Op, ...]) -> int:
        """Fuse the rotation of queries and keys, and the store that follows it, with the norms before."""
        keys, store = _at(ops, 1), _at(ops, 2)
        if not (isinstance(keys, Rope) and isinstance(store, StoreKV) and store.k == keys.out):
            self._flush()
            self.done.append(first)
            return 1
        norms: list[Op] = []
        for turned in (keys, first):
            last = self.waiting[-1] if self.waiting else None
            if (
                isinstance(last, Fused)
                and last.kind == "rms_norm"
                and outputs(last) == (turned.x,)
                and isinstance(norm := last.parts[0], Normalize)
                and norm.groups == turned.x.shape[0]
            ):
                norms.insert(0, self.waiting.pop())
        self._flush()
        self.done.append(self._fused("rope_store_kv", (*norms, first, keys, store)))
        return 3

    def _flush(self) -> None:
        """Nothing takes the waiting ops in: they run by themselves."""
        if self.waiting:
            many = len(self.waiting) > 1
            self.done.append(self._fused("rows", tuple(self.waiting)) if many else self.waiting[0])
        self.waiting = []

    def _fused(self, kind: FusedKind, parts: tuple[Op, ...]) -> Fused:
        inside = list(plain(parts))
        made = [v for op in inside for v in outputs(op)]
        seen = (v for v in made if v.name in self.wanted or any(r not in inside for r in self.readers.get(v.name, ())))
        return Fused(kind, parts, tuple(seen))

    def _hidden(self, op: Op) -> bool:
        """The op's one result is read by a single op and wanted by nobody else."""
        (value,) = outputs(op)
        return value.name not in self.wanted and len(self.readers.get(value.name, ())) == 1


def _at(ops: tuple[Op, ...], i: int) -> Op | None:
    return ops[i] if i < len(ops) else None
