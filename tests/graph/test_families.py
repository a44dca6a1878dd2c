"""Tiny models of the dense families, made and run by transformers (tests/golden/families/make.py), against the
reference: log-probabilities, the greedy continuation, and what would show if a choice of the family were left out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pellucid.checkpoint import open_checkpoint
from pellucid.graph.reference import Reference
from pellucid.models.decoder import decoder_graph
from pellucid.models.spec import ModelSpec

FAMILIES = Path(__file__).parent.parent / "golden" / "families"
NAMES = sorted(p.name for p in FAMILIES.iterdir() if p.is_dir() and not p.name.startswith("_"))
BOUND = 1e-4
UNCHOSEN: dict[str, dict[str, object]] = {
    "falcon3": {"attn_scale": 1.0},
    "gemma2": {"attn_softcap": 0.0},
    "granite": {"residual_scale": 1.0},
    "command-r": {"logit_scale": 1.0},
    "starcoder2": {"activation": "silu"},
}
"""A field of the spec set to the common value, which must not go unnoticed."""


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@cache
def opened(name: str) -> tuple[ModelSpec, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Spec, weights in float32 and golden arrays."""
    with open_checkpoint(FAMILIES / name) as checkpoint:
        weights = {w.name: w.to_float32() for w in checkpoint.weights()}
        return checkpoint.spec, weights, dict(np.load(FAMILIES / name / "golden.npz"))


def logits(name: str, tokens: list[int], spec: ModelSpec | None = None) -> np.ndarray:
    """Of every token. The vendor's code settles length-dependent positions by the sequence at hand."""
    own, weights, _ = opened(name)
    return Reference(decoder_graph(spec or own), weights, context=len(tokens)).run(tokens)


@pytest.mark.covers("reference", "name")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prompt", [0, 1])
def test_reference_equals_hugging_face(name: str, prompt: int) -> None:
    golden = opened(name)[2]
    got = logits(name, golden[f"tokens_{prompt}"].tolist())
    due = golden[f"logits_{prompt}"]
    assert got.shape == due.shape
    assert np.abs(log_softmax(got) - log_softmax(due)).max() <= BOUND


@pytest.mark.parametrize("name", NAMES)
def test_greedy_continuation(name: str) -> None:
    golden = opened(name)[2]
    for prompt in (0, 1):
        tokens = golden[f"tokens_{prompt}"].tolist()
        for due in golden[f"greedy_{prompt}"].tolist():
            tokens.append(int(np.argmax(logits(name, tokens)[-1])))
            assert tokens[-1] == due


@pytest.mark.parametrize("name", UNCHOSEN)
def test_a_choice_left_out_would_show(name: str) -> None:
    spec, _, golden = opened(name)
    got = logits(name, golden["tokens_0"].tolist(), replace(spec, **UNCHOSEN[name]))  # type: ignore[arg-type]
    assert np.abs(log_softmax(got) - log_softmax(golden["logits_0"])).max() > 100 * BOUND


@pytest.mark.parametrize("name", ["llama-dynamic", "phi4-mini"])
def test_positions_are_settled_by_the_context_that_is_served(name: str) -> None:
    """A short prompt in a long context gets the long context's positions, so that it may grow."""
    spec, weights, golden = opened(name)
    graph, tokens = decoder_graph(spec), golden["tokens_1"].tolist()
    short = Reference(graph, weights, context=32).run(tokens)
    long = Reference(graph, weights, context=33).run(tokens)
    assert np.abs(log_softmax(short) - log_softmax(golden["logits_1"])).max() <= BOUND
    assert np.abs(long - short).max() > 100 * BOUND
    rope = spec.layers[0].rope
    assert rope is not None
    assert rope.at(33).at(1) == rope.at(33)


def test_a_context_that_a_scaling_stretches() -> None:
    assert opened("llama-dynamic")[0].context == 128
    assert opened("qwen3-yarn")[0].context == 128
