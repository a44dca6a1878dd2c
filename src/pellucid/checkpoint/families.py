"""The model families that can be read, as rows of a table.

Law: what a family always does stands here; what a file may choose is read from the file. A family that differs in kind
gets a new column, not a branch on its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pellucid.models.spec import Activation


@dataclass(frozen=True)
class Family:
    """One family and how its files differ from the canonical form."""

    name: str
    gguf: str | None = None
    """general.architecture of its GGUF files; None: its files say another family's (mistral's say llama)."""
    hf: tuple[str, ...] = ()
    """model_type of its Hugging Face configurations."""
    activation: Activation = "silu"
    qkv_bias: bool = False
    """Always has biases on Q, K and V (else the file says)."""
    qk_norm: bool = False
    post_norms: bool = False
    embed_scaled: bool = False
    """Embeddings are multiplied by sqrt(d_model)."""
    gguf_rotary_interleaved: bool = False
    """GGUF keeps the rows of Q and K with rotary pairs side by side; they are put back into halves."""
    hf_norm_offset: float = 0.0
    """Added to norm weights of Hugging Face files (gemma multiplies by 1 + w); GGUF has it already."""
    windows: Literal["none", "all", "upper", "pattern"] = "none"
    """Which layers of a Hugging Face model may see a sliding window only: none, all, those from max_window_layers
    on (when use_sliding_window says so), or all but every n-th (in GGUF too)."""
    window_pattern: int = 0
    """That n, when the file does not say."""
    local_rope_base: float = 10000.0
    """Rotary base of layers with a sliding window, where they have their own."""
    hf_defaults: dict[str, object] = field(default_factory=dict[str, object])
    """What a Hugging Face configuration means when it is silent."""


_LLAMA_DEFAULTS: dict[str, object] = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048}
_QWEN_DEFAULTS = _LLAMA_DEFAULTS | {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}

FAMILIES = (
    Family("llama", "llama", ("llama",), gguf_rotary_interleaved=True, hf_defaults=_LLAMA_DEFAULTS),
    Family(
        "mistral",
        None,
        ("mistral",),
        windows="all",
        hf_defaults=_LLAMA_DEFAULTS
        | {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
    ),
    Family(
        "qwen2",
        "qwen2",
        ("qwen2",),
        qkv_bias=True,
        windows="upper",
        hf_defaults=_QWEN_DEFAULTS | {"num_key_value_heads": 32},
    ),
    Family(
        "qwen3",
        "qwen3",
        ("qwen3",),
        qk_norm=True,
        windows="upper",
        hf_defaults=_QWEN_DEFAULTS | {"num_key_value_heads": 32, "head_dim": 128},
    ),
    Family(
        "gemma3",
        "gemma3",
        ("gemma3_text", "gemma3"),
        activation="gelu_tanh",
        qk_norm=True,
        post_norms=True,
        embed_scaled=True,
        hf_norm_offset=1.0,
        windows="pattern",
        window_pattern=6,
        hf_defaults={
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "rope_local_base_freq": 10000.0,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
        },
    ),
)
"""Every family that can be read."""

NAMES = ", ".join(f.name for f in FAMILIES)

LIMITS = {
    "layers": 1024,
    "d_model": 1 << 17,
    "d_ff": 1 << 20,
    "heads": 1024,
    "d_head": 1024,
    "vocab": 1 << 21,
    "context": 1 << 27,
    "window": 1 << 27,
}
"""Largest sizes that a file may ask for; far above any real model, so that no file makes us build absurd tables."""
