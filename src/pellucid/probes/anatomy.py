"""What a graph says of a model's parts: which values are the queries, the keys and the residual stream of each layer.

Law: read from the ops, never from a family's name; what a family does otherwise shows here by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from pellucid.errors import RequestError
from pellucid.graph.graph import Graph
from pellucid.graph.ops import Attention, SelectRows, StoreKV, outputs, plain

SCORES, PATTERN = "attn.hook_attn_scores", "attn.hook_pattern"
"""Values that no op makes: they are computed beside, from the queries and the keys in the cache."""


@dataclass(frozen=True)
class AttentionLayer:
    """One layer's attention."""

    layer: int
    q: str
    """The value that asks: rotated, where the layer rotates."""
    k: str
    v: str
    """What is written to the cache."""
    z: str
    heads: int
    kv_heads: int
    d_head: int
    scale: float
    cap: float
    window: int
    sinks: str | None
    """Name of the weight, one number a head."""

    def kv_head(self, head: int) -> int:
        """The KV head that a query head reads."""
        return head // (self.heads // self.kv_heads)


@dataclass(frozen=True)
class Anatomy:
    """The parts of one model."""

    layers: tuple[AttentionLayer, ...]
    last: str
    """The residual stream behind the last layer, of every row."""
    names: tuple[str, ...]
    """Every value, in the order in which they are made, scores and patterns at their place."""
    first: str
    """The residual stream that the first layer reads."""
    aliases: dict[str, str]
    """Names that TransformerLens gives a value besides its own."""

    @staticmethod
    def of(graph: Graph) -> Anatomy:
        """Read a graph."""
        stores: dict[int, StoreKV] = {}
        layers: list[AttentionLayer] = []
        names: list[str] = []
        last = ""
        for op in plain(graph.ops):
            match op:
                case StoreKV(layer):
                    stores[layer] = op
                case Attention(out, q, layer, kv_heads, scale, window, cap, sinks):
                    k, v = stores[layer].k.name, stores[layer].v.name
                    heads, d = q.shape
                    layers.append(
                        AttentionLayer(layer, q.name, k, v, out.name, heads, kv_heads, d, scale, cap, window, sinks)
                    )
                    names += [f"blocks.{layer}.{SCORES}", f"blocks.{layer}.{PATTERN}"]
                case SelectRows(_, x):
                    last = x.name
                case _:
                    pass
            names += [value.name for value in outputs(op)]
        first = "blocks.0.hook_resid_pre" if "blocks.0.hook_resid_pre" in names else "hook_embed"
        streams = [first, *(f"blocks.{i}.hook_resid_post" for i in range(len(layers)))]
        aliases = {f"blocks.{i}.hook_resid_pre": streams[i] for i in range(len(layers))}
        return Anatomy(tuple(layers), last, tuple(dict.fromkeys([*names, *aliases])), first, aliases)

    def resid(self) -> tuple[str, ...]:
        """The residual stream: the embedding, then what each layer leaves; one more than there are layers."""
        return (self.first, *(f"blocks.{i}.hook_resid_post" for i in range(len(self.layers))))

    def real(self, name: str) -> str:
        """The value behind a name: what a layer reads of the stream is what the layer before it left."""
        if name in self.aliases:
            return self.aliases[name]
        return name

    def select(self, patterns: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
        """The values whose names fit any of the patterns (* stands for anything), in order.

        Raises RequestError for a pattern that fits none.
        """
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        for pattern in wanted:
            if not any(fnmatchcase(name, pattern) for name in self.names):
                raise RequestError(
                    f"this model makes no value {pattern!r}; `pellucid lens --names` lists them", param="names"
                )
        return tuple(name for name in self.names if any(fnmatchcase(name, pattern) for pattern in wanted))

    def head(self, layer: int, head: int = 0) -> AttentionLayer:
        """A layer's attention. Raises RequestError: there is no such layer or head."""
        if not 0 <= layer < len(self.layers):
            raise RequestError(f"layer {layer} is not there; this model has 0 to {len(self.layers) - 1}", param="layer")
        found = self.layers[layer]
        if not 0 <= head < found.heads:
            raise RequestError(f"head {head} is not there; a layer has 0 to {found.heads - 1}", param="head")
        return found
