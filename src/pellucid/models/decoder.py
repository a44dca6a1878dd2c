"""One plain function turns a ModelSpec into the graph of a decoder.

Law: this is the only decoder. It reads the spec's choices and never a family's name. Values carry TransformerLens's
hook names; nothing is folded, so a value that is looked at is the value that was served.
"""

from __future__ import annotations

from pellucid.graph.graph import Graph
from pellucid.graph.ops import (
    Activate,
    Add,
    Attention,
    Embed,
    EmbedPosition,
    Glu,
    Linear,
    Multiply,
    Normalize,
    Op,
    Rope,
    Scale,
    SelectRows,
    Shift,
    SoftCap,
    StoreKV,
    Value,
)
from pellucid.models.spec import ModelSpec


def decoder_graph(spec: ModelSpec) -> Graph:
    """The graph of a decoder-only transformer: token rows in, `logits` of the selected rows out."""
    ops: list[Op] = []
    d, heads, kv_heads, d_head = spec.d_model, spec.n_heads, spec.n_kv_heads, spec.d_head

    def norm(x: Value, name: str, result: str | None = None) -> Value:
        """Norm of a row of the residual stream's width."""
        normalized = Value(f"{name}.hook_normalized", x.shape)
        scaled = Value(f"{name}.hook_unshifted" if spec.norm_bias else result or f"{name}.hook_scaled", x.shape)
        ops.append(Normalize(normalized, x, spec.norm_eps, centered=spec.norm == "layer"))
        ops.append(Multiply(scaled, normalized, f"{name}.w"))
        if not spec.norm_bias:
            return scaled
        shifted = Value(result or f"{name}.hook_scaled", x.shape)
        ops.append(Shift(shifted, scaled, f"{name}.b"))
        return shifted

    def head_norm(x: Value, name: str) -> Value:
        """Norm of q or k."""
        normalized, scaled = Value(f"{name}.hook_normalized", x.shape), Value(f"{name}.hook_scaled", x.shape)
        groups = 1 if spec.qk_norm == "whole" else x.shape[0]
        ops.append(Normalize(normalized, x, spec.norm_eps, groups, spec.norm == "layer"))
        ops.append(Multiply(scaled, normalized, f"{name}.w", x.shape[0] if spec.qk_norm == "head" else 1))
        return scaled

    def linear(x: Value, name: str, shape: tuple[int, ...], weight: str, bias: str | None) -> Value:
        out = Value(name, shape)
        ops.append(Linear(out, x, weight, bias))
        return out

    def scaled(x: Value, name: str, factor: float) -> Value:
        out = Value(name, x.shape)
        ops.append(Scale(out, x, factor))
        return out

    def add(a: Value, b: Value, name: str) -> Value:
        out = Value(name, a.shape)
        ops.append(Add(out, a, b))
        return out

    def join(x: Value, name: str, weight: str, bias: str | None, post_norm: str) -> Value:
        """Project back to the residual stream, through a norm and a factor of its own where the model has them."""
        after_norm = name if spec.residual_scale == 1.0 else f"{name}.unscaled"
        out = linear(x, f"{name}.unnormalized" if spec.post_norms else after_norm, (d,), weight, bias)
        if spec.post_norms:
            out = norm(out, post_norm, after_norm)
        return out if spec.residual_scale == 1.0 else scaled(out, name, spec.residual_scale)

    resid = Value("hook_embed", (d,))
    ops.append(Embed(resid, "embed.W_E", spec.embed_scale))
    if spec.learned_positions:
        position = Value("hook_pos_embed", (d,))
        ops.append(EmbedPosition(position, "pos_embed.W_pos"))
        resid = add(resid, position, "blocks.0.hook_resid_pre")

    for i, layer in enumerate(spec.layers):
        block = f"blocks.{i}"
        attn, mlp = f"{block}.attn", f"{block}.mlp"

        # Attention: norm, q k v, positions, cache, weighted sum, projection, residual.
        x = norm(resid, f"{block}.ln1") if spec.pre_norms else resid
        bias = spec.qkv_bias
        q = linear(x, f"{attn}.hook_q", (heads, d_head), f"{attn}.W_Q", f"{attn}.b_Q" if bias else None)
        k = linear(x, f"{attn}.hook_k", (kv_heads, d_head), f"{attn}.W_K", f"{attn}.b_K" if bias else None)
        v = linear(x, f"{attn}.hook_v", (kv_heads, d_head), f"{attn}.W_V", f"{attn}.b_V" if bias else None)
        if spec.qk_norm != "none":
            q = head_norm(q, f"{attn}.q_norm")
            k = head_norm(k, f"{attn}.k_norm")
        if layer.rope is not None:
            rot_q, rot_k = Value(f"{attn}.hook_rot_q", q.shape), Value(f"{attn}.hook_rot_k", k.shape)
            ops.append(Rope(rot_q, q, layer.rope))
            ops.append(Rope(rot_k, k, layer.rope))
            q, k = rot_q, rot_k
        ops.append(StoreKV(i, k, v))
        z = Value(f"{attn}.hook_z", (heads, d_head))
        ops.append(Attention(z, q, i, kv_heads, spec.attn_scale, layer.window, spec.attn_softcap))
        bias = f"{attn}.b_O" if spec.out_bias else None
        out = join(z, f"{block}.hook_attn_out", f"{attn}.W_O", bias, f"{block}.ln1_post")
        resid = add(resid, out, f"{block}.hook_resid_mid")

        # Feed-forward: norm, up (and gate), activation, down, residual.
        if not spec.parallel:
            x = norm(resid, f"{block}.ln2") if spec.pre_norms else resid
        post = Value(f"{mlp}.hook_post", (spec.d_ff,))
        up_bias, down_bias = (f"{mlp}.b_in", f"{mlp}.b_out") if spec.mlp_bias else (None, None)
        if spec.gated:
            bias = f"{mlp}.b_gate" if spec.mlp_bias else None
            gate = linear(x, f"{mlp}.hook_pre", (spec.d_ff,), f"{mlp}.W_gate", bias)
            up = linear(x, f"{mlp}.hook_pre_linear", (spec.d_ff,), f"{mlp}.W_in", up_bias)
            ops.append(Glu(post, gate, up, spec.activation))
        else:
            up = linear(x, f"{mlp}.hook_pre", (spec.d_ff,), f"{mlp}.W_in", up_bias)
            ops.append(Activate(post, up, spec.activation))
        out = join(post, f"{block}.hook_mlp_out", f"{mlp}.W_out", down_bias, f"{block}.ln2_post")
        resid = add(resid, out, f"{block}.hook_resid_post")

    last = Value("hook_last", (d,))
    ops.append(SelectRows(last, resid))
    x = norm(last, "ln_final")
    capped, factored = spec.logit_softcap != 0.0, spec.logit_scale != 1.0
    before_cap = "logits.uncapped" if capped else "logits"
    unembed = "embed.W_E" if spec.tied else "unembed.W_U"
    logits = linear(x, "logits.unscaled" if factored else before_cap, (spec.vocab,), unembed, None)
    if factored:
        logits = scaled(logits, before_cap, spec.logit_scale)
    if capped:
        uncapped, logits = logits, Value("logits", logits.shape)
        ops.append(SoftCap(logits, uncapped, spec.logit_softcap))
    return Graph(tuple(ops), logits)
