"""Places in a graph where a fork may change a value.

Law: what is patched is read by everything that read the value, and by nothing else; a graph in which nothing is patched
is the graph.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pellucid.errors import RequestError
from pellucid.graph.graph import Graph
from pellucid.graph.ops import Embed, Op, Patch, SelectRows, Value, inputs, outputs, plain

SUFFIX = ".patched"


def patched(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with a Patch behind each named value. Raises RequestError for a name that it does not have."""
    ops = tuple(plain(graph.ops))
    missing = set(names) - {value.name for op in ops for value in outputs(op)}
    if missing:
        raise RequestError(f"this model makes no value {min(missing)!r}; `pellucid lens --names` lists them")
    if not names:
        return graph
    now: dict[Value, Value] = {}
    out: list[Op] = []
    for op in ops:
        out.append(_reading(op, now))
        for value in outputs(op):
            if value.name in names:
                now[value] = Value(value.name + SUFFIX, value.shape)
                out.append(Patch(now[value], value))
    return Graph(tuple(out), now.get(graph.result, graph.result))


def tail(graph: Graph) -> tuple[Graph, str]:
    """What a model makes of the residual stream behind its last layer, and the name of the patch that puts one there.

    The rows come from an embedding that the patch overwrites, so any vectors of that width can be read as if they were
    what the last layer left: the logit lens (nostalgebraist 2020), by the served model's own ops.
    """
    ops = tuple(plain(graph.ops))
    at = next((i for i, op in enumerate(ops) if isinstance(op, SelectRows)), None)
    first = next((op for op in ops if isinstance(op, Embed)), None)
    if at is None or first is None:
        raise RequestError("this model's graph has no rows of logits to choose, so no lens")
    select = ops[at]
    (x,) = inputs(select)
    out = Value(x.name + SUFFIX, x.shape)
    begin = (Embed(Value(f"{x.name}.room", x.shape), first.table, 1.0), Patch(out, Value(f"{x.name}.room", x.shape)))
    return Graph((*begin, _reading(select, {x: out}), *ops[at + 1 :]), graph.result), x.name


def _reading(op: Op, now: dict[Value, Value]) -> Op:
    """The op, reading each value as it is now."""
    read = set(inputs(op))
    made = set(outputs(op))
    fields = {
        name: now[value]
        for name, value in vars(op).items()
        if isinstance(value, Value) and value in read and value not in made and value in now
    }
    return replace(op, **fields) if fields else op
