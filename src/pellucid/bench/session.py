"""The engine at work for a measurement: one prompt, or streams that decode together.

Law: what is timed is the engine's own steps, as they serve: scheduling, the native call, sampling, commit. A prompt
that is timed must be one that no page of the cache knows; those of streams are computed once, untimed, and found again
by the prefix cache, so that each repetition begins at the same depth.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

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

    def __init__(self, device: Device, config: EngineConfig) -> None:
        self._engine = Engine(device, config=config)
        self._config = config

    def prefill(self, prompt: list[int]) -> list[Span]:
        """Compute a prompt up to its first token."""
        seq = self._add(prompt, 1)
        spans: list[Span] = []
        while not seq.finished:
            spans.append(self._step([seq]))
        return spans

    def decode(self, prompts: list[list[int]], steps: int) -> list[Span]:
        """So many steps of the streams that continue these prompts together."""
        for prompt in prompts:
            if len(prompt) > self._config.page_size:
                self.prefill(prompt)
        seqs = [self._add(prompt, steps + lead_in(len(prompts), self._config) + 1) for prompt in prompts]
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
