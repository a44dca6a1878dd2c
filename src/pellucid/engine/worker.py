"""Worker: the one thread that owns an engine, and the way in and out of it.

Law: a sequence crosses once each way. In: submit and abort put a word into the inbox, under one lock. Out: after each
step one call_soon_threadsafe a loop carries all of its events. Without work the thread sleeps on a condition: no CPU.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from pellucid.engine.engine import Engine, typed
from pellucid.engine.events import Event, FinishEvent
from pellucid.engine.sequence import Sequence
from pellucid.errors import CapacityError, EngineError, PellucidError

Publish = Callable[[list[Event]], None]
"""Takes the events of one sequence of one step, in order."""
Delivery = list[tuple[Publish, list[Event]]]

T = TypeVar("T")

IDLE_CHECK_AFTER = 1.0
"""Seconds without work after which the invariants are checked, once."""

log = logging.getLogger("pellucid.engine")


class Question(Generic[T]):
    """Something to look up in the engine between two steps."""

    def __init__(self, look: Callable[[Engine], T]) -> None:
        self._look = look
        self.answer: Future[T] = Future()

    def put_to(self, engine: Engine) -> None:
        """Answer it, with an exception if need be; nothing if nobody waits any more."""
        if self.answer.set_running_or_notify_cancel():
            try:
                self.answer.set_result(self._look(engine))
            except Exception as error:
                self.answer.set_exception(error)


Word = Sequence | str | Question[Any]
"""A sequence to serve, the id of one to end, or a question."""


class Worker:
    """Runs Engine.step on a thread of its own as long as there is work."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.last_step_time = time.monotonic()
        """time.monotonic() when the thread last made progress."""
        self.fault: str | None = None
        """What the check of the invariants found when the engine was last idle; None: nothing."""
        self._wake = threading.Condition()
        self._inbox: list[Word] = []
        self._homes: dict[str, tuple[Sequence, Publish, asyncio.AbstractEventLoop | None]] = {}
        """Where the events of each sequence go, from submit to its FinishEvent."""
        self._tenants: Counter[str] = Counter()
        """Sequences of each tenant from submit to their FinishEvent."""
        self._closing = False
        self._abort_at: float | None = None
        self.working = threading.Event()
        """Set while there is work."""
        self.on_work: Callable[[], None] | None = None
        """Called on the engine's thread when there is work again."""
        self._failed = False
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def pending(self) -> int:
        """Sequences submitted and not yet finished."""
        return len(self._homes)

    def start(self) -> None:
        """Start the thread; once."""
        if self._thread is not None:
            raise EngineError("the worker was already started")
        self._thread = threading.Thread(target=self._run, name="pellucid-engine", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 0.0) -> None:
        """Take no more sequences, give those here `timeout` seconds to end, abort the rest, end the thread.

        Every sequence gets its FinishEvent, as far as its loop still runs.
        """
        with self._wake:
            self._closing = True
            self._abort_at = time.monotonic() + timeout
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(timeout + 60.0)

    def submit(self, seq: Sequence, publish: Publish, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Hand a sequence to the engine. From any thread.

        Args:
            publish: called once a step with the events of this sequence.
            loop: where publish is called; None: on the engine's thread, so it must be quick (a queue's put).

        Raises: as Engine.check and Engine.add, at once; EngineError if the worker is not running.
        """
        self.engine.check(seq)
        with self._wake:
            if self._closing or self._failed or not self.alive:
                raise EngineError(
                    "the engine is shutting down or was not started; send the request to a running server"
                )
            if seq.id in self._homes:
                raise EngineError(f"there is already a sequence {seq.id!r}; ids must be unique")
            config = self.engine.config
            if len(self._homes) >= config.max_seqs + config.max_queue:
                raise CapacityError(
                    f"{len(self._homes)} sequences run or wait, and no more may "
                    f"(max_seqs={config.max_seqs}, max_queue={config.max_queue}); try again later",
                    retry_after=self.engine.retry_after(),
                )
            if seq.tenant and self._tenants[seq.tenant] >= config.max_seqs + config.max_queue_tenant:
                raise CapacityError(
                    f"{self._tenants[seq.tenant]} sequences of this key run or wait, and no more may "
                    f"(max_seqs={config.max_seqs}, max_queue_tenant={config.max_queue_tenant}); try again later",
                    retry_after=self.engine.retry_after(),
                )
            self._tenants[seq.tenant] += 1
            self._homes[seq.id] = (seq, publish, loop)
            self._inbox.append(seq)
            self._wake.notify()

    def abort(self, seq_id: str) -> None:
        """End a sequence before its next step. From any thread; an id that is not here is no error."""
        with self._wake:
            if seq_id in self._homes:
                self._inbox.append(seq_id)
                self._wake.notify()

    def ask(self, look: Callable[[Engine], T]) -> Future[T]:
        """Have the engine's thread call `look` between two steps; it must be quick, and change nothing.

        From any thread. While the engine is stalled there is no answer: wait with a time-out.

        Raises EngineError if the worker is not running.
        """
        question = Question(look)
        with self._wake:
            if self._closing or self._failed or not self.alive:
                raise EngineError("the engine is shutting down or was not started")
            self._inbox.append(question)
            self._wake.notify()
        return question.answer

    def stalled(self, seconds: float) -> bool:
        """True if there is work and no step has ended for `seconds`, or the thread has failed."""
        return self._failed or self.still > seconds

    @property
    def still(self) -> float:
        """Seconds since the last step ended, while there is work; 0: there is none."""
        return time.monotonic() - self.last_step_time if self.working.is_set() else 0.0

    @property
    def ident(self) -> int | None:
        """The thread's, while it runs."""
        return None if self._thread is None else self._thread.ident

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:  # a bug in the engine itself: say so to all who wait; `stalled` is true from now on
            log.exception("the engine's thread failed and has ended")
            self._failed = True
            with self._wake:
                homes, self._homes = self._homes, {}
                inbox, self._inbox = self._inbox, []
            for word in inbox:
                if isinstance(word, Question):
                    word.answer.cancel()
            for seq, publish, loop in homes.values():
                send(loop, [(publish, [FinishEvent(seq, "error", typed(error))])])

    def _loop(self) -> None:
        while (inbox := self._wait()) is not None:
            events: list[Event] = []
            for word in inbox:
                if isinstance(word, Question):
                    word.put_to(self.engine)
                    continue
                if isinstance(word, str):
                    self.engine.abort(word)
                    continue
                try:
                    self.engine.add(word)
                except Exception as error:
                    word.finish_reason = "error"
                    events.append(FinishEvent(word, "error", typed(error)))
            if self._abort_at is not None and time.monotonic() >= self._abort_at:
                self.engine.abort_all()
            if self.engine.busy:
                events += self.engine.step()
            self.last_step_time = time.monotonic()
            self._publish(events)

    def _wait(self) -> list[Word] | None:
        """Return the inbox as soon as there is work; None: the worker was stopped and all is done."""
        with self._wake:
            checked = False
            while not (self._inbox or self.engine.busy):
                self.working.clear()
                if self._closing:
                    return None
                if not self._wake.wait(None if checked else IDLE_CHECK_AFTER) and not checked:
                    self._check()
                    checked = True
            if not self.working.is_set():
                if self.on_work is not None:
                    self.on_work()
                self.working.set()
                self.last_step_time = time.monotonic()
            inbox, self._inbox = self._inbox, []
            return inbox

    def _check(self) -> None:
        try:
            self.engine.scheduler.check()
            self.fault = None
        except PellucidError as error:
            self.fault = error.message
            log.error("%s", error.message)

    def _publish(self, events: list[Event]) -> None:
        """Send each sequence's events home: one call a loop."""
        if not events:
            return
        by_seq: dict[str, list[Event]] = {}
        for event in events:
            by_seq.setdefault(event.seq.id, []).append(event)
        by_loop: dict[asyncio.AbstractEventLoop | None, Delivery] = {}
        with self._wake:
            for seq_id, own in by_seq.items():
                home = self._homes.get(seq_id)
                if home is not None:
                    by_loop.setdefault(home[2], []).append((home[1], own))
                    if isinstance(own[-1], FinishEvent):
                        del self._homes[seq_id]
                        self._tenants[home[0].tenant] -= 1
                        if not self._tenants[home[0].tenant]:
                            del self._tenants[home[0].tenant]
        for loop, delivery in by_loop.items():
            if not send(loop, delivery):  # nobody is left to read
                for _, own in delivery:
                    self.engine.abort(own[-1].seq.id)


def send(loop: asyncio.AbstractEventLoop | None, delivery: Delivery) -> bool:
    """Deliver on `loop`, or here if it is None. False: the loop is closed."""
    if loop is None:
        deliver(delivery)
        return True
    try:
        loop.call_soon_threadsafe(deliver, delivery)
    except RuntimeError:
        return False
    return True


def deliver(delivery: Delivery) -> None:
    """Call each publish with its events; one that raises does not keep the others from theirs."""
    for publish, events in delivery:
        try:
            publish(events)
        except Exception:
            log.exception("the receiver of sequence %s raised", events[-1].seq.id)
