"""ModelSpec: the whole architecture of a decoder as data.

Law: a new family is a new value of a field here, never a branch on a family's name. Nothing here knows a vendor or a
file. Weights are named canonically (`weight_shapes`), in Hugging Face's orientation (out, in), with rotary halves split
(not interleaved) and norm weights as they are multiplied (gemma's "1 + w" already added).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pellucid.graph.ops import Activation, RopeSpec

__all__ = ["LayerSpec", "ModelSpec", "QkNorm", "RopeSpec"]

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
class ModelSpec:
    """Shapes and choices of one decoder-only transformer."""

    family: str
    name: str
    vocab: int
    d_model: int
    d_ff: int
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
        q, kv, d, ff = self.n_heads * self.d_head, self.n_kv_heads * self.d_head, self.d_model, self.d_ff
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
            shapes[b + "attn.W_O"] = (d, q)
            if self.out_bias:
                shapes[b + "attn.b_O"] = (d,)
            if self.post_norms:
                norm(b + "ln1_post")
            if self.pre_norms and not self.parallel:
                norm(b + "ln2")
            shapes |= {b + "mlp.W_gate": (ff, d)} if self.gated else {}
            shapes |= {b + "mlp.W_in": (ff, d), b + "mlp.W_out": (d, ff)}
            if self.mlp_bias:
                shapes |= {b + "mlp.b_gate": (ff,)} if self.gated else {}
                shapes |= {b + "mlp.b_in": (ff,), b + "mlp.b_out": (d,)}
            if self.post_norms:
                norm(b + "ln2_post")
        norm("ln_final")
        if not self.tied:
            shapes["unembed.W_U"] = (self.vocab, d)
        return shapes

    def parameters(self) -> int:
        """Number of parameters; a tied table counts once."""
        total = 0
        for shape in self.weight_shapes().values():
            n = 1
            for s in shape:
                n *= s
            total += n
        return total
