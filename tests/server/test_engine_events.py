"""/inspect/engine/events: a record a step, resumed by its id; who reads too slowly is told, and delays nobody."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from pellucid.engine.steps import StepRing
from pellucid.probes.hub import Hub
from serving import Live, running, slow, until
from toymodel import toy_llm

PATH, EVENTS = "/v1/completions", "/inspect/engine/events"
Seen = list[tuple[str, int, dict[str, Any]]]


@pytest.fixture
def looked() -> Iterator[Live]:
    with toy_llm(token_budget=64) as llm, running(llm, inspect=True) as live:
        yield live


def read(live: Live, count: int, last: int | None = None, **then: Any) -> Seen:
    """`count` events (type, id, data); `then`: a request to make once the stream is there."""
    seen: Seen = []
    headers = {} if last is None else {"last-event-id": str(last)}
    with live.http.stream("GET", EVENTS, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        if then:
            threading.Thread(target=httpx.post, args=(live.url + PATH,), kwargs={"json": then}).start()
        event: dict[str, str] = {}
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if line and name:
                event[name] = value
            elif event:
                seen.append((event["event"], int(event["id"]), json.loads(event["data"])))
                event = {}
            if len(seen) == count:
                break
    return seen


def test_each_step_is_told_with_its_parts(looked: Live) -> None:
    seen = read(looked, 9, prompt="a" * 100 + ">", max_tokens=8)  # 101 tokens of prompt in two steps, 8 of answer
    assert [kind for kind, _, _ in seen] == ["step"] * 9
    assert [id for _, id, _ in seen] == list(range(1, 10))
    steps = [data for _, _, data in seen]
    assert [s["prefill_rows"] for s in steps] == [64, 37, *[0] * 7]
    assert [s["decode_rows"] for s in steps] == [0, 0, *[1] * 7]
    assert [s["tokens"] for s in steps] == [0, *[1] * 8]
    assert [s["step"] for s in steps] == sorted({s["step"] for s in steps})
    for step in steps:
        assert step["rows"] == step["prefill_rows"] + step["decode_rows"] == step["largest_rows"]
        assert step["sequences"] == 1 and step["waiting"] == 0 and step["blocked"] == ""
        assert 0 < sum(step["parts"].values()) <= step["seconds"] * 1.001
        assert abs(step["at"] - time.time()) < 60
    assert steps[2]["pages_used"] == 7


def test_a_stream_is_resumed_by_its_last_id(looked: Live) -> None:
    looked.post(PATH, {"prompt": "a>", "max_tokens": 6})
    looked.settles()
    assert [id for _, id, _ in read(looked, 4, last=2)] == [3, 4, 5, 6]
    assert looked.http.get(EVENTS, headers={"last-event-id": "soon"}).status_code == 400


def test_what_a_client_is_too_slow_for_is_counted() -> None:
    with toy_llm() as llm, running(llm, inspect=True) as live:
        live.service.steps.close()
        live.service._steps = StepRing(llm.engine.hub, kept=5)
        live.post(PATH, {"prompt": "l>", "max_tokens": 20})
        live.settles()
        seen = read(live, 6, last=3)
        assert seen[0] == ("dropped", 15, {"dropped": 12})
        assert [id for _, id, _ in seen[1:]] == [16, 17, 18, 19, 20]


def test_why_someone_waits_is_told() -> None:
    with slow(toy_llm(max_seqs=1), 0.01) as llm, running(llm, inspect=True) as live:
        asking = [threading.Thread(target=live.post, args=(PATH, {"prompt": "l>", "max_tokens": 20})) for _ in range(3)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        records, missed = live.service.steps.since(0)
        assert not missed and {r.blocked for r in records} == {"", "seats"}
        assert max(r.waiting for r in records) == 2 and records[-1].waiting == 0


def test_nothing_is_recorded_where_nobody_may_look() -> None:
    with toy_llm() as llm, running(llm) as live:
        assert live.http.get(EVENTS).status_code == 404
        assert not llm.engine.hub.wants("step")
    with toy_llm() as llm:
        with running(llm, inspect=True):
            until(lambda: llm.engine.hub.wants("step"))
        assert not llm.engine.hub.wants("step")


def test_listeners_are_few_and_leave_nothing(looked: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.server.steps.MOST_LISTENERS", 1)
    with looked.http.stream("GET", EVENTS) as first:
        assert first.status_code == 200
        until(lambda: len(looked.service.steps._listeners) == 1)
        with closing(httpx.Client(base_url=looked.url)) as other:
            assert other.get(EVENTS).status_code == 429
    until(lambda: not looked.service.steps._listeners)


def test_a_server_stops_though_someone_listens() -> None:
    with toy_llm() as llm, running(llm, inspect=True) as live:
        ended = threading.Event()

        def listen() -> None:
            with httpx.stream("GET", live.url + EVENTS, timeout=30) as response:
                response.read()
            ended.set()

        thread = threading.Thread(target=listen)
        thread.start()
        until(lambda: len(live.service.steps._listeners) == 1)
    thread.join(5)
    assert ended.is_set()


def test_an_unread_ring_holds_no_more_than_it_may() -> None:
    hub = Hub()
    ring = StepRing(hub, kept=3)
    for _ in range(10):
        hub.emit("step", {"record": object(), "work": []})
    records, missed = ring.since(0)
    assert len(records) == 3 and missed == 7 and ring.count == 10
    assert ring.since(10) == ([], 0)
