"""An engine that stands still: it is told once, with suspects and without content, and ends the process if it shall."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from pellucid.engine.watchdog import EXIT_CODE, Watchdog
from serving import running, slow, until
from toymodel import toy_llm

PATH = "/v1/completions"


def test_a_stall_is_told_once_with_the_batch_and_the_suspect(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "pellucid.engine")
    with slow(toy_llm(), 0.01) as llm, running(llm) as live, ThreadPoolExecutor(2) as pool:
        dog = Watchdog(llm.worker, after=0.3)
        first = pool.submit(live.post, PATH, {"prompt": "l>", "max_tokens": 200})
        until(lambda: llm.engine.stats.generated_tokens > 5)
        gate, run = threading.Event(), llm.engine.device.run

        def stuck_with_two(batch: Any) -> Any:
            if len(batch.seq_starts) > 2:
                gate.wait(20)
            return run(batch)

        llm.engine.device.run = stuck_with_two  # type: ignore[method-assign]
        second = pool.submit(live.post, PATH, {"prompt": "a secret>", "max_tokens": 3})
        until(lambda: len(caplog.records) == 1)
        time.sleep(0.7)
        told = caplog.records[0].getMessage()
        assert len(caplog.records) == 1
        assert "10 tokens of 2 sequences" in told and "stuck_with_two (test_stall.py:" in told
        suspects = told.partition("suspects: ")[2].partition(";")[0]
        assert suspects in told.partition("suspects")[0] and ", " not in suspects
        assert "secret" not in told
        gate.set()
        assert first.result().status_code == second.result().status_code == 200
        until(lambda: len(caplog.records) == 2)
        assert caplog.records[1].getMessage() == "the engine goes on"
        dog.close()


def test_work_that_goes_on_is_no_stall(caplog: pytest.LogCaptureFixture) -> None:
    with slow(toy_llm(), 0.02) as llm, running(llm) as live:
        dog = Watchdog(llm.worker, after=0.2, exit_after=0.4)
        assert live.post(PATH, {"prompt": "l>", "max_tokens": 40}).status_code == 200
        dog.close()
    assert not caplog.records


STALLED = """
import ctypes, sys, time
sys.path.insert(0, {tests!r})
from toymodel import toy_llm
from pellucid.server.limits import Limits
from pellucid.server.serve import serve
import pellucid.server.service as service
service.STALL_AFTER = 0.5
def load():
    llm = toy_llm()
    llm.engine.device.run = lambda batch: {stall}
    return llm
serve(load, port=0, limits=Limits(exit_on_stall=1.0), ready=lambda llm, host, port: print(port, flush=True))
"""


@pytest.mark.parametrize(
    ("stall", "code"), [("time.sleep(60)", EXIT_CODE), ("ctypes.PyDLL(None).sleep(60)", 1)], ids=["waits", "holds"]
)
def test_a_stalled_process_ends_itself(stall: str, code: int) -> None:
    script = STALLED.format(tests=str(Path(__file__).parents[1]), stall=stall)
    with subprocess.Popen([sys.executable, "-c", script], stdout=-1, stderr=-1, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            asking = threading.Thread(target=_ask, args=(url,))
            asking.start()
            assert process.wait(15) == code
            said = process.stderr.read()
            assert "secret" not in said and ("exit-on-stall" in said or "Timeout" in said)
            asking.join()
        finally:
            process.kill()


def _ask(url: str) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.post(url + PATH, json={"prompt": "a secret>"}, timeout=20)
