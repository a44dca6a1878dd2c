"""How the driver and an engine's process talk: JSON, a line a message, over the process's standard streams.

Law: an engine is asked to open a model, to prefill, to decode, and for the likelihood of given tokens; it answers with
seconds, or nats, and nothing else. All engines get the same token ids. What their libraries print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Protocol

import numpy as np


class Engine(Protocol):
    """What an engine's process must do."""

    vocab: int

    def prefill(self, tokens: list[int]) -> dict[str, float]:
        """Compute a prompt that was never seen, up to its first token: {"seconds": ...}."""
        ...

    def decode(self, prompts: list[list[int]], steps: int) -> dict[str, float]:
        """Compute the prompts, untimed; then {"seconds": ...} of so many greedy steps of all of them together."""
        ...

    def nll(self, tokens: list[int], first: int) -> float:
        """Negative log-likelihood of tokens[first:], in nats."""
        ...


def ids(seed: int, count: int, vocab: int) -> list[int]:
    """Token ids that every engine is given alike; the lowest, which control, are left out."""
    return np.random.default_rng(seed).integers(vocab // 100, vocab, count).tolist()


def nll_of(logits: np.ndarray, tokens: list[int]) -> float:
    """Nats of tokens under logits (len(tokens), vocab)."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return float((np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(tokens)), tokens]).sum())


def serve(opened: Any) -> None:
    """Answer the driver until it closes the pipe. `opened(**options)` returns an Engine."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: Engine | None = None
    for line in sys.stdin:
        ask = json.loads(line)
        what = ask.pop("what")
        try:
            if what == "open":
                engine = opened(**ask)
                answer: object = {"vocab": engine.vocab}
            elif engine is None:
                answer = {"error": "no model is open"}
            else:
                answer = getattr(engine, what)(**ask)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
