"""The reference on real models against Hugging Face in float32 on the same weights (tests/golden/make_logits.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pellucid.checkpoint import open_checkpoint
from pellucid.graph.reference import Reference
from pellucid.models.decoder import decoder_graph

GOLDEN = Path(__file__).parent.parent / "golden"
MODELS = {"smollm2": "smollm2-135m", "qwen-0.5b": "qwen2.5-coder-0.5b", "gemma3-270m": "gemma-3-270m"}
BOUND = 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_logprobs_of_the_likeliest_tokens(name: str, real_model: Callable[[str], Path]) -> None:
    golden = json.loads((GOLDEN / f"logits_{MODELS[name]}.json").read_text(encoding="utf-8"))
    with open_checkpoint(real_model(name)) as checkpoint:
        weights = {w.name: w.to_float32() for w in checkpoint.weights()}
        reference = Reference(decoder_graph(checkpoint.spec), weights)
    worst = {}
    for key, prompt in golden["prompts"].items():
        rows = [p["position"] for p in prompt["positions"]]
        logits = reference.run(prompt["tokens"], rows=rows).astype(np.float64)
        peak = logits.max(axis=1, keepdims=True)
        logprobs = logits - peak - np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))
        due = np.array([p["logprobs"] for p in prompt["positions"]])
        got = np.take_along_axis(logprobs, np.array([p["ids"] for p in prompt["positions"]]), axis=1)
        worst[key] = float(np.abs(got - due).max())
    print({key: f"{w:.1e}" for key, w in worst.items()})
    assert max(worst.values()) <= BOUND, worst
