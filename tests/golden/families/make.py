"""Make NAME/ beside this file: seeded models of the families, saved by transformers, with the logits it gives.

    python tests/golden/families/make.py [NAME...]      # needs torch, transformers, tokenizers, safetensors

Every choice that a family may make is in some model at a value that is not the common one; scalings are strong, and
caps low, so that leaving one out shows. golden.npz holds for two prompts, one longer and one shorter than the length
that a rotary scaling was "trained" on, tokens_i, logits_i (of every token) and greedy_i (ids of the continuation, each
found by a whole forward pass). Some configurations are rewritten the way files on the hub still spell them. The experts
of gpt-oss-mxfp4 are put onto MXFP4's grid and stored the way the vendor stores them, as blocks beside scales.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from make_tiny import COMMON, VOCAB, seeded, write_tokenizer  # noqa: E402

PROMPTS = (40, 20)
GREEDY = 6
MARGIN = 2e-3
"""Least lead of the best logit in greedy_i, so that the ids do not hang on rounding."""
TRAINED = 32
NO_HEAD = {k: v for k, v in COMMON.items() if k != "head_dim"}
LAYER_NORM = {k: v for k, v in NO_HEAD.items() if k != "rms_norm_eps"}
TWO_HEADS = NO_HEAD | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": TRAINED,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
LONGROPE = {
    "rope_type": "longrope",
    "long_factor": [1.0, 1.5, 2.0, 3.5, 6.0, 9.0],
    "short_factor": [1.0, 1.1, 1.2, 1.25, 1.5, 2.0],
}
GEMMA2 = transformers.Gemma2Config(
    **COMMON | {"num_hidden_layers": 4, "tie_word_embeddings": True},
    sliding_window=8,
    query_pre_attn_scalar=12,
    attn_logit_softcapping=2.0,
    final_logit_softcapping=4.0,
)
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 1000.0}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 10}
GPT_OSS = transformers.GptOssConfig(
    **COMMON | {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "pad_token_id": 0},
    num_local_experts=5,
    num_experts_per_tok=2,
    sliding_window=8,
    rope_parameters=YARN | {"rope_theta": 100.0, "beta_fast": 4.0, "truncate": False},
)
CONFIGS: dict[str, transformers.PretrainedConfig] = {
    "falcon3": transformers.LlamaConfig(
        **COMMON | {"head_dim": 12, "tie_word_embeddings": False},
        rope_parameters={"rope_type": "default", "rope_theta": 1000042.0},
    ),
    "mistral-nemo": transformers.MistralConfig(
        **COMMON | {"head_dim": 12, "num_attention_heads": 2, "num_key_value_heads": 1},
        sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    ),
    "llama-biased": transformers.LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "llama-linear": transformers.LlamaConfig(
        **COMMON, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
    ),
    "llama-dynamic": transformers.LlamaConfig(
        **COMMON | {"max_position_embeddings": TRAINED},
        rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0},
    ),
    "llama-yarn": transformers.LlamaConfig(
        **COMMON | {"head_dim": 16}, rope_parameters=YARN | {"rope_theta": 100.0, "attention_factor": 1.3}
    ),
    "qwen3-yarn": transformers.Qwen3Config(
        **COMMON | {"head_dim": 16, "tie_word_embeddings": True}, rope_parameters=YARN | {"rope_theta": 10000.0}
    ),
    "gemma2": GEMMA2,
    "phi3": transformers.Phi3Config(**NO_HEAD | {"pad_token_id": 0}, sliding_window=8),
    "phi4-mini": transformers.Phi3Config(
        **TWO_HEADS | {"pad_token_id": 0, "tie_word_embeddings": True},
        original_max_position_embeddings=TRAINED,
        partial_rotary_factor=0.75,
        rope_parameters=LONGROPE
        | {"rope_theta": 100.0, "partial_rotary_factor": 0.75, "original_max_position_embeddings": TRAINED},
    ),
    "granite": transformers.GraniteConfig(
        **NO_HEAD,
        embedding_multiplier=3.0,
        residual_multiplier=0.4,
        attention_multiplier=0.6,
        logits_scaling=1.7,
    ),
    "olmo2": transformers.Olmo2Config(**NO_HEAD),
    "smollm3": transformers.SmolLM3Config(
        **NO_HEAD | {"num_hidden_layers": 5, "pad_token_id": 0, "tie_word_embeddings": True},
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    ),
    "starcoder2": transformers.Starcoder2Config(
        **LAYER_NORM | {"tie_word_embeddings": True},
        norm_epsilon=1e-4,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=64, n_embd=16, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=2
    ),
    "command-r": transformers.CohereConfig(
        **LAYER_NORM | {"pad_token_id": 0, "tie_word_embeddings": True},
        logit_scale=0.4,
        use_qk_norm=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    ),
    "cohere2": transformers.Cohere2Config(
        **LAYER_NORM | {"num_hidden_layers": 5, "pad_token_id": 0, "tie_word_embeddings": True},
        logit_scale=0.6,
        sliding_window=8,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    ),
    "mixtral": transformers.MixtralConfig(
        **NO_HEAD, num_local_experts=4, num_experts_per_tok=2, sliding_window=8, rope_parameters=DEFAULT_ROPE
    ),
    "qwen2-moe": transformers.Qwen2MoeConfig(
        **NO_HEAD | EXPERTS, shared_expert_intermediate_size=20, rope_parameters=DEFAULT_ROPE
    ),
    "qwen3-moe": transformers.Qwen3MoeConfig(
        **COMMON | EXPERTS | {"head_dim": 16}, norm_topk_prob=True, rope_parameters=DEFAULT_ROPE
    ),
    "olmoe": transformers.OlmoeConfig(
        **NO_HEAD | {"intermediate_size": 12, "pad_token_id": 0},
        num_experts=8,
        num_experts_per_tok=3,
        rope_parameters=DEFAULT_ROPE,
    ),
    "gpt-oss": GPT_OSS,
    "gpt-oss-mxfp4": GPT_OSS,
}
CLASSIC: dict[str, dict[str, object]] = {
    "gemma2": {"rope_theta": 10000.0},
    "qwen3-yarn": {"rope_theta": 10000.0, "rope_scaling": YARN},
    "phi4-mini": {
        "rope_theta": 100.0,
        "rope_scaling": {"type": "longrope", **{k: v for k, v in LONGROPE.items() if k != "rope_type"}},
    },
    "cohere2": {"rope_theta": 1000.0, "sliding_window_pattern": 4},
    "starcoder2": {"rope_theta": 1000.0},
    "mixtral": {"rope_theta": 1000.0},
    "qwen3-moe": {"rope_theta": 1000.0},
}
"""Keys that stand in for rope_parameters and layer_types in configurations of the older spelling."""


def logits_of(model: transformers.PreTrainedModel, tokens: list[int]) -> np.ndarray:
    """(tokens, vocab), by one pass without a cache."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def greedy(model: transformers.PreTrainedModel, tokens: list[int]) -> list[int]:
    """The most likely next ids, one after the other."""
    out: list[int] = []
    while len(out) < GREEDY:
        last = np.sort(logits_of(model, tokens + out)[-1])
        assert last[-1] - last[-2] > MARGIN, "the greedy continuation hangs on rounding; take another seed"
        out.append(int(np.argmax(logits_of(model, tokens + out)[-1])))
    return out


def widen_gates(model: transformers.PreTrainedModel) -> None:
    """Let the activation's bounds be met, which lie far out."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("experts.gate_up_proj"):
                p *= 2.5


def to_mxfp4(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(experts, in, out) to blocks (experts, out, in / 32, 16) and scales (experts, out, in / 32), as the vendor's."""
    levels = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    groups = values.transpose(1, 2).reshape(values.shape[0], values.shape[2], -1, 32)
    exponent = torch.floor(torch.log2(groups.abs().amax(-1))) - 2
    scaled = groups / torch.exp2(exponent)[..., None]
    code = (scaled.abs()[..., None] - levels).abs().argmin(-1) + 8 * (scaled < 0)
    return (code[..., ::2] | code[..., 1::2] << 4).to(torch.uint8), (exponent + 127).to(torch.uint8)


def make(name: str, seed: int) -> None:
    """Write one folder."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    made = seeded(CONFIGS[name], seed)
    packed: dict[str, torch.Tensor] = {}
    if name.startswith("gpt-oss"):
        widen_gates(made)
    if name.endswith("mxfp4"):
        with torch.no_grad():
            for key, p in made.named_parameters():
                if key.endswith(("experts.gate_up_proj", "experts.down_proj")):
                    blocks, scales = to_mxfp4(p)
                    packed |= {f"{key}_blocks": blocks, f"{key}_scales": scales}
                    p.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    made.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    if name in CLASSIC:
        path = folder / "config.json"
        left_out = ("rope_parameters", "layer_types", "_sliding_window_pattern")
        old = {k: v for k, v in json.loads(path.read_text()).items() if k not in left_out}
        path.write_text(json.dumps(old | CLASSIC[name], indent=2, sort_keys=True) + "\n")
    write_tokenizer(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    golden: dict[str, np.ndarray] = {}
    for i, n in enumerate(PROMPTS):
        tokens = np.random.default_rng([seed, i]).integers(3, VOCAB, n).tolist()
        golden[f"tokens_{i}"] = np.array(tokens, np.int32)
        golden[f"logits_{i}"] = logits_of(model, tokens)
        golden[f"greedy_{i}"] = np.array(greedy(model, tokens), np.int32)
    np.savez_compressed(folder / "golden.npz", **golden)
    if packed:
        tensors = load_file(folder / "model.safetensors")
        left = {k: v for k, v in tensors.items() if f"{k}_blocks" not in packed}
        save_file(left | packed, folder / "model.safetensors", {"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        quantised = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
        text = json.dumps(config | {"quantization_config": quantised}, indent=2, sort_keys=True)
        (folder / "config.json").write_text(text + "\n")
    size = sum(f.stat().st_size for f in folder.iterdir())
    spread = golden["logits_0"].std()
    print(f"{name}: {size} bytes; logits spread by {spread:.2f}")


def main() -> None:
    """Write every folder, or those that are named."""
    torch.set_num_threads(1)
    for seed, name in enumerate(CONFIGS):
        if not sys.argv[1:] or name in sys.argv[1:]:
            make(name, seed)


if __name__ == "__main__":
    main()
