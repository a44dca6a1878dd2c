"""The engine without HTTP: the same requests, submitted from a thread and read from a queue.

Law: the closed loop of load.py in its shortest form; what the server adds is what differs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from queue import SimpleQueue

from pellucid.engine.events import Event, FinishEvent
from pellucid.engine.sequence import Sequence as EngineSequence
from pellucid.engine.worker import Worker
from pellucid.sampling.params import SamplingParams


def closed(worker: Worker, prompts: Sequence[Sequence[int]], tokens: int, streams: int) -> float:
    """Answer all prompts, `streams` at a time. Returns the seconds."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    events: SimpleQueue[list[Event]] = SimpleQueue()
    waiting = iter(enumerate(prompts))
    began = time.perf_counter()

    def submit() -> int:
        for number, prompt in waiting:
            worker.submit(EngineSequence(list(prompt), params, id=f"direct-{began}-{number}"), events.put)
            return 1
        return 0

    left = sum(submit() for _ in range(streams))
    while left:
        last = events.get()[-1]
        if isinstance(last, FinishEvent):
            if last.reason != "length":
                raise RuntimeError(f"a sequence ended by {last.reason}: {last.error}")
            left += submit() - 1
    return time.perf_counter() - began
