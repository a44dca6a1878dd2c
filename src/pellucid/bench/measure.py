"""Measure all cases of the settings on one model.

Law: one load; the devices for each number of threads and each KV format share its weights. Warm-up repetitions are made
and thrown away; the peaks are measured before each repetition that counts. What has been measured is in the list of
cells at any moment, so that an interruption loses the running repetition alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pellucid.bench.cells import Case, Cell, Settings
from pellucid.bench.peaks import PeakMeter
from pellucid.bench.profile import Profile, ProfiledDevice, profile_of
from pellucid.bench.session import Session, Span, lead_in
from pellucid.bench.work import NOTHING, PlanWork
from pellucid.config import EngineConfig, available_memory
from pellucid.devices.cpu import CpuDevice
from pellucid.errors import MemoryPlanError, RequestError
from pellucid.kv.store import KVGeometry

PROFILED_STEPS = 32
"""Most steps of a profiled decode."""
Say = Callable[[str], None]


def loading_config(settings: Settings) -> EngineConfig:
    """The least device there can be, to load weights with."""
    return EngineConfig(threads=max(settings.threads), pin=settings.pin, ctx=16, kv_pages=2, token_budget=1)


def measure(
    device: CpuDevice, model_context: int, settings: Settings, cells: list[Cell], *, profile: bool = False, say: Say
) -> None:
    """Append a cell to `cells` for every case; `say` hears what is being done.

    Raises:
        RequestError: a case does not fit the model's context.
        MemoryPlanError: its KV cache does not fit the memory.
    """
    configs = [config_for(settings, device, model_context, t, kv) for t in settings.threads for kv in settings.kv]
    for config in configs:
        threads = config.threads or 1
        one = device.with_config(config)
        with PeakMeter(threads, config.isa) as meter:
            for case in settings.cases(threads, config.kv):
                _cell(one, case, settings, meter, cells, say)
                if profile:
                    say(f"{case}: profile")
                    cells[-1].profile = _profile(one, case)


def config_for(settings: Settings, device: CpuDevice, model_context: int, threads: int, kv: str) -> EngineConfig:
    """A resolved configuration that holds every case of so many threads and this format, prompts cached and all."""
    most = max((*settings.streams, 1))
    base = EngineConfig(threads=threads, pin=settings.pin, kv=kv, max_seqs=most, isa=device.config.isa)
    longest = max((*settings.prompts, 1)) + 1
    pages = -(-longest // base.page_size)
    for case in settings.cases(threads, kv):
        if case.kind == "decode":
            length = max(1, case.depth) + case.tokens + lead_in(case.streams, base) + 1
            longest = max(longest, length)
            pages = max(pages, 2 * case.streams * -(-length // base.page_size))
    if longest > model_context:
        raise RequestError(
            f"a prompt, or a depth with what is decoded, takes {longest} tokens and the model's context is "
            f"{model_context}; give smaller --prompts, --depths or --generate"
        )
    if settings.ctx is not None:
        if not longest <= settings.ctx <= model_context:
            raise RequestError(
                f"--ctx {settings.ctx} is out of range; give {longest}, which a prompt or a depth with what is decoded "
                f"takes, to {model_context}, the model's context"
            )
        longest = settings.ctx
        pages = max(pages, -(-longest // base.page_size))
    g = device.geometry
    need = pages * KVGeometry(kv, g.layers, base.page_size, g.kv_heads, g.d_head).bytes_per_page
    if need > available_memory():
        raise MemoryPlanError(
            f"the KV cache of these depths and streams takes {need / 1e9:.1f} GB, more than is free; "
            "give smaller --depths or --streams"
        )
    return replace(base, ctx=max(16, longest), kv_pages=max(2, pages))


def _cell(device: CpuDevice, case: Case, settings: Settings, meter: PeakMeter, cells: list[Cell], say: Say) -> None:
    session, work = Session(device, device.config), PlanWork(device)
    prompts = _Prompts(device.vocab_size)
    for number in range(settings.warmup):
        say(f"{case}: warm-up {number + 1}/{settings.warmup}")
        _repetition(session, case, prompts)
    cell = Cell(case)
    cells.append(cell)
    for number in range(settings.repeat):
        say(f"{case}: {number + 1}/{settings.repeat}")
        peaks = meter.measure()
        spans = _repetition(session, case, prompts)
        cell.work = sum((work.demand(span.rows) for span in spans), NOTHING)
        cell.peaks.append(peaks)
        cell.seconds.append(spans[-1].ended - spans[0].began)


class _Prompts:
    """Random ids: fresh for each prompt that is timed, the same for a stream each time."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._random = np.random.default_rng(0)
        self._streams: dict[tuple[int, int], list[int]] = {}

    def fresh(self, tokens: int) -> list[int]:
        return self._random.integers(0, self._vocab, tokens).tolist()

    def of_stream(self, stream: int, depth: int) -> list[int]:
        return self._streams.setdefault((stream, depth), self.fresh(max(1, depth)))


def _repetition(session: Session, case: Case, prompts: _Prompts) -> list[Span]:
    if case.kind == "prefill":
        return session.prefill(prompts.fresh(case.tokens))
    return session.decode([prompts.of_stream(s, case.depth) for s in range(case.streams)], case.tokens)


def _profile(device: CpuDevice, case: Case) -> Profile:
    """The case once more, shortened, under the profile, after a warm-up."""
    profiled = ProfiledDevice(device)
    session, prompts = Session(profiled, device.config), _Prompts(device.vocab_size)
    if case.kind == "decode":
        case = replace(case, tokens=min(case.tokens, PROFILED_STEPS))
    _repetition(session, case, prompts)
    spans = _repetition(session, case, prompts)
    return profile_of(PlanWork(device), spans, profiled.calls[-len(spans) :])
