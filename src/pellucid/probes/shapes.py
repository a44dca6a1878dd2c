"""The shapes of a model, as views of it are told: numbers, in the words of its specification."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from pellucid import __version__
from pellucid.devices.cpu import CpuDevice
from pellucid.errors import RequestError

if TYPE_CHECKING:
    from pellucid.llm import LLM


class ModelShapes(TypedDict):
    """Numbers of one model, in the words of its specification."""

    name: str
    family: str
    version: str
    device: str
    threads: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int
    d_ff: int
    vocab: int
    activation: str
    gated: bool
    tied: bool
    windows: list[int]
    """Sliding window of each layer; 0: all keys."""
    rotates: bool
    experts: int
    experts_per_token: int
    trained_context: int
    context: int
    kv_format: str
    kv_bytes_per_token: float
    page_size: int
    parameters: int
    weight_bytes: int
    weight_format: str
    """Of most bytes of the weights."""
    chat: bool
    """It has a chat template."""


def shapes(llm: LLM, name: str) -> ModelShapes:
    """Of a model that runs, under the name that it goes by. Raises RequestError: its device cannot be looked into."""
    device = llm.device
    if not isinstance(device, CpuDevice):
        raise RequestError(f"{name} runs on a device that cannot be looked into")
    spec = llm.spec
    experts = spec.experts
    return {
        "name": name,
        "family": spec.family,
        "version": __version__,
        "device": "CPU",
        "threads": device.pool.threads,
        "n_layers": spec.n_layers,
        "n_heads": spec.n_heads,
        "n_kv_heads": spec.n_kv_heads,
        "d_head": spec.d_head,
        "d_model": spec.d_model,
        "d_ff": spec.d_ff,
        "vocab": spec.vocab,
        "activation": spec.activation,
        "gated": spec.gated,
        "tied": spec.tied,
        "windows": [layer.window for layer in spec.layers],
        "rotates": spec.layers[0].rope is not None,
        "experts": experts.count if experts else 0,
        "experts_per_token": experts.top if experts else 0,
        "trained_context": spec.context,
        "context": llm.engine.context,
        "kv_format": llm.config.kv,
        "kv_bytes_per_token": device.geometry.bytes_per_token,
        "page_size": llm.engine.pool.page_size,
        "parameters": spec.parameters(),
        "weight_bytes": device.weight_bytes,
        "weight_format": _format(device),
        "chat": llm.template.source is not None,
    }


def _format(device: CpuDevice) -> str:
    sizes: Counter[str] = Counter()
    for matrix in device.matrices.values():
        sizes[matrix.format] += matrix.nbytes
    return sizes.most_common(1)[0][0]
