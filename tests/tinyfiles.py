"""Tiny models of every family as files: canonical weights, written the way each vendor writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from pellucid.formats import FORMATS
from pellucid.models.spec import LayerSpec, ModelSpec, RopeSpec

Weights = dict[str, np.ndarray]

LLAMA = ModelSpec(
    family="llama",
    name="tiny",
    vocab=40,
    d_model=64,
    d_ff=96,
    n_heads=4,
    n_kv_heads=2,
    d_head=16,
    layers=(LayerSpec(0, RopeSpec(10000.0, 16)),) * 2,
    context=128,
    norm_eps=1e-5,
    attn_scale=0.25,
)
GEMMA_LOCAL, GEMMA_GLOBAL = LayerSpec(8, RopeSpec(10000.0, 32)), LayerSpec(0, RopeSpec(1e6, 32, 8.0))
SPECS = {
    "llama": LLAMA,
    "mistral": replace(LLAMA, family="mistral", layers=(LayerSpec(32, RopeSpec(1e6, 16)),) * 2),
    "qwen2": replace(LLAMA, family="qwen2", qkv_bias=True, tied=True, layers=(LayerSpec(0, RopeSpec(1e6, 16)),) * 2),
    "qwen3": replace(
        LLAMA,
        family="qwen3",
        qk_norm="head",
        d_head=32,
        attn_scale=32**-0.5,
        layers=(LayerSpec(0, RopeSpec(1e6, 32)),) * 2,
    ),
    "gemma3": replace(
        LLAMA,
        family="gemma3",
        d_head=32,
        layers=tuple(GEMMA_GLOBAL if i % 6 == 5 else GEMMA_LOCAL for i in range(7)),
        attn_scale=32**-0.5,
        activation="gelu_tanh",
        qk_norm="head",
        post_norms=True,
        embed_scale=8.0,
        tied=True,
    ),
}
PIECES = ["<unk>", "<s>", "</s>", "<|im_end|>", *(f"t{i}" for i in range(36))]
TYPES = [2, 3, 3, 3] + [1] * 36


def weights(spec: ModelSpec, seed: int = 0) -> Weights:
    """Canonical random weights."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in spec.weight_shapes().items()}


def interleave(values: np.ndarray, heads: int) -> np.ndarray:
    """What convert_hf_to_gguf does to the rows of Q and K of a llama."""
    return (
        values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )


def gguf_name(canonical: str) -> str:
    whole = {"embed.W_E": "token_embd", "ln_final.w": "output_norm", "unembed.W_U": "output"}
    if canonical in whole:
        return whole[canonical] + ".weight"
    part = {
        "ln1": "attn_norm", "attn.W_Q": "attn_q", "attn.W_K": "attn_k", "attn.W_V": "attn_v", "attn.W_O": "attn_output",
        "attn.b_Q": "attn_q", "attn.b_K": "attn_k", "attn.b_V": "attn_v", "attn.q_norm": "attn_q_norm",
        "attn.k_norm": "attn_k_norm", "ln1_post": "post_attention_norm", "ln2": "ffn_norm", "ln2_post": "post_ffw_norm",
        "mlp.W_gate": "ffn_gate", "mlp.W_in": "ffn_up", "mlp.W_out": "ffn_down",
    }  # fmt: skip
    _, i, rest = canonical.split(".", 2)
    return f"blk.{i}.{part[rest.removesuffix('.w')]}.{'bias' if '.b_' in canonical else 'weight'}"


def write_gguf(
    path: Path, spec: ModelSpec, values: Weights, *, fmt: str = "f16", split: int = 0, **extra: object
) -> Path:
    """Write with the gguf package; matrices in `fmt`, vectors in F32. `extra`: key-values to add (dots as __)."""
    arch = "llama" if spec.family == "mistral" else spec.family
    w = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    w.add_name(spec.name)
    w.add_block_count(spec.n_layers)
    w.add_context_length(spec.context)
    w.add_embedding_length(spec.d_model)
    w.add_feed_forward_length(spec.d_ff)
    w.add_head_count(spec.n_heads)
    w.add_head_count_kv(spec.n_kv_heads)
    w.add_layer_norm_rms_eps(spec.norm_eps)
    if spec.d_head != spec.d_model // spec.n_heads:
        w.add_key_length(spec.d_head)
        w.add_value_length(spec.d_head)
    rope = spec.layers[-2].rope if spec.family == "gemma3" else spec.layers[0].rope
    w.add_rope_freq_base(rope.base)
    if rope.linear != 1.0:
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope.linear)
    if spec.layers[0].window:
        w.add_sliding_window(spec.layers[0].window)
    if rope.factors:
        w.add_tensor("rope_freqs.weight", np.array(rope.factors, np.float32))
    spm = spec.family in ("gemma3", "llama")
    w.add_tokenizer_model("llama" if spm else "gpt2")
    w.add_tokenizer_pre("default" if spm else "qwen2")
    w.add_token_list(PIECES)
    w.add_token_types(TYPES)
    if spm:
        w.add_token_scores([-float(i) for i in range(len(PIECES))])
    else:
        w.add_token_merges(["t 1", "t 2"])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_chat_template("{{ messages }}")
    for key, value in extra.items():
        key = key.replace("__", ".")
        kind = gguf.GGUFValueType.ARRAY if isinstance(value, list) else gguf.GGUFValueType.get_type(value)
        w.add_key_value(key, value, kind)
    for name, v in values.items():
        if arch == "llama" and name.endswith(("W_Q", "b_Q", "W_K", "b_K")):
            v = interleave(v, spec.n_heads if name.endswith("Q") else spec.n_kv_heads)
        if v.ndim == 1 or v.shape[1] % FORMATS[fmt].block:
            w.add_tensor(gguf_name(name), v)
        else:
            raw = FORMATS[fmt].encode_rows(v)
            w.add_tensor(gguf_name(name), raw, raw_dtype=gguf.GGMLQuantizationType(FORMATS[fmt].ggml_type))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def hf_name(canonical: str, gemma: bool) -> str:
    whole = {"embed.W_E": "model.embed_tokens", "ln_final.w": "model.norm", "unembed.W_U": "lm_head"}
    if canonical in whole:
        return whole[canonical] + ".weight"
    part = {
        "ln1": "input_layernorm", "attn.W_Q": "self_attn.q_proj", "attn.W_K": "self_attn.k_proj",
        "attn.W_V": "self_attn.v_proj", "attn.W_O": "self_attn.o_proj", "attn.b_Q": "self_attn.q_proj",
        "attn.b_K": "self_attn.k_proj", "attn.b_V": "self_attn.v_proj", "attn.q_norm": "self_attn.q_norm",
        "attn.k_norm": "self_attn.k_norm", "ln1_post": "post_attention_layernorm",
        "ln2": "pre_feedforward_layernorm" if gemma else "post_attention_layernorm",
        "ln2_post": "post_feedforward_layernorm", "mlp.W_gate": "mlp.gate_proj", "mlp.W_in": "mlp.up_proj",
        "mlp.W_out": "mlp.down_proj",
    }  # fmt: skip
    _, i, rest = canonical.split(".", 2)
    return f"model.layers.{i}.{part[rest.removesuffix('.w')]}.{'bias' if '.b_' in canonical else 'weight'}"


def hf_config(spec: ModelSpec) -> dict[str, object]:
    config: dict[str, object] = {
        "model_type": "gemma3_text" if spec.family == "gemma3" else spec.family,
        "vocab_size": spec.vocab,
        "hidden_size": spec.d_model,
        "intermediate_size": spec.d_ff,
        "num_hidden_layers": spec.n_layers,
        "num_attention_heads": spec.n_heads,
        "num_key_value_heads": spec.n_kv_heads,
        "head_dim": spec.d_head,
        "max_position_embeddings": spec.context,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied,
        "rope_theta": spec.layers[-2].rope.base if spec.family == "gemma3" else spec.layers[0].rope.base,
        "eos_token_id": 2,
    }
    if spec.family == "gemma3":
        config |= {"sliding_window": 8, "query_pre_attn_scalar": 32, "hidden_activation": "gelu_pytorch_tanh"}
        config |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    else:
        config |= {"hidden_act": "silu", "sliding_window": spec.layers[0].window or None}
    return config


def hf_tensors(spec: ModelSpec, values: Weights, fmt: str = "f32") -> dict[str, dict[str, object]]:
    """What save_safetensors takes, by Hugging Face's names."""
    gemma = spec.family == "gemma3"
    out: dict[str, dict[str, object]] = {}
    for name, v in values.items():
        v = v - np.float32(1) if gemma and name.endswith(".w") else v
        raw = FORMATS[fmt].encode_rows(v.reshape(1, -1)).tobytes()
        out[hf_name(name, gemma)] = {"dtype": fmt.upper(), "shape": list(v.shape), "data": raw}
    return out


def safetensors_bytes(tensors: dict[str, dict[str, object]]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, t in tensors.items():
        raw = t["data"]
        assert isinstance(raw, bytes)
        header[name] = {"dtype": t["dtype"], "shape": t["shape"], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def save_safetensors(path: Path, tensors: dict[str, dict[str, object]]) -> None:
    path.write_bytes(safetensors_bytes(tensors))


def write_hf(
    folder: Path,
    spec: ModelSpec,
    values: Weights,
    *,
    fmt: str = "f32",
    shards: int = 1,
    config: dict[str, object] | None = None,
) -> Path:
    """Write a Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or hf_config(spec)))
    tensors = hf_tensors(spec, values, fmt)
    if shards == 1:
        save_safetensors(folder / "model.safetensors", tensors)
    else:
        names, where = list(tensors), {}
        for i in range(shards):
            file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
            part = {n: tensors[n] for n in names[i::shards]}
            where |= dict.fromkeys(part, file)
            save_safetensors(folder / file, part)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    added = [{"id": i, "content": p, "special": True} for i, p in enumerate(PIECES[:4])]
    tokenizer = {"version": "1.0", "added_tokens": added, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, indent=2))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True, "chat_template": "{{ 1 }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    return folder
