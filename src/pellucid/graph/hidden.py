"""The hidden state of every row, beside that of the rows whose logits are wanted.

Law: what is added is the model's own final norm once more, over all rows, and only a tap reads it; every op that was
there stays as it is, so nobody's logits change by a bit.
"""

from __future__ import annotations

from dataclasses import replace

from pellucid.errors import RequestError
from pellucid.graph.graph import Graph
from pellucid.graph.ops import Linear, Multiply, Normalize, Op, SelectRows, Shift, Value, plain

HIDDEN = "ln_final.every_row"
"""(d_model,) what the product with the vocabulary reads: the residual stream behind the last layer through the final
norm, weight and bias included. Hugging Face calls it last_hidden_state."""


def hidden_size(graph: Graph) -> int:
    """Numbers of a row of HIDDEN. Raises RequestError: the graph chooses no rows for its logits."""
    return _select(tuple(plain(graph.ops)))[1].x.size


def with_hidden(graph: Graph) -> Graph:
    """The graph that also makes HIDDEN. Raises RequestError: it has no final norm behind a choice of rows."""
    ops = tuple(plain(graph.ops))
    at, select = _select(ops)
    norm: list[Normalize | Multiply | Shift] = []
    for op in ops[at + 1 :]:
        if not isinstance(op, Normalize | Multiply | Shift):
            break
        norm.append(op)
    if not norm or not isinstance(ops[at + 1 + len(norm)], Linear):
        raise RequestError("this model has more than a norm before its logits, so it shows no hidden states")
    now = {select.out: select.x}
    every: list[Op] = []
    for op in norm:
        now[op.out] = Value(HIDDEN if op is norm[-1] else f"{op.out.name}.every_row", op.out.shape)
        every.append(replace(op, out=now[op.out], x=now[op.x]))
    return Graph((*ops[:at], *every, *ops[at:]), graph.result)


def _select(ops: tuple[Op, ...]) -> tuple[int, SelectRows]:
    for at, op in enumerate(ops):
        if isinstance(op, SelectRows):
            return at, op
    raise RequestError("this model chooses no rows before its logits, so it shows no hidden states")
