"""ModelSpec and TokenizerSource from the key-values of a GGUF file.

Law: keys are read as ggml documents and llama.cpp writes them; a key that would change the arithmetic in a way we do
not know is refused by name, never passed over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pellucid.checkpoint.families import FAMILIES, LIMITS, NAMES, Family
from pellucid.checkpoint.fields import Fields
from pellucid.checkpoint.gguf import GGUF
from pellucid.checkpoint.mapped import Stored, shown
from pellucid.checkpoint.tokens import end_of_turn_ids
from pellucid.errors import UnsupportedModelError
from pellucid.models.spec import LayerSpec, ModelSpec, RopeSpec
from pellucid.models.tokens import CONTROL, NORMAL, TokenizerSource

ROPE_FACTORS = "rope_freqs.weight"
_REFUSED = {
    "expert_count": "a mixture of experts",
    "attn_logit_softcapping": "soft-capped attention",
    "final_logit_softcapping": "soft-capped logits",
    "logit_scale": "scaled logits",
    "residual_scale": "scaled residuals",
    "embedding_scale": "scaled embeddings",
    "attention.scale": "an attention scale of its own",
    "attention.clamp_kqv": "clamped q, k and v",
    "attention.max_alibi_bias": "ALiBi",
    "attention.shared_kv_layers": "layers that share K and V",
}
"""Keys (after the architecture) that change the arithmetic, unless they are 0 or absent."""


@dataclass(frozen=True)
class _Rope:
    base: float
    dims: int
    linear: float
    factors: tuple[float, ...] | None


def family_of(fields: Fields) -> Family:
    """The family of a GGUF file. Raises UnsupportedModelError for one that is not in the table."""
    architecture = fields.text("general.architecture")
    for family in FAMILIES:
        if family.gguf == architecture:
            return family
    raise UnsupportedModelError(
        f"{fields.where}: architecture {shown(architecture)} is not supported; known are {NAMES}"
    )


def spec_from_gguf(gguf: GGUF, name: str) -> ModelSpec:
    """The spec that the metadata and the presence of tensors describe; `name` is used when the file has none."""
    fields = Fields(gguf.files[0].name, gguf.metadata)
    family = family_of(fields)
    a = f"{family.gguf}."
    for key, what in _REFUSED.items():
        value = gguf.metadata.get(a + key, 0)
        if not isinstance(value, int | float) or value != 0:
            raise UnsupportedModelError(f"{fields.where}: {a}{key}: {what} is not supported for {family.name}")
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
    return ModelSpec(
        family=family.name,
        name="".join(c if c.isprintable() else "?" for c in fields.text("general.name", name)[:200]),
        vocab=vocab,
        d_model=d_model,
        d_ff=fields.integer(a + "feed_forward_length", 1, LIMITS["d_ff"]),
        n_heads=n_heads,
        n_kv_heads=n_kv,
        d_head=d_head,
        layers=_layers(fields, family, n_layers, _rope(fields, family, d_head, gguf.tensors)),
        context=context,
        norm_eps=fields.number(a + "attention.layer_norm_rms_epsilon", 1e-12, 1e-2),
        attn_scale=_attn_scale(family, n_layers, d_model, n_heads, d_head),
        activation=family.activation,
        qkv_bias=family.qkv_bias or "blk.0.attn_q.bias" in gguf.tensors,
        qk_norm=family.qk_norm,
        post_norms=family.post_norms,
        embed_scale=math.sqrt(d_model) if family.embed_scaled else 1.0,
        tied="output.weight" not in gguf.tensors,
    )


def _attn_scale(family: Family, n_layers: int, d_model: int, n_heads: int, d_head: int) -> float:
    """1/sqrt(d_head), but for gemma 3 27B (62 layers), whose scale GGUF does not say: it is 1/sqrt(d_model/n_heads)."""
    wide = family.windows == "pattern" and n_layers == 62
    return (d_model / n_heads if wide else d_head) ** -0.5


def _rope(fields: Fields, family: Family, d_head: int, tensors: Mapping[str, Stored]) -> _Rope:
    a = f"{family.gguf}."
    dims = fields.integer(a + "rope.dimension_count", 2, d_head, d_head)
    if d_head % 2 or dims % 2:
        raise fields.fault(a + "rope.dimension_count", f"is {dims} of {d_head}; both must be even")
    if dims != d_head and family.gguf_rotary_interleaved:
        raise UnsupportedModelError(
            f"{fields.where}: {a}rope.dimension_count: rotating {dims} of {d_head} values is not supported "
            f"for {family.name}"
        )
    kind = fields.text(a + "rope.scaling.type", "none")
    linear = fields.number(a + "rope.scale_linear", 1e-3, 1e6, 1.0)
    if kind == "linear":
        linear = fields.number(a + "rope.scaling.factor", 1e-3, 1e6)
    elif kind != "none":
        raise UnsupportedModelError(
            f"{fields.where}: {a}rope.scaling.type: {shown(kind)} is not supported; known are none, linear "
            "and llama 3's factors"
        )
    factors = _factors(fields, dims, tensors[ROPE_FACTORS]) if ROPE_FACTORS in tensors else None
    return _Rope(fields.number(a + "rope.freq_base", 1.0, 1e12, 10000.0), dims, linear, factors)


def _factors(fields: Fields, dims: int, tensor: Stored) -> tuple[float, ...]:
    if tensor.shape != (dims // 2,) or tensor.format.name != "f32":
        raise fields.fault(ROPE_FACTORS, f"is {tensor.format.name.upper()} {list(tensor.shape)}, not F32 [{dims // 2}]")
    values = tensor.format.decode_rows(tensor.data())[0]
    if not (np.isfinite(values) & (values > 0)).all():
        raise fields.fault(ROPE_FACTORS, "holds a factor that is not a positive number")
    return tuple(float(v) for v in values)


def _layers(fields: Fields, family: Family, n_layers: int, rope: _Rope) -> tuple[LayerSpec, ...]:
    a = f"{family.gguf}."
    window = fields.integer(a + "attention.sliding_window", 0, LIMITS["window"], 0)
    spread = RopeSpec(rope.base, rope.dims, rope.linear, rope.factors)
    if family.windows != "pattern":
        return (LayerSpec(window, spread),) * n_layers
    key = a + "attention.sliding_window_pattern"
    listed = fields.array(key, "b") if isinstance(fields.values.get(key), np.ndarray) else None
    if listed is not None:
        if len(listed) != n_layers:
            raise fields.fault(key, f"has {len(listed)} entries for {n_layers} layers")
        local = [bool(v) for v in listed]
    else:
        pattern = fields.integer(key, 1, LIMITS["layers"], family.window_pattern)
        local = [i % pattern < pattern - 1 for i in range(n_layers)]
    base = fields.number(a + "rope.freq_base_swa", 1.0, 1e12, family.local_rope_base)
    near = LayerSpec(window, RopeSpec(base, rope.dims))
    return tuple(near if is_local else LayerSpec(0, spread) for is_local in local)


_KINDS: dict[str, Literal["bpe", "spm"]] = {"gpt2": "bpe", "llama": "spm"}
_BOS_BY_DEFAULT = ("llama3", "llama-v3", "llama-bpe")
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
            "and llama (SentencePiece)"
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
