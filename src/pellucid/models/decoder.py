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
    ExpertLinear,
    Gate,
    Glu,
    Linear,
    Mix,
    Multiply,
    Normalize,
    Op,
    Rope,
    Route,
    Scale,
    SelectRows,
    Shift,
    SoftCap,
    StoreKV,
    Value,
)
from pellucid.models.spec import ExpertsSpec, ModelSpec


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

    def result_name(name: str) -> str:
        """What the attention's or the MLP's output is called before its own norm and factor, where there are any."""
        return f"{name}.unnormalized" if spec.post_norms else name if spec.residual_scale == 1.0 else f"{name}.unscaled"

    def join(out: Value, name: str, post_norm: str) -> Value:
        """That output through the norm and the factor, ready for the residual stream."""
        if spec.post_norms:
            out = norm(out, post_norm, name if spec.residual_scale == 1.0 else f"{name}.unscaled")
        return out if spec.residual_scale == 1.0 else scaled(out, name, spec.residual_scale)

    def mlp(x: Value, name: str, width: int, result: str) -> Value:
        """Up (and gate), activation, down."""
        post = Value(f"{name}.hook_post", (width,))

        def bias(part: str) -> str | None:
            return f"{name}.b_{part}" if spec.mlp_bias else None

        if spec.gated:
            gate = linear(x, f"{name}.hook_pre", (width,), f"{name}.W_gate", bias("gate"))
            up = linear(x, f"{name}.hook_pre_linear", (width,), f"{name}.W_in", bias("in"))
            ops.append(Glu(post, gate, up, spec.activation))
        else:
            up = linear(x, f"{name}.hook_pre", (width,), f"{name}.W_in", bias("in"))
            ops.append(Activate(post, up, spec.activation))
        return linear(post, result, (d,), f"{name}.W_out", bias("out"))

    def mixture(x: Value, name: str, moe: ExpertsSpec, result: str) -> Value:
        """Route each row to its experts, mix what they make, and add the MLP that sees all rows."""
        inside = f"{name}.experts"
        biased = spec.mlp_bias
        logits = linear(
            x, f"{name}.hook_router", (moe.count,), f"{name}.W_router", f"{name}.b_router" if biased else None
        )
        share = None
        if moe.d_shared and moe.shared_gated:
            share = linear(x, f"{name}.shared.hook_weight", (1,), f"{name}.shared.W_weight", None)
        chosen, weights = (Value(f"{name}.hook_expert_{what}", (moe.top,)) for what in ("indices", "weights"))
        ops.append(Route(weights, chosen, logits, moe.normalized))

        def expert(x: Value, hook: str, width: int, part: str) -> Value:
            out = Value(f"{inside}.{hook}", (moe.top, width))
            ops.append(ExpertLinear(out, x, chosen, f"{inside}.W_{part}", f"{inside}.b_{part}" if biased else None))
            return out

        gate, up = expert(x, "hook_pre", spec.d_ff, "gate"), expert(x, "hook_pre_linear", spec.d_ff, "in")
        post = Value(f"{inside}.hook_post", gate.shape)
        ops.append(Glu(post, gate, up, spec.activation))
        mixed = Value(f"{name}.hook_mixed" if moe.d_shared else result, (d,))
        ops.append(Mix(mixed, expert(post, "hook_out", d, "out"), weights))
        if not moe.d_shared:
            return mixed
        beside = mlp(x, f"{name}.shared", moe.d_shared, f"{name}.shared.hook_{'ungated' if share else 'out'}")
        if share is not None:
            ungated, beside = beside, Value(f"{name}.shared.hook_out", (d,))
            ops.append(Gate(beside, ungated, share))
        return add(mixed, beside, result)

    resid = Value("hook_embed", (d,))
    ops.append(Embed(resid, "embed.W_E", spec.embed_scale))
    if spec.learned_positions:
        position = Value("hook_pos_embed", (d,))
        ops.append(EmbedPosition(position, "pos_embed.W_pos"))
        resid = add(resid, position, "blocks.0.hook_resid_pre")

    for i, layer in enumerate(spec.layers):
        block = f"blocks.{i}"
        attn = f"{block}.attn"

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
        sinks = f"{attn}.sinks" if spec.sinks else None
        ops.append(Attention(z, q, i, kv_heads, spec.attn_scale, layer.window, spec.attn_softcap, sinks))
        name = f"{block}.hook_attn_out"
        out = linear(z, result_name(name), (d,), f"{attn}.W_O", f"{attn}.b_O" if spec.out_bias else None)
        out = join(out, name, f"{block}.ln1_post")
        resid = add(resid, out, f"{block}.hook_resid_mid")

        # Feed-forward: norm, an MLP or a mixture of them, residual.
        if not spec.parallel:
            x = norm(resid, f"{block}.ln2") if spec.pre_norms else resid
        name = f"{block}.hook_mlp_out"
        if spec.experts is None:
            out = mlp(x, f"{block}.mlp", spec.d_ff, result_name(name))
        else:
            out = mixture(x, f"{block}.mlp", spec.experts, result_name(name))
        out = join(out, name, f"{block}.ln2_post")
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
