"""/inspect/kv: the map is the allocator's, whoever holds, shares or has left a page."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pellucid.kv.map import map_of
from pellucid.kv.pages import PagePool
from serving import Live, running, slow, until
from toymodel import toy_llm

PATH = "/v1/completions"


@pytest.fixture
def busy() -> Iterator[Live]:
    with slow(toy_llm(max_seqs=8), 0.01) as llm, running(llm, inspect=True) as live:
        yield live


def agrees(found: dict[str, Any], live: Live) -> None:
    """The map's own parts add up."""
    pages: Counter[str] = Counter()
    at = 0
    for run in found["runs"]:
        assert run["page"] == at and run["count"] > 0
        at += run["count"]
        pages[run["state"]] += run["count"]
        assert (run["state"] == "held") == (run["refs"] > 0) == (run["request"] is not None)
        assert (run["age"] is None) == (run["state"] == "free")
    assert at + found["left_out"] == found["page_count"] == live.llm.engine.pool.page_count
    assert (pages["free"], pages["cached"], pages["held"]) == (found["free"], found["cached"], found["held"])


def test_the_counts_are_the_allocators(busy: Live) -> None:
    empty = busy.http.get("/inspect/kv").json()
    agrees(empty, busy)
    assert empty["free"] == 64 and not empty["requests"]
    shared = "l" + "y" * 60 + ">"
    asking = [
        threading.Thread(target=busy.post, args=(PATH, {"prompt": shared, "max_tokens": 200, "n": 2})),
        threading.Thread(target=busy.post, args=(PATH, {"prompt": "l>", "max_tokens": 300})),
    ]
    for thread in asking:
        thread.start()
    pool = busy.llm.engine.pool
    until(lambda: len(busy.llm.engine.scheduler.running) == 3)
    for _ in range(20):
        found = busy.http.get("/inspect/kv").json()
        agrees(found, busy)
        holders = found["requests"]
        if len(holders) == 3:
            assert sum(h["pages"] for h in holders) - found["shared"] == found["held"]  # two hold what is shared
            assert found["shared"] == 3 and sorted(h["shared"] for h in holders) == [0, 3, 3]
            assert [run["refs"] for run in found["runs"] if run["refs"] > 1] == [2]
    for thread in asking:
        thread.join()
    busy.settles()
    after = busy.http.get("/inspect/kv").json()
    agrees(after, busy)
    assert (after["free"], after["cached"], after["held"]) == (len(pool._free), pool.cached, 0)
    assert after["cached"] > 3 and all(len(run["prefix"]) == 8 for run in after["runs"] if run["state"] == "cached")


def test_asking_an_idle_engine_makes_no_step(busy: Live) -> None:
    before = busy.llm.engine.stats.steps
    for _ in range(5):
        assert busy.http.get("/inspect/kv").status_code == 200
    assert busy.llm.engine.stats.steps == before
    assert busy.http.get("/ready").status_code == 200


def test_the_map_is_bounded_and_says_what_it_leaves_out() -> None:
    pool = PagePool(100, 16)
    taken = pool.take(100)
    pool.release(taken[::2])
    full = map_of(pool.view(), [])
    assert len(full.runs) == 100 and full.left_out == 0 and full.free == full.held == 50
    cut = map_of(pool.view(), [], most=10)
    assert len(cut.runs) == 10 and cut.left_out == 90 and cut.free == 50


def test_it_is_not_there_unless_looking_is_allowed() -> None:
    with toy_llm() as llm, running(llm) as live:
        assert live.http.get("/inspect/kv").status_code == 404


def test_an_engine_that_is_stuck_gets_an_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.server.routes.engine.STALL_AFTER", 0.1)
    go = threading.Event()
    with toy_llm() as llm, running(llm, inspect=True) as live:
        run = llm.engine.device.run

        def stuck(batch: Any) -> Any:
            go.wait(10)
            return run(batch)

        llm.engine.device.run = stuck  # type: ignore[method-assign]
        asking = threading.Thread(target=live.post, args=(PATH, {"prompt": "a>", "max_tokens": 2}))
        asking.start()
        until(lambda: llm.engine.busy)
        assert live.http.get("/inspect/kv").status_code == 503
        go.set()
        asking.join()
        assert live.http.get("/inspect/kv").status_code == 200
