"""Long forms of tests/attacks: 20,000 raw streams, 50,000 requests (python -m pytest tests/long/test_attacks.py)."""

from __future__ import annotations

from collections import Counter

from apifuzz import change_bodies, fuzz
from attacks.test_raw import storm
from serving import running
from toymodel import toy_llm

REQUESTS, BY_SCHEMA = 50_000, 10_000
STREAMS = 20_000


def test_raw_streams() -> None:
    ends = storm(1_000_000, STREAMS)
    print("raw streams:", dict(ends))
    assert sum(ends.values()) == STREAMS


def test_requests() -> None:
    seen: Counter[int] = Counter()
    with toy_llm(max_seqs=16, kv_pages=256) as llm, running(llm) as live:
        for number in range(1000):
            if sum(seen.values()) >= BY_SCHEMA:
                break
            seen += fuzz(live, each=50, number=number)
        while (left := REQUESTS - sum(seen.values())) > 0:
            seen += change_bodies(live, count=min(left, 5000), number=left)
        live.settles()
    print("requests:", dict(seen))
    assert sum(seen.values()) >= REQUESTS and not [status for status in seen if status >= 500]
