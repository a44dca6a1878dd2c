"""Tiny models of every family, made and run by transformers (tests/golden/make_tiny.py), against the reference and the
native plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pellucid.checkpoint import open_checkpoint
from pellucid.config import EngineConfig
from pellucid.devices.base import Batch
from pellucid.devices.cpu import CpuDevice
from pellucid.graph.reference import Reference
from pellucid.models.decoder import decoder_graph

TINY = Path(__file__).parent.parent / "golden" / "tiny"
NAMES = ["llama", "llama3-rope", "mistral", "qwen2", "qwen3", "gemma3"]
BOUND = 1e-4
FLIPPED_BOUND = 5e-3
"""Native against reference, K and V in f16 in both: where float32 noise of 1e-7 turns the rounding of a value to f16,
one value is off by 2**-10 of itself. Few are: half of all logprobs must agree to USUAL_BOUND."""
USUAL_BOUND = 5e-5
F16_BOUND = 0.1
"""Against Hugging Face, which keeps K and V in float32."""


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.mark.covers("reference", "name")
@pytest.mark.parametrize("name", NAMES)
def test_reference_equals_hugging_face(name: str) -> None:
    golden = np.load(TINY / name / "golden.npz")
    with open_checkpoint(TINY / name) as checkpoint:
        weights = {w.name: w.to_float32() for w in checkpoint.weights()}
        logits = Reference(decoder_graph(checkpoint.spec), weights).run(golden["tokens"].tolist())
    assert logits.shape == golden["logits"].shape
    assert np.abs(log_softmax(logits) - log_softmax(golden["logits"])).max() <= BOUND


@pytest.mark.covers("native", "name")
@pytest.mark.parametrize("name", NAMES)
def test_native_plan(name: str) -> None:
    golden = np.load(TINY / name / "golden.npz")
    n = len(golden["tokens"])
    every = np.arange(n, dtype=np.int32)
    config = EngineConfig(threads=1, ctx=64, kv_pages=4, token_budget=64)
    with open_checkpoint(TINY / name) as checkpoint:
        graph = decoder_graph(checkpoint.spec)
        weights = {w.name: w.to_float32() for w in checkpoint.weights()}
        device = CpuDevice.load(checkpoint, graph, config)
    pages = np.array([[2, 0, 3]], np.int32)
    got = log_softmax(device.run(Batch(golden["tokens"], every, np.array([0, n], np.int32), pages, every)))
    due = log_softmax(Reference(graph, weights, kv="f16").run(golden["tokens"].tolist()))
    assert np.abs(got - due).max() <= FLIPPED_BOUND
    assert np.median(np.abs(got - due)) <= USUAL_BOUND
    assert np.abs(got - log_softmax(golden["logits"])).max() <= F16_BOUND


def test_every_folder_is_tested() -> None:
    assert sorted(p.name for p in TINY.iterdir()) == sorted(NAMES)
