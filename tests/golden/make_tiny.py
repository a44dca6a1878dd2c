"""Make tiny/NAME/: seeded models of every family, saved by transformers, and the logits it gives for them.

    python tests/golden/make_tiny.py       # needs torch, transformers, tokenizers, safetensors

Every choice that a family may make is in some model at a value that is not the common one: heads wider than
d_model / n_heads, windows shorter than the prompt, Llama 3's rotary scaling with frequencies on all three of its
branches, layers of both kinds, a query scale apart from the head's width. Three configurations are rewritten the way
files on the hub still spell them (rope_theta, rope_scaling); the logits come from the model as loaded from disk again.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

HERE = Path(__file__).parent / "tiny"
VOCAB = 96
PROMPT = 40
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS: dict[str, transformers.PretrainedConfig] = {
    "llama": transformers.LlamaConfig(**COMMON),
    "llama3-rope": transformers.LlamaConfig(
        **COMMON | {"head_dim": 16}, rope_parameters=LLAMA3 | {"rope_theta": 10000.0}
    ),
    "mistral": transformers.MistralConfig(**COMMON, sliding_window=8),
    "qwen2": transformers.Qwen2Config(
        **{k: v for k, v in COMMON.items() if k != "head_dim"} | {"num_hidden_layers": 4, "tie_word_embeddings": True},
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    ),
    "qwen3": transformers.Qwen3Config(
        **COMMON | {"head_dim": 16, "tie_word_embeddings": True},
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    ),
    "gemma3": transformers.Gemma3TextConfig(
        **COMMON | {"intermediate_size": 20, "num_hidden_layers": 7, "tie_word_embeddings": True},
        sliding_window=8,
        query_pre_attn_scalar=12,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}
CLASSIC = {
    "llama3-rope": {"rope_theta": 10000.0, "rope_scaling": LLAMA3},
    "mistral": {"rope_theta": 10000.0},
    "gemma3": {
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "sliding_window_pattern": 6,
    },
}
"""Keys that stand in for rope_parameters (and layer_types) in configurations of the older spelling."""


def seeded(config: transformers.PretrainedConfig, seed: int) -> transformers.PreTrainedModel:
    """A model whose every weight is random and matters, norms and biases too."""
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.ndim == 1:
                p.copy_(0.3 * noise if "bias" in name or "gemma" in config.model_type else 1 + 0.3 * noise)
            elif "embed" in name or "lm_head" in name:
                p.copy_(0.7 * noise)
            else:
                p.copy_(noise * 1.5 / p.shape[1] ** 0.5)
    return model


def write_tokenizer(folder: Path) -> None:
    """A word for each id, so that the folder is whole."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"t{i}": i for i in range(3, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def main() -> None:
    """Write every folder."""
    torch.set_num_threads(1)
    for seed, (name, config) in enumerate(CONFIGS.items()):
        folder = HERE / name
        seeded(config, seed).save_pretrained(folder)
        (folder / "generation_config.json").unlink()
        if name in CLASSIC:
            path = folder / "config.json"
            old = {
                k: v
                for k, v in json.loads(path.read_text()).items()
                if k not in ("rope_parameters", "layer_types", "_sliding_window_pattern")
            }
            path.write_text(json.dumps(old | CLASSIC[name], indent=2, sort_keys=True) + "\n")
        write_tokenizer(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        assert model.config.rope_parameters == config.rope_parameters, (
            model.config.rope_parameters,
            config.rope_parameters,
        )
        tokens = np.random.default_rng(seed).integers(3, VOCAB, PROMPT).astype(np.int32)
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor(tokens[None].astype(np.int64)), use_cache=False).logits[0].numpy()
        np.savez_compressed(folder / "golden.npz", tokens=tokens, logits=logits)
        with torch.inference_mode():
            exact = model.double()(input_ids=torch.tensor(tokens[None].astype(np.int64)), use_cache=False).logits[0]
        size = sum(f.stat().st_size for f in folder.iterdir())
        rounding = np.abs(exact.numpy() - logits).max()
        print(f"{name}: {size} bytes; float32 differs from float64 by at most {rounding:.1e}")


if __name__ == "__main__":
    main()
