"""Fusion: which neighbouring ops a device runs as one. Decided here, once, for every device.

Law: fusion changes no bit, since a fused op is its parts with float32 between them. It never hides a value in `keep`,
nor one that something outside the fused op reads.
"""

from __future__ import annotations

from collections.abc import Collection

from pellucid.graph.graph import Graph
from pellucid.graph.ops import Add, Fused, Linear, Multiply, Normalize, Op, inputs, outputs


def fuse(graph: Graph, keep: Collection[str] = ()) -> Graph:
    """Return the graph with neighbours fused; values named in `keep` stay visible."""
    readers = graph.readers()

    def hidden(op: Op) -> bool:
        """The op's one result is read by a single op and wanted by nobody else."""
        (value,) = outputs(op)
        return value.name not in keep and value.name != graph.result.name and len(readers.get(value.name, ())) == 1

    fused: list[Op] = []
    ops = graph.ops
    i = 0
    while i < len(ops):
        op, after = ops[i], ops[i + 1] if i + 1 < len(ops) else None
        if isinstance(op, Normalize) and isinstance(after, Multiply) and after.x == op.out and hidden(op):
            fused.append(Fused("rms_norm", (op, after)))
            i += 2
        elif isinstance(op, Linear) and isinstance(after, Add) and op.out in inputs(after) and hidden(op):
            fused.append(Fused("linear_add", (op, after)))
            i += 2
        elif isinstance(op, Linear):
            group: list[Op] = [op]
            while isinstance(peer := _at(ops, i + len(group)), Linear) and peer.x == op.x:
                group.append(peer)
            fused.append(Fused("linears", tuple(group)) if len(group) > 1 else op)
            i += len(group)
        else:
            fused.append(op)
            i += 1
    return Graph(tuple(fused), graph.result)


def _at(ops: tuple[Op, ...], i: int) -> Op | None:
    return ops[i] if i < len(ops) else None
