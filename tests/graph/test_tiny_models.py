"""Tiny models of every family, made and run by transformers (tests/golden/make_tiny.py), against the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pellucid.checkpoint import open_checkpoint
from pellucid.graph.reference import Reference
from pellucid.models.decoder import decoder_graph

TINY = Path(__file__).parent.parent / "golden" / "tiny"
NAMES = ["llama", "llama3-rope", "mistral", "qwen2", "qwen3", "gemma3"]
BOUND = 1e-4


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("name", NAMES)
def test_reference_equals_hugging_face(name: str) -> None:
    golden = np.load(TINY / name / "golden.npz")
    with open_checkpoint(TINY / name) as checkpoint:
        weights = {w.name: w.to_float32() for w in checkpoint.weights()}
        logits = Reference(decoder_graph(checkpoint.spec), weights).run(golden["tokens"].tolist())
    assert logits.shape == golden["logits"].shape
    assert np.abs(log_softmax(logits) - log_softmax(golden["logits"])).max() <= BOUND


def test_every_folder_is_tested() -> None:
    assert sorted(p.name for p in TINY.iterdir()) == sorted(NAMES)
