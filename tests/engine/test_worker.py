"""The worker over the toy device: one thread, one crossing each way, no CPU when idle, and an end that always comes."""

from __future__ import annotations

import asyncio
import queue
import threading
import time

import pytest

from engine.test_engine import BAN
from engine.toy import BOOM_TOKEN, NAN_TOKEN, ToyDevice, engine, solo
from pellucid.engine.events import FinishEvent, TokenEvent
from pellucid.engine.sequence import Sequence
from pellucid.engine.worker import Worker
from pellucid.errors import CapacityError, ContextLengthError, EngineError
from pellucid.sampling.params import SamplingParams

PARAMS = SamplingParams(max_tokens=10, logit_bias=BAN, seed=2)


class SlowDevice(ToyDevice):
    """Steps wait for the gate."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.gate = threading.Event()

    def run(self, batch):
        self.gate.wait(20)
        return super().run(batch)


@pytest.fixture
def make():
    workers = []

    def build(device=None, **config):
        worker = Worker(engine(device, **config))
        worker.start()
        workers.append(worker)
        return worker

    yield build
    for worker in workers:
        worker.stop()
        assert not worker.alive
        worker.engine.pool.check([])


def collect(worker, seq):
    events = queue.Queue()
    worker.submit(seq, events.put)
    return events


def finished(events, timeout=20):
    """All events up to the end."""
    seen = []
    while not seen or not isinstance(seen[-1], FinishEvent):
        seen += events.get(timeout=timeout)
    return seen


def test_a_sequence_goes_in_and_its_events_come_out(make):
    worker = make()
    seen = finished(collect(worker, Sequence([1, 2], PARAMS)))
    assert [event.token for event in seen[:-1]] == solo([1, 2], PARAMS)[0]
    assert seen[-1].reason == "length"
    assert worker.pending == 0


def test_many_on_one_loop_with_one_call_a_step(make):
    worker = make(ToyDevice(page_count=200))

    async def main():
        loop = asyncio.get_running_loop()
        calls = 0
        original = loop.call_soon_threadsafe

        def counted(*args, **rest):
            nonlocal calls
            calls += 1
            return original(*args, **rest)

        loop.call_soon_threadsafe = counted
        tasks = []
        for i in range(64):
            inbox: asyncio.Queue = asyncio.Queue()
            worker.submit(Sequence([i % 50, i // 2], PARAMS, id=str(i)), inbox.put_nowait, loop)
            tasks.append(inbox)

        async def read(inbox):
            seen = []
            while not seen or not isinstance(seen[-1], FinishEvent):
                batch = await inbox.get()
                assert threading.current_thread() is threading.main_thread()
                seen += batch
            return seen

        results = await asyncio.gather(*(read(inbox) for inbox in tasks))
        for i in (0, 17, 63):
            assert [event.token for event in results[i][:-1]] == solo([i % 50, i // 2], PARAMS)[0]
        assert calls <= worker.engine.stats.steps

    asyncio.run(main())


def test_refusals_come_at_once(make):
    device = SlowDevice()
    worker = make(device, max_seqs=1, max_queue=1)
    with pytest.raises(ContextLengthError):
        worker.submit(Sequence([1] * 300, PARAMS), print)
    inboxes = [collect(worker, Sequence([1], PARAMS, id=str(i))) for i in range(2)]
    with pytest.raises(EngineError, match="already"):
        worker.submit(Sequence([1], PARAMS, id="0"), print)
    with pytest.raises(CapacityError) as caught:
        worker.submit(Sequence([1], PARAMS), print)
    assert caught.value.status == 429
    device.gate.set()
    for inbox in inboxes:
        assert finished(inbox)[-1].reason == "length"


def test_abort_ends_within_a_step_and_returns_the_pages(make):
    device = SlowDevice()
    worker = make(device)
    events = collect(worker, Sequence([1, 2], SamplingParams(max_tokens=200, logit_bias=BAN), id="a"))
    worker.abort("a")
    worker.abort("never was")
    device.gate.set()
    seen = finished(events)
    assert seen[-1].reason == "abort"
    assert len(seen) <= 2
    assert worker.engine.pool.used == 0


def test_a_failing_step_ends_its_sequences_only(make):
    worker = make()
    bad = finished(collect(worker, Sequence([1, BOOM_TOKEN], PARAMS)))
    assert isinstance(bad[-1].error, EngineError)
    nan = finished(collect(worker, Sequence([1, NAN_TOKEN], PARAMS)))
    assert nan[-1].reason == "error"
    good = finished(collect(worker, Sequence([1, 2], PARAMS)))
    assert good[-1].reason == "length"
    assert worker.alive


def test_a_receiver_that_raises_and_a_loop_that_closed_harm_nobody(make):
    worker = make()
    loop = asyncio.new_event_loop()
    loop.close()
    worker.submit(Sequence([1], SamplingParams(max_tokens=200, logit_bias=BAN), id="orphan"), print, loop)

    def broken(events):
        raise ValueError("mine")

    worker.submit(Sequence([1], PARAMS), broken)
    assert finished(collect(worker, Sequence([1, 2], PARAMS)))[-1].reason == "length"
    deadline = time.monotonic() + 10
    while worker.pending and time.monotonic() < deadline:
        time.sleep(0.01)
    assert worker.pending == 0
    assert worker.engine.stats.finished["abort"] == 1


def test_stop_waits_then_aborts(make):
    worker = make()
    events = collect(worker, Sequence([1, 2], PARAMS))
    worker.stop(timeout=20)
    assert finished(events)[-1].reason == "length"
    with pytest.raises(EngineError, match="shutting down"):
        worker.submit(Sequence([1], PARAMS), print)
    assert not worker.stalled(0)

    device = SlowDevice()
    other = make(device)
    events = collect(other, Sequence([1, 2], SamplingParams(max_tokens=200, logit_bias=BAN)))
    threading.Timer(0.3, device.gate.set).start()
    other.stop(timeout=0)
    assert finished(events)[-1].reason == "abort"


def test_stalled_means_work_without_progress(make):
    device = SlowDevice()
    worker = make(device)
    time.sleep(0.05)
    assert not worker.stalled(0.01)
    events = collect(worker, Sequence([1], PARAMS))
    time.sleep(0.3)
    assert worker.stalled(0.2)
    assert not worker.stalled(5)
    device.gate.set()
    finished(events)
    time.sleep(0.1)
    assert not worker.stalled(0.01)


def test_an_idle_worker_uses_no_cpu_and_checks_its_pages_once(make):
    worker = make()
    finished(collect(worker, Sequence([1], PARAMS)))
    checks = []
    worker.engine.scheduler.check = lambda: checks.append(1)
    time.sleep(1.2)
    before = time.process_time()
    time.sleep(1.5)
    assert time.process_time() - before < 0.05
    assert checks == [1]
    assert worker.fault is None
    assert finished(collect(worker, Sequence([1], PARAMS)))[-1].reason == "length"


def test_a_thread_that_dies_tells_everyone(make, monkeypatch):
    worker = make()
    monkeypatch.setattr(worker.engine, "step", lambda: 1 / 0)
    end = finished(collect(worker, Sequence([1], PARAMS)))[-1]
    assert end.reason == "error"
    assert "ZeroDivisionError" in end.error.message
    deadline = time.monotonic() + 5
    while worker.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert worker.stalled(1)
    with pytest.raises(EngineError):
        worker.submit(Sequence([1], PARAMS), print)
    worker.engine.scheduler.waiting.clear()


def test_events_keep_their_order(make):
    worker = make(ToyDevice(page_count=8, context=128), max_seqs=4)
    inboxes = [
        collect(worker, Sequence([i] * 10, SamplingParams(max_tokens=60, logit_bias=BAN), id=str(i))) for i in range(6)
    ]
    for inbox in inboxes:
        seen = finished(inbox)
        assert all(isinstance(event, TokenEvent) for event in seen[:-1])
        assert len(seen) == 61
