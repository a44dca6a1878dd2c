"""Raw HTTP streams, the short form; tests/long/test_attacks.py has the long one."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from pellucid.server.limits import Limits
from rawhttp import attack
from serving import running, until
from toymodel import toy_llm

FAST = Limits(header_time=0.3, body_time=0.3, write_stall=0.5)


def storm(first: int, count: int) -> Counter[str]:
    """Make so many attacks, 16 at once; then nothing of them is left, and the next request is right."""
    with toy_llm(max_seqs=16, kv_pages=256) as llm, running(llm, limits=FAST) as live, ThreadPoolExecutor(16) as pool:
        ends = Counter(pool.map(lambda number: attack(live.port, number), range(first, first + count)))
        answer = live.post("/v1/completions", {"prompt": "a>", "temperature": 0})
        assert answer.json()["choices"][0]["text"] == "apples and pears"
        live.settles()
        until(lambda: len(live.server.server_state.connections) <= 1)
        assert sum(llm.engine.stats.finished.values()) > 0
    return ends


def test_no_connection_is_wedged() -> None:
    ends = storm(0, 400)
    assert {"200", "400", "leave", "reset", "closed"} <= set(ends)
