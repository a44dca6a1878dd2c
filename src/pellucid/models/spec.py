"""ModelSpec: the whole architecture of a decoder as data.

Law: a new family is a new value of a field here, never a branch on a family's name. Nothing here knows a vendor or a
file. Weights are named canonically (`weight_shapes`), in Hugging Face's orientation (out, in), with rotary halves split
(not interleaved) and norm weights as they are multiplied (gemma's "1 + w" already added).
"""

from __future__ import annotations

from dataclasses import dataclass

from pellucid.graph.ops import Activation, RopeSpec

__all__ = ["LayerSpec", "ModelSpec", "RopeSpec"]


@dataclass(frozen=True)
class LayerSpec:
    """What may differ from layer to layer."""

    window: int
    """Sliding window in tokens, the query's own included; 0: all keys."""
    rope: RopeSpec


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
    qkv_bias: bool = False
    qk_norm: bool = False
    """RMS norm over each head of q and k, before the rotation."""
    post_norms: bool = False
    """RMS norm of the attention's and the MLP's output before it joins the residual stream."""
    embed_scale: float = 1.0
    tied: bool = False
    """The unembedding is the embedding table."""

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical name → shape of every weight, in the order in which they are loaded."""
        q, kv, d = self.n_heads * self.d_head, self.n_kv_heads * self.d_head, self.d_model
        shapes: dict[str, tuple[int, ...]] = {"embed.W_E": (self.vocab, d)}
        for i in range(self.n_layers):
            b = f"blocks.{i}."
            shapes[b + "ln1.w"] = (d,)
            shapes[b + "attn.W_Q"] = (q, d)
            shapes[b + "attn.W_K"] = (kv, d)
            shapes[b + "attn.W_V"] = (kv, d)
            if self.qkv_bias:
                shapes |= {b + "attn.b_Q": (q,), b + "attn.b_K": (kv,), b + "attn.b_V": (kv,)}
            if self.qk_norm:
                shapes |= {b + "attn.q_norm.w": (self.d_head,), b + "attn.k_norm.w": (self.d_head,)}
            shapes[b + "attn.W_O"] = (d, q)
            if self.post_norms:
                shapes[b + "ln1_post.w"] = (d,)
            shapes[b + "ln2.w"] = (d,)
            shapes[b + "mlp.W_gate"] = (self.d_ff, d)
            shapes[b + "mlp.W_in"] = (self.d_ff, d)
            shapes[b + "mlp.W_out"] = (d, self.d_ff)
            if self.post_norms:
                shapes[b + "ln2_post.w"] = (d,)
        shapes["ln_final.w"] = (d,)
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
