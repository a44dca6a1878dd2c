"""One plain function turns a ModelSpec into the graph of a decoder.

Law: this is the only decoder. It reads the spec's choices and never a family's name. Values carry TransformerLens's
hook names; nothing is folded, so a value that is looked at is the value that was served.
"""

from __future__ import annotations

from pellucid.graph.graph import Graph
from pellucid.graph.ops import (
    Add,
    Attention,
    Embed,
    Glu,
    Linear,
    Multiply,
    Normalize,
    Op,
    Rope,
    SelectRows,
    StoreKV,
    Value,
)
from pellucid.models.spec import ModelSpec


def decoder_graph(spec: ModelSpec) -> Graph:
    """The graph of a decoder-only transformer: token rows in, `logits` of the selected rows out."""
    ops: list[Op] = []
    d, heads, kv_heads, d_head = spec.d_model, spec.n_heads, spec.n_kv_heads, spec.d_head

    def norm(x: Value, name: str, result: str | None = None) -> Value:
        normalized = Value(f"{name}.hook_normalized", x.shape)
        scaled = Value(result or f"{name}.hook_scaled", x.shape)
        ops.append(Normalize(normalized, x, spec.norm_eps))
        ops.append(Multiply(scaled, normalized, f"{name}.w"))
        return scaled

    def linear(x: Value, name: str, shape: tuple[int, ...], weight: str, bias: str | None) -> Value:
        out = Value(name, shape)
        ops.append(Linear(out, x, weight, bias))
        return out

    def add(a: Value, b: Value, name: str) -> Value:
        out = Value(name, a.shape)
        ops.append(Add(out, a, b))
        return out

    def join(x: Value, name: str, weight: str, post_norm: str) -> Value:
        """Project back to the residual stream, through a norm of its own where the model has one."""
        if not spec.post_norms:
            return linear(x, name, (d,), weight, None)
        return norm(linear(x, f"{name}.unnormalized", (d,), weight, None), post_norm, name)

    resid = Value("hook_embed", (d,))
    ops.append(Embed(resid, "embed.W_E", spec.embed_scale))

    for i, layer in enumerate(spec.layers):
        block = f"blocks.{i}"
        attn = f"{block}.attn"

        # Attention: norm, q k v, positions, cache, weighted sum, projection, residual.
        x = norm(resid, f"{block}.ln1")
        bias = spec.qkv_bias
        q = linear(x, f"{attn}.hook_q", (heads, d_head), f"{attn}.W_Q", f"{attn}.b_Q" if bias else None)
        k = linear(x, f"{attn}.hook_k", (kv_heads, d_head), f"{attn}.W_K", f"{attn}.b_K" if bias else None)
        v = linear(x, f"{attn}.hook_v", (kv_heads, d_head), f"{attn}.W_V", f"{attn}.b_V" if bias else None)
        if spec.qk_norm:
            q = norm(q, f"{attn}.q_norm")
            k = norm(k, f"{attn}.k_norm")
        rot_q = Value(f"{attn}.hook_rot_q", q.shape)
        rot_k = Value(f"{attn}.hook_rot_k", k.shape)
        ops.append(Rope(rot_q, q, layer.rope))
        ops.append(Rope(rot_k, k, layer.rope))
        ops.append(StoreKV(i, rot_k, v))
        z = Value(f"{attn}.hook_z", (heads, d_head))
        ops.append(Attention(z, rot_q, i, kv_heads, spec.attn_scale, layer.window))
        resid = add(
            resid, join(z, f"{block}.hook_attn_out", f"{attn}.W_O", f"{block}.ln1_post"), f"{block}.hook_resid_mid"
        )

        # Feed-forward: norm, gate and up, activation, down, residual.
        x = norm(resid, f"{block}.ln2")
        gate = linear(x, f"{block}.mlp.hook_pre", (spec.d_ff,), f"{block}.mlp.W_gate", None)
        up = linear(x, f"{block}.mlp.hook_pre_linear", (spec.d_ff,), f"{block}.mlp.W_in", None)
        post = Value(f"{block}.mlp.hook_post", (spec.d_ff,))
        ops.append(Glu(post, gate, up, spec.activation))
        out = join(post, f"{block}.hook_mlp_out", f"{block}.mlp.W_out", f"{block}.ln2_post")
        resid = add(resid, out, f"{block}.hook_resid_post")

    last = Value("hook_last", (d,))
    ops.append(SelectRows(last, resid))
    x = norm(last, "ln_final")
    logits = linear(x, "logits", (spec.vocab,), "embed.W_E" if spec.tied else "unembed.W_U", None)
    return Graph(tuple(ops), logits)
