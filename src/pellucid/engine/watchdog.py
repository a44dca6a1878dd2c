"""Watchdog: notices that the engine makes no progress, says what it was doing, and ends the process if it shall.

Law: it sleeps while the engine does. A stall is told once, with names of sequences and places in the code, never with
what they hold. The end of the process does not need the interpreter's lock, which whoever stalls may have.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import traceback
from pathlib import Path

from pellucid.engine.batch import Step
from pellucid.engine.worker import Worker

log = logging.getLogger("pellucid.engine")

EXIT_CODE = 70
"""Of a process that was ended for a stall (EX_SOFTWARE); 1 where the stalled code held the interpreter's lock."""
MOST_NAMED = 8


class Watchdog:
    """Watches a worker from a thread of its own."""

    def __init__(self, worker: Worker, *, after: float, exit_after: float | None = None) -> None:
        """Begin.

        Args:
            worker: the engine's thread.
            after: seconds without a step, while there is work, that are a stall.
            exit_after: seconds of a stall after which the process is ended; None: never.
        """
        self._worker = worker
        self._after = after
        self._exit_after = exit_after
        self._pause = min(1.0, after / 4, (exit_after or 4.0) / 4)
        self._closed = threading.Event()
        self._wake = threading.Event()
        worker.on_work = self._begin
        self._thread = threading.Thread(target=self._run, name="pellucid-watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()
        self._worker.on_work = None
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        told = False
        while not self._closed.is_set():
            if not self._worker.working.is_set():
                self._disarm()
                self._wake.wait()
                self._wake.clear()
            if self._closed.wait(self._pause):
                break
            self._arm()
            still = self._worker.still
            if still < self._after and told:
                log.error("the engine goes on")
                told = False
            elif still >= self._after and not told:
                log.error("%s", self._account(still))
                told = True
            if self._exit_after is not None and still >= self._exit_after:
                log.critical("the engine made no step for %.1f s: the process ends (--exit-on-stall)", still)
                logging.shutdown()
                os._exit(EXIT_CODE)
        self._disarm()

    def _begin(self) -> None:
        """There is work; called by the engine's thread, whose first step may already hold the lock."""
        self._arm()
        self._wake.set()

    def _arm(self) -> None:
        """Have the process ended from outside the interpreter, should nobody come here again in time."""
        if self._exit_after is not None:
            faulthandler.dump_traceback_later(self._exit_after + self._after, exit=True)

    def _disarm(self) -> None:
        if self._exit_after is not None:
            faulthandler.cancel_dump_traceback_later()

    def _account(self, still: float) -> str:
        """What the engine was doing: the batch, who is new in it, the place in the code."""
        engine = self._worker.engine
        parts = [f"the engine has made no step for {still:.1f} s"]
        step = engine.current
        if step is not None and step.work:
            shown = ", ".join(f"{w.seq.id} ({w.rows} at {w.start})" for w in step.work[:MOST_NAMED])
            more = f" and {len(step.work) - MOST_NAMED} more" if len(step.work) > MOST_NAMED else ""
            parts.append(f"step {step.number} has {step.rows} tokens of {len(step.work)} sequences: {shown}{more}")
            parts.append(f"suspects: {', '.join(suspects(step))}")
        frame = sys._current_frames().get(self._worker.ident or 0)  # pyright: ignore[reportPrivateUsage]
        if frame is not None:
            stack = traceback.extract_stack(frame)[-4:]
            parts.append("at " + " > ".join(f"{at.name} ({Path(at.filename).name}:{at.lineno})" for at in stack))
        return "; ".join(parts)


def suspects(step: Step) -> list[str]:
    """Those that the step before did not have, since that one ended; if there are none, the one with the most rows."""
    new = [work.seq.id for work in step.work if work.start <= work.seq.cached_tokens]
    return new[:MOST_NAMED] or [max(step.work, key=lambda work: work.rows).seq.id]
