"""Graph: a flat list of ops in single-assignment form, and its builder.

Law: every value has a name when it is made, is made once, and is made before it is read. The names are those of
TransformerLens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pellucid.errors import PellucidError
from pellucid.graph.ops import Op, Value, check, describe, inputs, outputs, weights


@dataclass(frozen=True)
class Graph:
    """Ops in the order in which they run. `result` is the value that is handed back (the logits)."""

    ops: tuple[Op, ...]
    result: Value

    def __post_init__(self) -> None:
        made: set[str] = set()
        for op in self.ops:
            check(op)
            for v in inputs(op):
                if v.name not in made:
                    raise PellucidError(f"graph: {v.name} is read before it is made, by {describe(op)}")
            for v in outputs(op):
                if v.name in made:
                    raise PellucidError(f"graph: {v.name} is made twice, the second time by {describe(op)}")
                made.add(v.name)
        if self.result.name not in made:
            raise PellucidError(f"graph: nothing makes the result {self.result.name}")

    def values(self) -> Iterator[Value]:
        """Every value that can be seen, in order."""
        for op in self.ops:
            yield from outputs(op)

    def weights(self) -> tuple[str, ...]:
        """Canonical names of all weights read, in order, once each."""
        return tuple(dict.fromkeys(w for op in self.ops for w in weights(op)))

    def readers(self) -> dict[str, list[int]]:
        """Value name → indices of the ops that read it."""
        found: dict[str, list[int]] = {}
        for i, op in enumerate(self.ops):
            for v in inputs(op):
                found.setdefault(v.name, []).append(i)
        return found

    def dump(self) -> str:
        """The graph as text, a line an op: what golden tests compare."""
        return "\n".join(map(describe, self.ops)) + "\n"
