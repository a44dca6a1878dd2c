"""The engine at work for a measurement: one prompt, or streams that decode together.

Law: what is timed is the engine's own steps, as they serve: scheduling, the native call, sampling, commit. Prompts are
random ids that no page of the cache knows; a depth is computed once and found again by the prefix cache, so that each
repetition begins at the same depth.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from pellucid.bench.work import Rows
from pellucid.config import EngineConfig
from pellucid.devices.base import Device
from pellucid.engine.engine import Engine
from pellucid.engine.events import FinishEvent
from pellucid.engine.sequence import Sequence
from pellucid.errors import EngineError
from pellucid.sampling.params import SamplingParams


@dataclass(frozen=True)
class Span:
    """One step: when it began and ended (time.perf_counter), and its rows."""

    began: float
    ended: float
    rows: Rows


def lead_in(streams: int, config: EngineConfig) -> int:
    """Most steps from the prefix-cached prompts of so many streams to the first token of the last."""
    return -(-streams * (config.page_size + 1) // config.token_budget) + 1


class Session:
    """An engine of its own over a device."""

    def __init__(self, device: Device, config: EngineConfig, *, seed: int = 0) -> None:
        self._engine = Engine(device, config=config)
        self._config = config
        self._vocab = device.vocab_size
        self._random = np.random.default_rng(seed)
        self._prompts: dict[tuple[int, int], list[int]] = {}

    def prefill(self, tokens: int) -> list[Span]:
        """Compute a fresh prompt up to its first token."""
        seq = self._add(self._fresh(tokens), 1)
        spans: list[Span] = []
        while not seq.finished:
            spans.append(self._step([seq]))
        return spans

    def decode(self, streams: int, depth: int, steps: int) -> list[Span]:
        """So many steps of streams that each have `depth` tokens (at least one) of context when they begin."""
        prompts = [self._prompt(stream, max(1, depth)) for stream in range(streams)]
        seqs = [self._add(p, steps + lead_in(streams, self._config) + 1) for p in prompts]
        while any(not seq.output_len for seq in seqs):
            self._step(seqs)
        try:
            return [self._step(seqs) for _ in range(steps)]
        finally:
            self.clear()

    def clear(self) -> None:
        """End what still runs."""
        self._engine.abort_all()
        self._engine.step()

    def _step(self, seqs: list[Sequence]) -> Span:
        starts = [(seq.computed, len(seq.tokens)) for seq in seqs]
        began = time.perf_counter()
        events = self._engine.step()
        ended = time.perf_counter()
        for event in events:
            if isinstance(event, FinishEvent) and event.reason != "length":
                raise EngineError(f"a measured sequence ended by {event.reason}: {event.error}")
        spans = tuple(
            (start, seq.computed - start) for seq, (start, _) in zip(seqs, starts, strict=True) if seq.computed > start
        )
        wanted = sum(len(seq.tokens) > most for seq, (_, most) in zip(seqs, starts, strict=True))
        return Span(began, ended, Rows(spans, wanted))

    def _add(self, prompt: list[int], most: int) -> Sequence:
        seq = Sequence(prompt, SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True), seed=0)
        self._engine.add(seq)
        return seq

    def _fresh(self, tokens: int) -> list[int]:
        return self._random.integers(0, self._vocab, tokens).tolist()

    def _prompt(self, stream: int, depth: int) -> list[int]:
        """The prompt of a stream, which the prefix cache knows after the first call."""
        if (stream, depth) not in self._prompts:
            prompt = self._prompts[stream, depth] = self._fresh(depth)
            seq = self._add(prompt, 1)
            while not seq.finished:
                self._step([seq])
        return self._prompts[stream, depth]
