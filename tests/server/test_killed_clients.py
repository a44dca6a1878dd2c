"""Clients killed in the midst of everything leave nothing behind; the long form is in tests/long."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from killedclients import POINTS, TEXT, killed_together
from pellucid.llm import LLM
from serving import Live, running, until

SEVERAL = 6
"""Most clients that are killed in one moment."""
LANES = 2
"""Such groups that come at the same time, so that some stream while others die."""


def answer(live: Live) -> bytes:
    """The bytes of the choices of one fixed request."""
    body = {"prompt": TEXT * 2, "temperature": 0, "max_tokens": 16, "logprobs": 2}
    found = re.search(rb'"choices":(.*),"usage":', live.post("/v1/completions", body).content)
    assert found is not None
    return found[1]


def at_rest(live: Live, descriptors: int) -> dict[str, Any]:
    """Wait until nothing of any client is left; return the map of the pages."""
    live.settles(60)
    stats = live.llm.engine.stats
    assert stats.running == stats.waiting == live.llm.worker.pending == 0
    until(lambda: len(live.server.server_state.connections) <= 1)  # that of live.http
    until(lambda: open_descriptors() <= descriptors)
    pages = live.http.get("/inspect/kv").json()
    assert pages["held"] == 0 and not pages["requests"]
    assert pages["cached"] == live.llm.engine.pool.cached and pages["free"] + pages["cached"] == pages["page_count"]
    return pages


def open_descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def storm(path: Path, first: int, count: int) -> tuple[Counter[str], dict[str, Any]]:
    """Kill so many clients of a server over SmolLM2, in groups; in between, and beside them, it answers as ever.

    Returns where they died, and counts of what the server did meanwhile.
    """
    rng = random.Random(first)
    groups: list[range] = []
    while count > 0:
        size = min(count, rng.randint(1, SEVERAL))
        groups.append(range(first, first + size))
        first, count = first + size, count - size
    ends: Counter[str] = Counter()
    beside = 0
    with LLM(path, ctx=512, threads=2, kv_pages=64, max_seqs=12) as llm, running(llm, inspect=True) as live:
        reference = answer(live)
        assert answer(live) == reference
        live.settles()
        descriptors = open_descriptors()
        for at in range(0, len(groups), 24):
            stop = threading.Event()

            def neighbour(stop: threading.Event = stop) -> int:
                asked = 0
                while not stop.is_set() or not asked:
                    assert answer(live) == reference
                    asked += 1
                return asked

            with ThreadPoolExecutor(LANES + 1) as pool:
                living = pool.submit(neighbour)
                try:
                    for points in pool.map(lambda group: killed_together(live.port, group), groups[at : at + 24]):
                        ends.update(points)
                finally:
                    stop.set()
                beside += living.result()
            pages = at_rest(live, descriptors)
            assert answer(live) == reference
        stats, evictions = llm.engine.stats, llm.engine.pool.view().evictions
    counts = {
        "right answers beside": beside,
        "sequences aborted": stats.finished["abort"],
        "sequences ended": stats.finished["stop"] + stats.finished["length"],
        "steps": stats.steps,
        "tokens generated": stats.generated_tokens,
        "preemptions": stats.preemptions,
        "evictions": evictions,
        "pages cached at the end": pages["cached"],
    }
    assert stats.finished["error"] == 0
    return ends, counts


def test_forty_killed_clients_leave_nothing_behind(smollm2_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ends, counts = storm(smollm2_path, 0, 40)
    assert sum(ends.values()) == 40 and ends.keys() == POINTS.keys()
    assert counts["sequences aborted"] > 10
    assert not caplog.records
