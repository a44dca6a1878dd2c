"""What a step costs beside the device: scheduler, batch, sampling, commit; and sampling alone, by kind.

    python benchmarks/step.py

The device is idle (it hands back the same logits), so the time is Python's and the sampler's. Aims: 150 µs a step at
one sequence, 400 µs at 32; 2 ms for a row of 152k logits with top-p.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pellucid.config import EngineConfig
from pellucid.devices.base import Batch
from pellucid.engine.engine import Engine
from pellucid.engine.sequence import Sequence
from pellucid.sampling.params import SamplingParams
from pellucid.sampling.sampler import Sampler


class IdleDevice:
    """Logits from nowhere, at once."""

    vocab_size, context, page_size, page_count, max_rows = 512, 4096, 16, 256 * 40, 512
    pool = None

    def __init__(self) -> None:
        self.logits = np.random.default_rng(0).normal(0, 1, (64, self.vocab_size)).astype(np.float32)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        return self.logits[: len(batch.logit_rows)]


def best(call: Callable[[], object], repeat: int = 20, times: int = 10) -> float:
    """Seconds of one call, the best mean of `times` runs of `repeat`."""
    found = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        for _ in range(repeat):
            call()
        found = min(found, (time.perf_counter() - began) / repeat)
    return found


def step_cost(count: int) -> float:
    engine = Engine(IdleDevice(), config=EngineConfig(ctx=4096, max_seqs=32))
    for i in range(count):
        engine.add(Sequence([i] * 300, SamplingParams(max_tokens=400, temperature=0, ignore_eos=True), id=str(i)))
    while engine.stats.waiting or any(len(s.tokens) - s.computed > 1 for s in engine.scheduler.running):
        engine.step()
    return best(engine.step)


def sampling_cost(params: SamplingParams, vocab: int = 151_936) -> float:
    rng = np.random.default_rng(11)
    logits = rng.normal(0, 2.5, (1, vocab)).astype(np.float32)
    logits[0, rng.integers(0, vocab, 200)] += 14
    sampler = Sampler(vocab)
    state = sampler.state(params, 1, 0, [0], ())
    return best(lambda: sampler.pick([state], logits, [0], [1]), repeat=5)


def main() -> None:
    for count in (1, 8, 32):
        print(f"step of {count:2} sequences: {step_cost(count) * 1e6:6.0f} µs")
    kinds = {
        "greedy": SamplingParams(temperature=0),
        "plain": SamplingParams(),
        "top_p 0.95": SamplingParams(top_p=0.95),
        "top_k 40, top_p 0.9": SamplingParams(top_k=40, top_p=0.9),
        "top_n_sigma 1": SamplingParams(top_n_sigma=1.0),
        "typical_p 0.9": SamplingParams(typical_p=0.9),
        "xtc": SamplingParams(xtc_probability=1.0),
        "dynamic temperature": SamplingParams(dynatemp_range=0.5),
        "penalties behind top_k": SamplingParams(
            samplers=["top_k", "penalties", "temperature"], top_k=40, presence_penalty=1
        ),
        "temperature last": SamplingParams(samplers=["top_p", "temperature"], top_p=0.95),
        "20 logprobs": SamplingParams(temperature=0, logprobs=20),
    }
    for name, params in kinds.items():
        print(f"one row of 151,936 logits, {name}: {sampling_cost(params) * 1e6:6.0f} µs")


if __name__ == "__main__":
    main()
