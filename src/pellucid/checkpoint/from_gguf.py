"""ModelSpec and TokenizerSource from the key-values of a GGUF file.

Law: keys are read as ggml documents and llama.cpp writes them; a key that would change the arithmetic in a way we do
not know is refused by name, never passed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pellucid.checkpoint.families import FAMILIES, LIMITS, NAMES, Family, Scaling
from pellucid.checkpoint.fields import Fields
from pellucid.checkpoint.gguf import GGUF
from pellucid.checkpoint.mapped import Stored, shown
from pellucid.checkpoint.names import gguf_namer
from pellucid.checkpoint.rope import rotated_layers, yarn_factors, yarn_magnitude
from pellucid.checkpoint.tokens import end_of_turn_ids
from pellucid.errors import UnsupportedModelError
from pellucid.models.spec import ExpertsSpec, LayerSpec, ModelSpec, RopeSpec
from pellucid.models.tokens import CONTROL, NORMAL, TokenizerSource

_SOFTMAX = (0, 1, 3)
"""Not stated; over all experts; over those that are chosen. Which of the two a family has it always has."""
ROPE_FACTORS = "rope_freqs.weight"
ROPE_LONG, ROPE_SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (ROPE_FACTORS, ROPE_LONG, ROPE_SHORT)
_REFUSED = {
    "expert_group_count": "experts in groups",
    "expert_weights_scale": "scaled weights of experts",
    "interleave_moe_layer_step": "layers without experts",
    "attention.clamp_kqv": "clamped q, k and v",
    "attention.max_alibi_bias": "ALiBi",
    "attention.shared_kv_layers": "layers that share K and V",
    "rope.scaling.yarn_log_multiplier": "another magnitude of YaRN",
}
"""Keys (after the architecture) that change the arithmetic, unless they are 0 or absent."""
_SCALINGS: dict[Scaling, tuple[str, str]] = {
    "attn_scale": ("attention.scale", "an attention scale of its own"),
    "attn_softcap": ("attn_logit_softcapping", "soft-capped attention"),
    "logit_softcap": ("final_logit_softcapping", "soft-capped logits"),
    "embed_scale": ("embedding_scale", "scaled embeddings"),
    "residual_scale": ("residual_scale", "scaled residuals"),
    "logit_scale": ("logit_scale", "scaled logits"),
    "logit_divisor": ("logit_scale", "scaled logits"),
}
"""What a family may state → key, and what it is called where a family may not state it."""


def family_of(fields: Fields) -> Family:
    """The family of a GGUF file. Raises UnsupportedModelError for one that is not in the table."""
    architecture = fields.text("general.architecture")
    experts = fields.integer(f"{architecture}.expert_count", 0, LIMITS["experts"], 0)
    for family in FAMILIES:
        # Some architectures stand for two families, one of them with experts.
        if family.gguf == architecture and (family.routed != "none") == (experts > 0):
            return family
    if any(family.gguf == architecture for family in FAMILIES):
        what = "a mixture of experts is" if experts else "a model without experts is"
        raise UnsupportedModelError(
            f"{fields.where}: {architecture}.expert_count: {what} not supported for this family"
        )
    raise UnsupportedModelError(
        f"{fields.where}: architecture {shown(architecture)} is not supported; known are {NAMES}"
    )


def spec_from_gguf(gguf: GGUF, name: str) -> ModelSpec:
    """The spec that the metadata and the presence of tensors describe; `name` is used when the file has none."""
    fields = Fields(gguf.files[0].name, gguf.metadata)
    family = family_of(fields)
    a = f"{family.gguf}."
    fields.values = {a + key: value for key, value in family.gguf_defaults.items()} | gguf.metadata
    stated = {_SCALINGS[scaling][0] for scaling in family.scalings}
    for key, what in (_REFUSED | dict(_SCALINGS.values())).items():
        value = gguf.metadata.get(a + key, 0)
        if key.startswith("expert_") and value == 1:  # one group, a factor of one
            continue
        if key not in stated and (not isinstance(value, int | float) or value != 0):
            raise UnsupportedModelError(f"{fields.where}: {a}{key}: {what} is not supported for {family.name}")

    def scaling(name: Scaling, default: float) -> float:
        """What the file states, if its family may; 0 stands for the default, as ggml has it."""
        if name not in family.scalings:
            return default
        return fields.number(a + _SCALINGS[name][0], 0.0, 1e6, 0.0) or default

    if not fields.flag(a + "attention.causal", True):
        raise UnsupportedModelError(f"{fields.where}: {a}attention.causal: only causal attention is supported")

    n_layers = fields.integer(a + "block_count", 1, LIMITS["layers"])
    d_model = fields.integer(a + "embedding_length", 1, LIMITS["d_model"])
    n_heads = fields.integer(a + "attention.head_count", 1, LIMITS["heads"])
    n_kv = fields.integer(a + "attention.head_count_kv", 1, LIMITS["heads"], n_heads)
    d_head = fields.optional_integer(a + "attention.key_length", 2, LIMITS["d_head"])
    if d_head is None:
        if d_model % n_heads:
            raise fields.fault(a + "attention.head_count", f"is {n_heads}, which does not divide the width {d_model}")
        d_head = d_model // n_heads
    if n_heads % n_kv:
        raise fields.fault(a + "attention.head_count_kv", f"is {n_kv}, which does not divide the {n_heads} heads")
    value_length = fields.integer(a + "attention.value_length", 1, LIMITS["d_head"], d_head)
    if value_length != d_head:
        raise UnsupportedModelError(
            f"{fields.where}: {a}attention.value_length: {value_length} for V beside {d_head} for K is not supported"
        )
    vocab = len(fields.strings("tokenizer.ggml.tokens"))
    declared = fields.integer(a + "vocab_size", 1, LIMITS["vocab"], vocab)
    if declared != vocab:
        raise fields.fault(a + "vocab_size", f"is {declared}, but there are {vocab} tokens")
    context = fields.integer(a + "context_length", 1, LIMITS["context"])
    rope, reach = _rope(fields, family, d_head, gguf.tensors) if family.rotated != "none" else (None, 0)
    namer = gguf_namer(family)

    def has(part: str) -> bool:
        return namer(f"blocks.0.{part}") in gguf.tensors

    return ModelSpec(
        family=family.name,
        name="".join(c if c.isprintable() else "?" for c in fields.text("general.name", name)[:200]),
        vocab=vocab,
        d_model=d_model,
        d_ff=_d_ff(fields, family),
        experts=_experts(fields, family),
        sinks=family.sinks,
        n_heads=n_heads,
        n_kv_heads=n_kv,
        d_head=d_head,
        layers=_layers(fields, family, n_layers, rope),
        context=max(context, reach),
        norm_eps=fields.number(
            a + f"attention.layer_norm_{'rms_' if family.norm == 'rms' else ''}epsilon", 1e-12, 1e-2
        ),
        attn_scale=scaling("attn_scale", _attn_scale(family, n_layers, d_model, n_heads, d_head)),
        activation=family.activation,
        gated=family.gated,
        norm=family.norm,
        norm_bias="norm" in family.biases,
        qkv_bias="qkv" in family.biases or has("attn.b_Q"),
        out_bias="out" in family.biases or has("attn.b_O"),
        mlp_bias="mlp" in family.biases or (family.routed == "none" and has("mlp.b_in")),
        qk_norm="none" if family.qk_norm_optional and not has("attn.q_norm.w") else family.qk_norm,
        pre_norms=family.pre_norms,
        post_norms=family.post_norms,
        parallel=family.parallel,
        learned_positions=family.learned_positions,
        embed_scale=math.sqrt(d_model) if family.embed_scaled else scaling("embed_scale", 1.0),
        residual_scale=scaling("residual_scale", 1.0),
        attn_softcap=scaling("attn_softcap", 0.0),
        logit_scale=scaling("logit_scale", 1.0) / scaling("logit_divisor", 1.0),
        logit_softcap=scaling("logit_softcap", 0.0),
        tied=namer("unembed.W_U") not in gguf.tensors,
    )


def _d_ff(fields: Fields, family: Family) -> int:
    """Width of the MLP, or of each expert."""
    a = f"{family.gguf}."
    own = family.routed != "none" and fields.has(a + "expert_feed_forward_length")
    return fields.integer(a + ("expert_feed_forward_length" if own else "feed_forward_length"), 1, LIMITS["d_ff"])


def _experts(fields: Fields, family: Family) -> ExpertsSpec | None:
    """The mixture, where the family has one."""
    if family.routed == "none":
        return None
    a = f"{family.gguf}."
    count = fields.integer(a + "expert_count", 1, LIMITS["experts"])
    top = fields.integer(a + "expert_used_count", 1, LIMITS["experts"])
    if top > count:
        raise fields.fault(a + "expert_used_count", f"is {top}, but there are {count} experts")
    gating = fields.integer(a + "expert_gating_func", 0, 255, 0)
    if gating not in _SOFTMAX:
        raise UnsupportedModelError(f"{fields.where}: {a}expert_gating_func: {gating} is not supported; softmax is")
    shared = 0
    if family.shared_expert:
        key = a + "expert_shared_feed_forward_length"
        shared = fields.integer(key if fields.has(key) else a + "feed_forward_length", 1, LIMITS["d_ff"])
    normalized = fields.flag(a + "expert_weights_norm", family.routed == "normalized")
    return ExpertsSpec(count, top, normalized, shared, shared_gated=family.shared_expert)


def _attn_scale(family: Family, n_layers: int, d_model: int, n_heads: int, d_head: int) -> float:
    """1/sqrt(d_head), but for the one member of a family that has 1/sqrt(d_model/n_heads)."""
    return (d_model / n_heads if n_layers == family.gguf_wide_layers else d_head) ** -0.5


def _rope(fields: Fields, family: Family, d_head: int, tensors: Mapping[str, Stored]) -> tuple[RopeSpec, int]:
    """The rotation, and the context that its scaling stretches to (0: it does not)."""
    a = f"{family.gguf}."
    dims = fields.integer(a + "rope.dimension_count", 2, d_head, d_head)
    if d_head % 2 or dims % 2:
        raise fields.fault(a + "rope.dimension_count", f"is {dims} of {d_head}; both must be even")
    if dims != d_head and family.gguf_rotary_interleaved:
        raise UnsupportedModelError(
            f"{fields.where}: {a}rope.dimension_count: rotating {dims} of {d_head} values is not supported "
            f"for {family.name}"
        )
    base = fields.number(a + "rope.freq_base", 1.0, 1e12, 10000.0)
    kind = fields.text(a + "rope.scaling.type", "none")
    factors = _factors(fields, dims, tensors[ROPE_FACTORS]) if ROPE_FACTORS in tensors else None
    s = a + "rope.scaling."
    magnitude = fields.number(s + "attn_factor", 1e-3, 1e3, 1.0)
    if ROPE_LONG in tensors or ROPE_SHORT in tensors:
        if ROPE_LONG not in tensors or ROPE_SHORT not in tensors:
            raise fields.fault(ROPE_LONG, f"and {ROPE_SHORT} belong together; one is missing")
        trained = fields.integer(s + "original_context_length", 1, LIMITS["context"])
        short, long = (_factors(fields, dims, tensors[name]) for name in (ROPE_SHORT, ROPE_LONG))
        return RopeSpec(base, dims, factors=short, magnitude=magnitude, trained=trained, long_factors=long), 0
    if kind == "yarn":
        factor = fields.number(s + "factor", 1.0, 1e6)
        trained = fields.integer(s + "original_context_length", 1, LIMITS["context"])
        fast = fields.number(s + "yarn_beta_fast", 1e-3, 1e6, 32.0)
        slow = fields.number(s + "yarn_beta_slow", 1e-3, 1e6, 1.0)
        if fields.number(s + "yarn_ext_factor", -1.0, 1.0, 1.0) not in (1.0, -1.0):
            raise UnsupportedModelError(f"{fields.where}: {s}yarn_ext_factor: only 1 is supported")
        # A model's own magnitude is stated here; 1 is what files say of models that have none.
        own = fields.number(s + "yarn_attn_factor", 1e-3, 1e3, 1.0)
        magnitude *= yarn_magnitude(factor) if own == 1.0 else own
        stretched = yarn_factors(base, dims, factor, trained, fast, slow, whole=family.gguf_yarn_whole)
        return RopeSpec(base, dims, factors=stretched, magnitude=magnitude), int(trained * factor)
    linear = fields.number(a + "rope.scale_linear", 1e-3, 1e6, 1.0)
    if kind == "linear":
        linear = fields.number(s + "factor", 1e-3, 1e6)
    elif kind != "none":
        raise UnsupportedModelError(
            f"{fields.where}: {s}type: {shown(kind)} is not supported; known are none, linear, yarn, "
            "and the factors of llama 3 and longrope"
        )
    return RopeSpec(base, dims, linear, factors, magnitude), 0


def _factors(fields: Fields, dims: int, tensor: Stored) -> tuple[float, ...]:
    if tensor.shape != (dims // 2,) or tensor.format.name != "f32":
        raise fields.fault(tensor.name, f"is {tensor.format.name.upper()} {list(tensor.shape)}, not F32 [{dims // 2}]")
    values = tensor.format.decode_rows(tensor.data())[0]
    if not (np.isfinite(values) & (values > 0)).all():
        raise fields.fault(tensor.name, "holds a factor that is not a positive number")
    return tuple(float(v) for v in values)


def _layers(fields: Fields, family: Family, n_layers: int, rope: RopeSpec | None) -> tuple[LayerSpec, ...]:
    a = f"{family.gguf}."
    window = fields.integer(a + "attention.sliding_window", 0, LIMITS["window"], 0)
    key = a + "attention.sliding_window_pattern"
    local = [True] * n_layers
    if family.windows == "pattern":
        listed = fields.array(key, "b") if isinstance(fields.values.get(key), np.ndarray) else None
        if listed is not None:
            if len(listed) != n_layers:
                raise fields.fault(key, f"has {len(listed)} entries for {n_layers} layers")
            local = [bool(v) for v in listed]
        else:
            pattern = fields.integer(key, 1, LIMITS["layers"], family.window_pattern)
            local = [i % pattern < pattern - 1 for i in range(n_layers)]
    elif fields.has(key):
        raise UnsupportedModelError(f"{fields.where}: {key}: layers of two kinds are not supported for {family.name}")
    near = rope
    if rope is not None and family.local_rope_base is not None:
        near = RopeSpec(fields.number(a + "rope.freq_base_swa", 1.0, 1e12, family.local_rope_base), rope.dims)
    layers = [LayerSpec(window, near) if is_local else LayerSpec(0, rope) for is_local in local]
    return rotated_layers(family, layers, family.rotary_interval)


_KINDS: dict[str, Literal["bpe", "spm"]] = {"gpt2": "bpe", "llama": "spm"}
_BOS_BY_DEFAULT = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken")
"""Pre-tokenizers of byte-level vocabularies that begin with BOS when the file does not say."""


def tokenizer_from_gguf(gguf: GGUF) -> TokenizerSource:
    """The vocabulary of a GGUF file, with every id checked against its size."""
    fields = Fields(gguf.files[0].name, gguf.metadata)
    t = "tokenizer.ggml."
    model = fields.text(t + "model")
    kind = _KINDS.get(model)
    if kind is None:
        raise UnsupportedModelError(
            f"{fields.where}: {t}model: {shown(model)} is not supported; known are gpt2 (byte-level BPE) "
            "and llama (SentencePiece). Give the model's own tokenizer.json, its folder or its repository "
            "with --tokenizer"
        )
    pieces = fields.strings(t + "tokens")
    n = len(pieces)
    types = _types(fields, n)
    scores = _scores(fields, n) if kind == "spm" else None
    merges = fields.strings(t + "merges") if kind == "bpe" else None
    for merge in merges or ():
        if " " not in merge[1:-1]:
            raise fields.fault(t + "merges", f"{shown(merge)} is not two pieces")

    def token(key: str, default: int | None = None) -> int | None:
        value = fields.optional_integer(t + key + "_token_id", 0, n - 1)
        return default if value is None and default is not None and default < n else value

    bos, eos = token("bos", 1 if kind == "spm" else None), token("eos", 2 if kind == "spm" else None)
    pre = fields.text(t + "pre", "default")
    ends = [eos, token("eot"), token("eom"), *end_of_turn_ids(_controls(pieces, types))]
    return TokenizerSource(
        kind=kind,
        pieces=pieces,
        scores=scores,
        types=types,
        merges=merges,
        pre=pre,
        bos_id=bos,
        eos_id=eos,
        unk_id=token("unknown", 0 if kind == "spm" else None),
        pad_id=token("padding"),
        eot_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        add_bos=fields.flag(t + "add_bos_token", kind == "spm" or pre in _BOS_BY_DEFAULT),
        add_eos=fields.flag(t + "add_eos_token", False),
        add_space_prefix=fields.flag(t + "add_space_prefix", kind == "spm"),
        chat_template=fields.optional_text("tokenizer.chat_template"),
    )


def _types(fields: Fields, n: int) -> NDArray[np.int32]:
    key = "tokenizer.ggml.token_type"
    types = fields.array(key, "iu")
    if types is None:
        return np.full(n, NORMAL, np.int32)
    if len(types) != n:
        raise fields.fault(key, f"has {len(types)} entries for {n} tokens")
    if n and (types.min() < 0 or types.max() > 6):
        raise fields.fault(key, f"holds a kind outside 0 to 6 ({types.min()} to {types.max()})")
    return np.where(types == 0, NORMAL, types).astype(np.int32)


def _scores(fields: Fields, n: int) -> NDArray[np.float32]:
    key = "tokenizer.ggml.scores"
    scores: NDArray[Any] | None = fields.array(key, "f")
    if scores is None:
        raise fields.fault(key, "is missing")
    if len(scores) != n:
        raise fields.fault(key, f"has {len(scores)} entries for {n} tokens")
    if not np.isfinite(scores).all():
        raise fields.fault(key, "holds a score that is not finite")
    return scores.astype(np.float32, copy=False)


def _controls(pieces: list[str], types: NDArray[np.int32]) -> dict[str, int]:
    return {pieces[i]: int(i) for i in np.flatnonzero(types == CONTROL)}
