"""Hugging Face models in float32 with the very weights of a GGUF file: the outside truth of the golden numbers.

Law: nothing of Pellucid is used here. The gguf package decodes the blocks; config and state dict are laid out by hand
from the file's keys, so that a mistake in transformers' own GGUF importer shows (`check_import` compares the two).
Needs torch, transformers, accelerate, gguf and numpy; only whoever makes goldens anew needs them.
"""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from numpy.typing import NDArray

MODELS = Path(os.environ.get("PELLUCID_MODELS", Path.home() / ".cache" / "pellucid-models"))
FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    "gemma-3-270m": "gemma-3-270m.Q4_K_M.gguf",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
}
BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
}
PRE_NORM = {"ffn_norm": "post_attention_layernorm"}
SANDWICH_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def path_of(name: str) -> Path:
    """The GGUF file of a model of `FILES`."""
    return MODELS / FILES[name]


def _fields(reader: gguf.GGUFReader) -> dict[str, object]:
    return {k: f.contents() for k, f in reader.fields.items() if not k.startswith("tokenizer.ggml.")}


def _config(keys: dict, n_vocab: int, tied: bool) -> transformers.PretrainedConfig:
    arch = keys["general.architecture"]
    get = lambda k, default=None: keys.get(f"{arch}.{k}", default)  # noqa: E731
    common = {
        "vocab_size": n_vocab,
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": tied,
    }
    default_rope = {"rope_type": "default", "rope_theta": get("rope.freq_base")}
    if arch == "llama":
        return transformers.LlamaConfig(**common, rope_parameters=default_rope)
    if arch == "qwen2":
        return transformers.Qwen2Config(**common, rope_parameters=default_rope)
    if arch == "gemma3":
        # The file does not say these two (Gemma 3's report does): five local layers to a global one, and the base of
        # the local layers' rotations.
        return transformers.Gemma3TextConfig(
            **common,
            head_dim=get("attention.key_length"),
            query_pre_attn_scalar=get("attention.key_length"),
            sliding_window=get("attention.sliding_window"),
            layer_types=[
                "full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(get("block_count"))
            ],
            rope_parameters={
                "full_attention": default_rope,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        )
    raise ValueError(f"no hand-made config for {arch!r}")


def _split_halves(w: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp interleaves the two rotary halves of llama's Q and K rows; this undoes it."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def _rename(arch: str, name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    if name == "output.weight":
        return "lm_head.weight"
    _, layer, part, kind = name.split(".")
    table = BLOCK | (SANDWICH_NORMS if arch == "gemma3" else PRE_NORM)
    return f"model.layers.{layer}.{table[part]}.{kind}"


def build(name: str, threads: int = 1) -> transformers.PreTrainedModel:
    """The model of `FILES` as Hugging Face's own class, weights dequantised to float32, eager attention."""
    torch.set_num_threads(threads)
    reader = gguf.GGUFReader(path_of(name))
    keys = _fields(reader)
    arch = keys["general.architecture"]
    names = {t.name for t in reader.tensors}
    table = next(t for t in reader.tensors if t.name == "token_embd.weight")
    config = _config(keys, int(table.shape[1]), tied="output.weight" not in names)
    state = {}
    for t in reader.tensors:
        w = gguf.dequantize(t.data, t.tensor_type).astype(np.float32)
        if arch == "llama" and (".attn_q." in t.name or ".attn_k." in t.name):
            heads = config.num_attention_heads if ".attn_q." in t.name else config.num_key_value_heads
            w = _split_halves(w, heads)
        if arch == "gemma3" and "norm" in t.name:
            w = w - 1  # the file holds 1 + w, the class adds the 1 itself
        state[_rename(arch, t.name)] = torch.from_numpy(np.array(w, order="C"))
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    cls = transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = cls.from_config(config, attn_implementation="eager", dtype=torch.float32)
    missing, unexpected = model.load_state_dict(state, strict=True, assign=True)
    assert not missing and not unexpected
    _real_buffers(model, config)
    assert model.config._attn_implementation == "eager"
    assert all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
    assert all(b.device.type == "cpu" for b in model.buffers())
    return model.eval()


def _real_buffers(model: transformers.PreTrainedModel, config: transformers.PretrainedConfig) -> None:
    """Buffers made on the meta device (rotary frequencies, the embedding scale) are made again on the CPU."""
    for module in list(model.modules()):
        for child_name, child in list(module.named_children()):
            if child_name == "rotary_emb":
                setattr(module, child_name, type(child)(config=config))
        if hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale)


@torch.inference_mode()
def logits(model: transformers.PreTrainedModel, tokens: list[int], rows: list[int]) -> NDArray[np.float32]:
    """Logits (len(rows), vocab) of the chosen positions of one sequence from position 0."""
    hidden = model.model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state[0, rows]
    return model.lm_head(hidden).numpy()


def log_softmax(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Row-wise log-softmax in float64."""
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def tokenizer(name: str) -> transformers.PreTrainedTokenizerBase:
    """The tokenizer as transformers reads it from the GGUF file."""
    return transformers.AutoTokenizer.from_pretrained(str(MODELS), gguf_file=FILES[name])


def check_import(name: str, tokens: list[int]) -> float:
    """Largest difference of logits between `build` and transformers' own GGUF import, over the last 8 positions."""
    rows = list(range(max(0, len(tokens) - 8), len(tokens)))
    ours = logits(build(name), tokens, rows)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(MODELS), gguf_file=FILES[name], dtype=torch.float32, attn_implementation="eager"
    ).eval()
    return float(np.abs(ours - logits(theirs, tokens, rows)).max())
