"""A Hugging Face folder of a tiny model as GGUF, the way llama.cpp's converter writes it.

Law: tensor names are those of the gguf package's own map, keys those of its writer; which families' rows of Q and K are
permuted, transposed or scaled is written down here apart from the importers, so that one tests the other.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

from pellucid.formats import FORMATS

ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "qwen3": "qwen3", "gemma2": "gemma2", "phi3": "phi3", "granite": "granite",
    "olmo2": "olmo2", "smollm3": "smollm3", "starcoder2": "starcoder2", "gpt2": "gpt2", "cohere": "command-r",
    "cohere2": "cohere2", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "olmoe": "olmoe",
    "gpt_oss": "gpt-oss",
}  # fmt: skip
PERMUTED = ("llama", "granite", "smollm3")
"""Architectures whose runtime turns neighbouring values while Hugging Face's turns halves."""


def convert(folder: Path, path: Path, fmt: str = "f32") -> Path:
    """Write `path`, matrices in `fmt`: F32 as they are, or a float format."""
    config = json.loads((folder / "config.json").read_text())
    name = ARCHITECTURES[config["model_type"]]
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == name)
    writer = gguf.GGUFWriter(path, name)
    n_layers = config.get("num_hidden_layers", config.get("n_layer"))
    _keys(writer, name, config, n_layers)
    _vocabulary(writer, config["vocab_size"])
    names = gguf.get_tensor_name_map(arch, n_layers)
    heads = config.get("num_attention_heads", config.get("n_head"))
    kv_heads = config.get("num_key_value_heads") or heads
    for hf_name, values in _experts(load_file(folder / "model.safetensors")).items():
        found = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        assert found is not None, hf_name
        if name in PERMUTED and ("q_proj" in hf_name or "k_proj" in hf_name):
            n = heads if "q_proj" in hf_name else kv_heads
            values = values.reshape(n, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if name == "gpt2" and hf_name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            values = values.T
        if name.startswith("gemma") and hf_name.endswith("norm.weight"):
            values = values + 1
        if values.dtype == np.uint8:
            writer.add_tensor(found, values, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
            continue
        if hf_name.endswith("shared_expert_gate.weight"):
            values = values[0]
        values = np.ascontiguousarray(values)
        if values.ndim == 1 or "norm" in hf_name or hf_name.endswith(".bias") or fmt == "f32":
            writer.add_tensor(found, values)
        else:
            kind = gguf.GGMLQuantizationType(FORMATS[fmt].ggml_type)
            rows = FORMATS[fmt].encode_rows(values.reshape(-1, values.shape[-1]))
            writer.add_tensor(found, rows.reshape(*values.shape[:-1], -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts' tensors put together; what gpt-oss keeps gate by up, turned, or as codes beside exponents, apart."""
    out: dict[str, np.ndarray] = {}
    for name in sorted(tensors):
        values = tensors[name]
        if (at := re.match(r"(.*\.experts)\.(\d+)\.(.*)", name)) is not None:
            whole = f"{at[1]}.{at[3]}"
            if at[2] == "0":
                count = sum(n.startswith(at[1]) and n.endswith(at[3]) for n in tensors)
                out[whole] = np.stack([tensors[f"{at[1]}.{i}.{at[3]}"] for i in range(count)])
            continue
        if ".experts." not in name:
            out[name + ".weight" if name.endswith("sinks") else name] = values
            continue
        if name.endswith("_scales"):
            continue
        if name.endswith("_blocks"):
            values = _mxfp4(values, tensors[name.replace("_blocks", "_scales")])
        elif not name.endswith("_bias"):
            values = values.swapaxes(1, 2)
        stem = name.removesuffix("_blocks").removesuffix("_bias")
        end = ".bias" if name.endswith("_bias") else ".weight"
        if "gate_up_proj" in stem:
            out[stem.replace("gate_up_proj", "gate_proj") + end] = values[:, ::2]
            out[stem.replace("gate_up_proj", "up_proj") + end] = values[:, 1::2]
        else:
            out[stem + end] = values
    return out


def _mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The vendor's (…, blocks, 16) codes, low nibble first, as ggml's blocks of 17 bytes."""
    codes = np.empty((*blocks.shape[:-1], 32), np.uint8)
    codes[..., 0::2], codes[..., 1::2] = blocks & 15, blocks >> 4
    joined = np.concatenate([scales[..., None], codes[..., :16] | codes[..., 16:] << 4], axis=-1)
    return joined.reshape(*blocks.shape[:-2], -1)


def _keys(w: gguf.GGUFWriter, name: str, config: dict, n_layers: int) -> None:
    get = lambda *keys: next((config[k] for k in keys if config.get(k) is not None), None)  # noqa: E731
    width, heads = get("hidden_size", "n_embd"), get("num_attention_heads", "n_head")
    w.add_name("tiny")
    w.add_block_count(n_layers)
    w.add_context_length(get("max_position_embeddings", "n_positions"))
    w.add_embedding_length(width)
    w.add_feed_forward_length(get("intermediate_size", "n_inner") or 4 * width)
    w.add_head_count(heads)
    if kv := get("num_key_value_heads"):
        w.add_head_count_kv(kv)
    if eps := get("rms_norm_eps"):
        w.add_layer_norm_rms_eps(eps)
    if eps := get("layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"):
        w.add_layer_norm_eps(eps)
    if experts := get("num_experts", "num_local_experts"):
        w.add_expert_count(experts)
        w.add_expert_used_count(get("num_experts_per_tok"))
    if name in ("qwen2moe", "qwen3moe", "gpt-oss"):
        w.add_expert_feed_forward_length(get("moe_intermediate_size", "intermediate_size"))
    if shared := get("shared_expert_intermediate_size"):
        w.add_expert_shared_feed_forward_length(shared)
    head = get("head_dim") or width // heads
    if get("head_dim"):
        w.add_key_length(head)
        w.add_value_length(head)
    rope = (get("rope_parameters") or {}) | (get("rope_scaling") or {})
    if base := rope.get("rope_theta", get("rope_theta")):
        w.add_rope_freq_base(base)
    if name in PERMUTED or name in ("phi3", "cohere2"):
        w.add_rope_dimension_count(int(head * (get("partial_rotary_factor") or 1)))
    if window := get("sliding_window"):
        w.add_sliding_window(window)
    for key, add in (
        ("attn_logit_softcapping", w.add_attn_logit_softcapping),
        ("final_logit_softcapping", w.add_final_logit_softcapping),
        ("attention_multiplier", w.add_attention_scale),
        ("embedding_multiplier", w.add_embedding_scale),
        ("residual_multiplier", w.add_residual_scale),
        ("logits_scaling", w.add_logit_scale),
        ("logit_scale", w.add_logit_scale),
    ):
        if value := get(key):
            add(value)
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if own := rope.get("attention_factor"):
            w.add_rope_scaling_yarn_attn_factor(own)
    if kind == "longrope":
        trained = get("original_max_position_embeddings")
        scale = get("max_position_embeddings") / trained
        w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        w.add_rope_scaling_orig_ctx_len(trained)
        w.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(trained))))
        for which in ("long", "short"):
            w.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32))


def _vocabulary(w: gguf.GGUFWriter, n: int) -> None:
    """A SentencePiece vocabulary of `n` pieces, with the byte of a line feed, which some readers look up."""
    pieces = ["<unk>", "<s>", "</s>", "<0x0A>", *(f"t{i}" for i in range(4, n))]
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(pieces)
    w.add_token_types([2, 3, 3, 6] + [1] * (n - 4))
    w.add_token_scores([-float(i) for i in range(n)])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
