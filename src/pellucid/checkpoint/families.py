"""The model families that can be read, as rows of a table.

Law: what a family always does stands here; what a file may choose is read from the file. A family that differs in kind
gets a new column, not a branch on its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pellucid.models.spec import Activation, QkNorm

Bias = Literal["qkv", "out", "mlp", "norm"]
Scaling = Literal[
    "attn_scale", "attn_softcap", "embed_scale", "residual_scale", "logit_scale", "logit_divisor", "logit_softcap"
]


@dataclass(frozen=True)
class Family:
    """One family and how its files differ from the canonical form."""

    name: str
    gguf: str | None = None
    """general.architecture of its GGUF files; None: its files say another family's (mistral's say llama)."""
    hf: tuple[str, ...] = ()
    """model_type of its Hugging Face configurations."""
    activation: Activation = "silu"
    gated: bool = True
    norm: Literal["rms", "layer"] = "rms"
    biases: frozenset[Bias] = frozenset()
    """Biases that it always has (of others the file says)."""
    qk_norm: QkNorm = "none"
    qk_norm_optional: bool = False
    """Only where the configuration says use_qk_norm, or the file has the weights."""
    pre_norms: bool = True
    post_norms: bool = False
    parallel: bool = False
    learned_positions: bool = False
    rotated: Literal["all", "none", "interval", "windowed"] = "all"
    """Which layers rotate q and k: all, none, all but every n-th, or those with a sliding window."""
    rotary_partial: bool = False
    """A configuration's partial_rotary_factor is honoured: only that share of a head is rotated."""
    rotary_interval: int = 4
    """That n, when the file does not say."""
    embed_scaled: bool = False
    """Embeddings are multiplied by sqrt(d_model)."""
    scalings: frozenset[Scaling] = frozenset()
    """Factors and bounds that its files state; logit_divisor: logits are divided by what stands there."""
    gguf_wide_layers: int = 0
    """GGUF does not state the attention's scale. The one member of so many layers has (d_model / n_heads) ** -0.5."""
    gguf_rotary_interleaved: bool = False
    """GGUF keeps the rows of Q and K with rotary pairs side by side; they are put back into halves."""
    hf_rotary_interleaved: bool = False
    """Hugging Face's files do too."""
    hf_norm_offset: float = 0.0
    """Added to norm weights of Hugging Face files (gemma multiplies by 1 + w); GGUF has it already."""
    routed: Literal["none", "normalized", "shares"] = "none"
    """A mixture of experts; the weights of a token's experts sum to 1, or are their shares of all, unless the file
    says otherwise."""
    shared_expert: bool = False
    """A gated MLP beside the experts sees every token."""
    sinks: bool = False
    """Each head of attention has a sink."""
    gguf_yarn_whole: bool = True
    """YaRN's ramp begins and ends at whole numbers of pairs, which GGUF does not state."""
    windows: Literal["none", "all", "upper", "pattern"] = "none"
    """Which layers of a Hugging Face model may see a sliding window only: none, all, those from max_window_layers
    on (when use_sliding_window says so), or all but every n-th (in GGUF too)."""
    window_pattern: int = 0
    """That n, when the file does not say."""
    local_rope_base: float | None = None
    """Rotary base of layers with a sliding window, where they have their own (and no scaling)."""
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """GGUF's and Hugging Face's names of weights that differ from those of names.py. Weights that share a tensor are
    its rows, one behind the other."""
    hf_bodies: tuple[str, ...] = ("model.", "language_model.model.", "model.language_model.")
    """What may come before the decoder's tensors; a language model may sit inside a larger one."""
    hf_layers: str = "layers"
    hf_transposed: Literal["none", "layers", "experts"] = "none"
    """Which matrices Hugging Face keeps as (in, out): none, those of the layers, or of the experts alone."""
    hf_experts_alternating: bool = False
    """Rows of the experts' weights that share a tensor alternate there."""
    hf_blocks: bool = False
    """Hugging Face's files may hold MXFP4, as blocks beside scales."""
    hf_buffers: tuple[str, ...] = (".rotary_emb.inv_freq",)
    """Ends of the names of tensors that are no weights."""
    hf_keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys of its configuration that are spelled otherwise: usual spelling → its own."""
    hf_defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """What a Hugging Face configuration means when it is silent."""
    gguf_defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """What a GGUF file means when it is silent, by key behind the architecture."""


_LLAMA_DEFAULTS: dict[str, object] = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048}
_QWEN_DEFAULTS = _LLAMA_DEFAULTS | {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA_NAMES = {"ln2.w": ("ffn_norm.weight", "pre_feedforward_layernorm.weight")}
_GEMMA_DEFAULTS: dict[str, object] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_COHERE_DEFAULTS: dict[str, object] = {
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
}
_EXPERT_WIDTH = {"moe_intermediate_size": "intermediate_size"}
_GPT_OSS_YARN: dict[str, object] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_ALL_BIASES: frozenset[Bias] = frozenset({"qkv", "out", "mlp", "norm"})

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
        biases=frozenset({"qkv"}),
        windows="upper",
        hf_defaults=_QWEN_DEFAULTS | {"num_key_value_heads": 32},
    ),
    Family(
        "qwen3",
        "qwen3",
        ("qwen3",),
        qk_norm="head",
        windows="upper",
        hf_defaults=_QWEN_DEFAULTS | {"num_key_value_heads": 32, "head_dim": 128},
    ),
    Family(
        "gemma2",
        "gemma2",
        ("gemma2",),
        activation="gelu_tanh",
        post_norms=True,
        embed_scaled=True,
        scalings=frozenset({"attn_softcap", "logit_softcap"}),
        gguf_wide_layers=46,
        hf_norm_offset=1.0,
        windows="pattern",
        window_pattern=2,
        names=_GEMMA_NAMES,
        hf_defaults=_GEMMA_DEFAULTS
        | {
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        gguf_defaults={
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "attention.sliding_window": 4096,
        },
    ),
    Family(
        "gemma3",
        "gemma3",
        ("gemma3_text", "gemma3"),
        activation="gelu_tanh",
        qk_norm="head",
        post_norms=True,
        embed_scaled=True,
        gguf_wide_layers=62,
        hf_norm_offset=1.0,
        windows="pattern",
        window_pattern=6,
        local_rope_base=10000.0,
        names=_GEMMA_NAMES,
        hf_defaults=_GEMMA_DEFAULTS
        | {
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "rope_theta": 1e6,
            "rope_local_base_freq": 10000.0,
        },
    ),
    Family(
        "phi3",
        "phi3",
        ("phi3",),
        rotary_partial=True,
        windows="all",
        names={
            "attn.W_Q": ("attn_qkv.weight", "self_attn.qkv_proj.weight"),
            "attn.W_K": ("attn_qkv.weight", "self_attn.qkv_proj.weight"),
            "attn.W_V": ("attn_qkv.weight", "self_attn.qkv_proj.weight"),
            "mlp.W_gate": ("ffn_up.weight", "mlp.gate_up_proj.weight"),
            "mlp.W_in": ("ffn_up.weight", "mlp.gate_up_proj.weight"),
        },
        hf_defaults={
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        },
    ),
    Family(
        "granite",
        "granite",
        ("granite",),
        scalings=frozenset({"attn_scale", "embed_scale", "residual_scale", "logit_divisor"}),
        gguf_rotary_interleaved=True,
        hf_defaults=_LLAMA_DEFAULTS | {"attention_multiplier": 1.0},
    ),
    Family(
        "olmo2",
        "olmo2",
        ("olmo2",),
        qk_norm="whole",
        pre_norms=False,
        post_norms=True,
        hf_defaults=_LLAMA_DEFAULTS | {"rms_norm_eps": 1e-5},
    ),
    Family(
        "smollm3",
        "smollm3",
        ("smollm3",),
        rotated="interval",
        gguf_rotary_interleaved=True,
        hf_defaults={
            "rms_norm_eps": 1e-6,
            "rope_theta": 2e6,
            "max_position_embeddings": 32768,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
        },
    ),
    Family(
        "starcoder2",
        "starcoder2",
        ("starcoder2",),
        activation="gelu_tanh",
        gated=False,
        norm="layer",
        biases=_ALL_BIASES,
        windows="all",
        names={
            "mlp.W_in": ("ffn_up.weight", "mlp.c_fc.weight"),
            "mlp.b_in": ("ffn_up.bias", "mlp.c_fc.bias"),
            "mlp.W_out": ("ffn_down.weight", "mlp.c_proj.weight"),
            "mlp.b_out": ("ffn_down.bias", "mlp.c_proj.bias"),
        },
        hf_keys={"rms_norm_eps": "norm_epsilon"},
        hf_defaults={
            "norm_epsilon": 1e-5,
            "max_position_embeddings": 4096,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    Family(
        "gpt2",
        "gpt2",
        ("gpt2",),
        activation="gelu_tanh",
        gated=False,
        norm="layer",
        biases=_ALL_BIASES,
        learned_positions=True,
        rotated="none",
        names={
            "embed.W_E": ("token_embd.weight", "wte.weight"),
            "ln_final.w": ("output_norm.weight", "ln_f.weight"),
            "ln_final.b": ("output_norm.bias", "ln_f.bias"),
            "ln1.w": ("attn_norm.weight", "ln_1.weight"),
            "ln1.b": ("attn_norm.bias", "ln_1.bias"),
            "attn.W_Q": ("attn_qkv.weight", "attn.c_attn.weight"),
            "attn.W_K": ("attn_qkv.weight", "attn.c_attn.weight"),
            "attn.W_V": ("attn_qkv.weight", "attn.c_attn.weight"),
            "attn.b_Q": ("attn_qkv.bias", "attn.c_attn.bias"),
            "attn.b_K": ("attn_qkv.bias", "attn.c_attn.bias"),
            "attn.b_V": ("attn_qkv.bias", "attn.c_attn.bias"),
            "attn.W_O": ("attn_output.weight", "attn.c_proj.weight"),
            "attn.b_O": ("attn_output.bias", "attn.c_proj.bias"),
            "ln2.w": ("ffn_norm.weight", "ln_2.weight"),
            "ln2.b": ("ffn_norm.bias", "ln_2.bias"),
            "mlp.W_in": ("ffn_up.weight", "mlp.c_fc.weight"),
            "mlp.b_in": ("ffn_up.bias", "mlp.c_fc.bias"),
            "mlp.W_out": ("ffn_down.weight", "mlp.c_proj.weight"),
            "mlp.b_out": ("ffn_down.bias", "mlp.c_proj.bias"),
        },
        hf_bodies=("transformer.", ""),
        hf_layers="h",
        hf_transposed="layers",
        hf_buffers=(".attn.bias", ".attn.masked_bias"),
        hf_keys={
            "hidden_size": "n_embd",
            "intermediate_size": "n_inner",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "rms_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
        hf_defaults={"layer_norm_epsilon": 1e-5, "n_positions": 1024, "tie_word_embeddings": True},
    ),
    Family(
        "command-r",
        "command-r",
        ("cohere",),
        norm="layer",
        qk_norm="each",
        qk_norm_optional=True,
        parallel=True,
        scalings=frozenset({"logit_scale"}),
        gguf_rotary_interleaved=True,
        hf_rotary_interleaved=True,
        hf_keys={"rms_norm_eps": "layer_norm_eps"},
        hf_defaults=_COHERE_DEFAULTS | {"rope_theta": 500000.0},
    ),
    Family(
        "cohere2",
        "cohere2",
        ("cohere2",),
        norm="layer",
        parallel=True,
        rotated="windowed",
        scalings=frozenset({"logit_scale"}),
        gguf_rotary_interleaved=True,
        hf_rotary_interleaved=True,
        windows="pattern",
        window_pattern=4,
        hf_keys={"rms_norm_eps": "layer_norm_eps"},
        hf_defaults=_COHERE_DEFAULTS | {"sliding_window": 4096},
        gguf_defaults={"attention.sliding_window": 4096},
    ),
    Family(
        "mixtral",
        "llama",
        ("mixtral",),
        routed="normalized",
        windows="all",
        gguf_rotary_interleaved=True,
        names={
            "mlp.W_router": ("ffn_gate_inp.weight", "block_sparse_moe.gate.weight"),
            "mlp.experts.W_gate": ("ffn_gate_exps.weight", "block_sparse_moe.experts.{}.w1.weight"),
            "mlp.experts.W_in": ("ffn_up_exps.weight", "block_sparse_moe.experts.{}.w3.weight"),
            "mlp.experts.W_out": ("ffn_down_exps.weight", "block_sparse_moe.experts.{}.w2.weight"),
        },
        hf_keys=_EXPERT_WIDTH,
        hf_defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    Family(
        "qwen2-moe",
        "qwen2moe",
        ("qwen2_moe",),
        biases=frozenset({"qkv"}),
        routed="shares",
        shared_expert=True,
        hf_defaults=_QWEN_DEFAULTS
        | {
            "num_key_value_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
    ),
    Family(
        "qwen3-moe",
        "qwen3moe",
        ("qwen3_moe",),
        qk_norm="head",
        routed="normalized",
        hf_defaults=_QWEN_DEFAULTS
        | {
            "num_key_value_heads": 4,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
        },
    ),
    Family(
        "olmoe",
        "olmoe",
        ("olmoe",),
        qk_norm="whole",
        routed="shares",
        hf_keys=_EXPERT_WIDTH,
        hf_defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "max_position_embeddings": 4096,
            "num_experts": 64,
            "num_experts_per_tok": 8,
        },
    ),
    Family(
        "gpt-oss",
        "gpt-oss",
        ("gpt_oss",),
        activation="clamped",
        biases=frozenset({"qkv", "out", "mlp"}),
        routed="normalized",
        sinks=True,
        windows="pattern",
        window_pattern=2,
        gguf_yarn_whole=False,
        hf_transposed="experts",
        hf_experts_alternating=True,
        hf_blocks=True,
        names={
            "ln2.w": ("post_attention_norm.weight", "post_attention_layernorm.weight"),
            "mlp.W_router": ("ffn_gate_inp.weight", "mlp.router.weight"),
            "mlp.experts.W_gate": ("ffn_gate_exps.weight", "mlp.experts.gate_up_proj"),
            "mlp.experts.W_in": ("ffn_up_exps.weight", "mlp.experts.gate_up_proj"),
            "mlp.experts.W_out": ("ffn_down_exps.weight", "mlp.experts.down_proj"),
        },
        hf_keys=_EXPERT_WIDTH,
        hf_defaults={
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "sliding_window": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "rope_scaling": _GPT_OSS_YARN,
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
    "experts": 4096,
    "vocab": 1 << 21,
    "context": 1 << 27,
    "window": 1 << 27,
}
"""Largest sizes that a file may ask for; far above any real model, so that no file makes us build absurd tables."""
