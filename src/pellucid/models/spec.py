"""ModelSpec: the whole architecture of a decoder as data.

Law: a new family is a new value of a field here, never a branch on a family's name. Nothing here knows a vendor or a
file. Weights are named canonically (`weight_shapes`), in Hugging Face's orientation (out, in), with rotary halves split
(not interleaved) and norm weights as they are multiplied (gemma's "1 + w" already added).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from pellucid.graph.ops import Activation, RopeSpec

__all__ = ["ExpertsSpec", "LayerSpec", "ModelSpec", "QkNorm", "RopeSpec", "is_matrix"]

QkNorm = Literal["none", "head", "each", "whole"]
"""Norm of q and k before the rotation: none; over each head, with one weight for all heads (head) or each head's own
(each); over all heads at once (whole)."""


@dataclass(frozen=True)
class LayerSpec:
    """What may differ from layer to layer."""

    window: int
    """Sliding window in tokens, the query's own included; 0: all keys."""
    rope: RopeSpec | None
    """None: q and k are not rotated."""


@dataclass(frozen=True)
class ExpertsSpec:
    """A mixture of experts in the place of each MLP: a router gives each token to `top` of `count` gated MLPs."""

    count: int
    top: int
    normalized: bool
    """The weights of a token's experts sum to 1 (Route)."""
    d_shared: int = 0
    """Width of an MLP beside them that sees every token; 0: there is none."""
    shared_gated: bool = False
    """That MLP's output is multiplied by the sigmoid of one more projection (Gate)."""


@dataclass(frozen=True)
class ModelSpec:
    """Shapes and choices of one decoder-only transformer."""

    family: str
    name: str
    vocab: int
    d_model: int
    d_ff: int
    """Width of the MLP, or of each expert."""
    n_heads: int
    n_kv_heads: int
    d_head: int
    layers: tuple[LayerSpec, ...]
    context: int
    norm_eps: float
    attn_scale: float
    """Factor of q·k before the softmax (usually d_head ** -0.5)."""
    activation: Activation = "silu"
    gated: bool = True
    """The MLP multiplies its activation by a second projection (Glu)."""
    norm: Literal["rms", "layer"] = "rms"
    """Kind of every norm."""
    norm_bias: bool = False
    """Norms of the residual stream have a bias."""
    qkv_bias: bool = False
    out_bias: bool = False
    """The attention's output projection has a bias."""
    mlp_bias: bool = False
    """Of the MLP's projections; of a mixture also of the router."""
    experts: ExpertsSpec | None = None
    sinks: bool = False
    """Each head of attention has a sink (Attention)."""
    qk_norm: QkNorm = "none"
    pre_norms: bool = True
    """Norm of what the attention and the MLP read."""
    post_norms: bool = False
    """Norm of the attention's and the MLP's output before it joins the residual stream."""
    parallel: bool = False
    """The MLP reads what the attention reads, not the attention's result."""
    learned_positions: bool = False
    """A vector is added to each embedding by its position; there are `context` of them."""
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor of the attention's and the MLP's output before it joins the residual stream."""
    attn_softcap: float = 0.0
    """Attention scores are bounded by it (SoftCap); 0: not."""
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    """Logits, once scaled, are bounded by it (SoftCap); 0: not."""
    tied: bool = False
    """The unembedding is the embedding table."""

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name → shape of every weight, in the order in which they are loaded."""
        q, kv, d = self.n_heads * self.d_head, self.n_kv_heads * self.d_head, self.d_model
        qk_norm = {"none": (), "head": (self.d_head,) * 2, "each": (q, kv), "whole": (q, kv)}[self.qk_norm]
        shapes: dict[str, tuple[int, ...]] = {"embed.W_E": (self.vocab, d)}

        def norm(name: str) -> None:
            shapes[f"{name}.w"] = (d,)
            if self.norm_bias:
                shapes[f"{name}.b"] = (d,)

        if self.learned_positions:
            shapes["pos_embed.W_pos"] = (self.context, d)
        for i in range(self.n_layers):
            b = f"blocks.{i}."
            if self.pre_norms:
                norm(b + "ln1")
            shapes |= {b + "attn.W_Q": (q, d), b + "attn.W_K": (kv, d), b + "attn.W_V": (kv, d)}
            if self.qkv_bias:
                shapes |= {b + "attn.b_Q": (q,), b + "attn.b_K": (kv,), b + "attn.b_V": (kv,)}
            shapes |= {f"{b}attn.{name}_norm.w": (n,) for name, n in zip("qk", qk_norm, strict=False)}
            shapes |= {b + "attn.sinks": (self.n_heads,)} if self.sinks else {}
            shapes[b + "attn.W_O"] = (d, q)
            if self.out_bias:
                shapes[b + "attn.b_O"] = (d,)
            if self.post_norms:
                norm(b + "ln1_post")
            if self.pre_norms and not self.parallel:
                norm(b + "ln2")
            shapes |= self._mlp_shapes(b + "mlp.")
            if self.post_norms:
                norm(b + "ln2_post")
        norm("ln_final")
        if not self.tied:
            shapes["unembed.W_U"] = (self.vocab, d)
        return shapes

    def _mlp_shapes(self, m: str) -> dict[str, tuple[int, ...]]:
        """Of one layer's MLP, or mixture of them; `m` is what the names begin with."""
        d, ff, moe = self.d_model, self.d_ff, self.experts
        shapes: dict[str, tuple[int, ...]] = {}

        def mlp(name: str, width: int, count: tuple[int, ...] = ()) -> None:
            inside = ("gate", "in") if self.gated else ("in",)
            shapes.update({f"{name}W_{part}": (*count, width, d) for part in inside})
            shapes[f"{name}W_out"] = (*count, d, width)
            if self.mlp_bias:
                shapes.update({f"{name}b_{part}": (*count, width) for part in inside})
                shapes[f"{name}b_out"] = (*count, d)

        if moe is None:
            mlp(m, ff)
            return shapes
        shapes[m + "W_router"] = (moe.count, d)
        if self.mlp_bias:
            shapes[m + "b_router"] = (moe.count,)
        mlp(m + "experts.", ff, (moe.count,))
        if moe.d_shared:
            mlp(m + "shared.", moe.d_shared)
            if moe.shared_gated:
                shapes[m + "shared.W_weight"] = (1, d)
        return shapes

    def parameters(self) -> int:
        """Number of parameters; a tied table counts once."""
        return sum(prod(shape) for shape in self.weight_shapes().values())

    def active_parameters(self) -> int:
        """Those that one token meets: all but the experts that are not chosen."""
        return sum(round(prod(shape) * self.active_share(name)) for name, shape in self.weight_shapes().items())

    def active_share(self, weight: str) -> float:
        """Share of that weight that one token meets: of the experts' weights those of the chosen ones, else 1."""
        return self.experts.top / self.experts.count if self.experts and ".experts." in weight else 1.0


def is_matrix(weight: str) -> bool:
    """Whether the canonical name is that of a weight that multiplies (or is looked up); others are added, scale or
    shift, value by value, and are kept in float32."""
    return weight.rpartition(".")[2].startswith("W_")
