"""Promises about time: leaving, stopping, stalling, overload, memory. Over HTTP, on a server of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import psutil

from pellucid.models.pull import resolve
from server.test_life import LONG, PATH, start
from serving import running, slow, until
from toymodel import toy_llm


def disconnect(count: int) -> tuple[str, bool]:
    """From the client's close to no page held, on a model whose step takes 20 ms."""
    took: list[float] = []
    with slow(toy_llm(ctx=4096, kv_pages=512), 0.02) as llm, running(llm) as live:
        body = json.dumps(LONG | {"max_tokens": 3000, "stream": True})
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for _ in range(count):
            with socket.create_connection(("127.0.0.1", live.port)) as s:
                s.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
                s.recv(1000)
            began = time.monotonic()
            until(lambda: llm.engine.stats.pages_used == 0)
            took.append(time.monotonic() - began)
    return f"{count}: at most {max(took) * 1000:.0f} ms (steps of 20 ms)", max(took) <= 0.2


def sigterm(count: int) -> tuple[str, bool]:
    took, whole = zip(*(_sigterm() for _ in range(count)), strict=True)
    figure = f"{count}: 503 within {max(took) * 1000:.0f} ms; {sum(whole)} of {count} running answers finished"
    return figure, max(took) <= 0.1 and all(whole)


def _sigterm() -> tuple[float, bool]:
    """Seconds until /ready says 503, and whether the answer that ran was finished."""
    with start() as process, ThreadPoolExecutor(1) as pool:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        answer = pool.submit(httpx.post, url + PATH, json=LONG | {"max_tokens": 50}, timeout=30)
        until(lambda: 'num_requests_running{model_name="toy"} 1.0' in httpx.get(url + "/metrics").text, within=20)
        with httpx.Client(base_url=url) as client:
            client.get("/ready")
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            until(lambda: client.get("/ready").status_code == 503)
            took = time.monotonic() - began
        return took, answer.result().json()["usage"]["completion_tokens"] == 50 and process.wait(20) == 0


def stalled(count: int) -> tuple[str, bool]:
    took = [_stalled() for _ in range(count)]
    return f"{count}: not ready after {max(took):.2f} s", max(took) <= 5.05


def _stalled() -> float:
    with toy_llm() as llm, running(llm) as live, ThreadPoolExecutor(1) as pool:
        run, gate = llm.engine.device.run, threading.Event()
        llm.engine.device.run = lambda batch: gate.wait() and run(batch)  # type: ignore[method-assign]
        answer = pool.submit(live.post, PATH, {"prompt": "a>"})
        until(lambda: llm.engine.busy)
        began = time.monotonic()
        until(lambda: live.http.get("/ready").status_code == 503, within=8)
        took = time.monotonic() - began
        gate.set()
        answer.result()
    return took


@contextmanager
def serving_smollm2(*options: str) -> Iterator[tuple[str, int]]:
    """The real command on the real model; its address and process."""
    command = [sys.executable, "-c", "from pellucid.cli import main; main()", "serve", str(resolve("smollm2"))]
    command += ["--served-model-name", "m", "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().rpartition(" at ")[2].strip().removesuffix("/v1")
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield url, process.pid
        finally:
            process.terminate()
            process.wait(60)


def memory(seconds: int) -> tuple[str, bool]:
    """Resident memory while the real model answers, by a line through its second half; only an hour shows the slope."""
    seconds = max(seconds, 20)
    words = ["river", "stone", "light", "paper", "engine", "window", "garden", "number", "music", "winter", "copper"]
    with serving_smollm2("--threads", "1", "--max-seqs", "8") as (url, pid), httpx.Client(timeout=60) as client:
        process, began, points, asked = psutil.Process(pid), time.monotonic(), list[tuple[float, float]](), 0
        rng = np.random.default_rng(1)
        while (now := time.monotonic() - began) < seconds:
            prompt = " ".join(rng.choice(words, int(rng.integers(5, 60))))
            client.post(f"{url}/v1/completions", json={"prompt": prompt, "max_tokens": int(rng.integers(1, 12))})
            asked += 1
            points.append((now, process.memory_info().rss / 2**20))
    late = np.array(points[len(points) // 2 :])
    slope = float(np.polyfit(late[:, 0] / 3600, late[:, 1], 1)[0])
    grown = late[-1, 1] - late[0, 1]
    figure = f"{asked:,} requests in {seconds} s: {grown:+.2f} MiB in the second half ({slope:+.1f} MiB an hour)"
    return figure, slope <= 1


def overload(seconds: int) -> tuple[str, bool]:
    """What benchmarks/serve measures of the real model: at capacity, then with ten times the requests that fit."""
    seconds, rounds = max(seconds, 8), 2
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "overload.json"
        command = [sys.executable, str(Path(__file__).parents[1] / "serve"), "smollm2", "--overload"]
        command += ["--rounds", str(rounds), "--seconds", str(seconds), "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr.strip().rpartition("\n")[2]  # other statuses than 200 and 429, too
        result = json.loads(out.read_text())
    over, ratio = result["overload"], float(result["itl_p99_ratio"])
    median, late = over["refused_ms"]["p50"], over["refused_ms"]["p99"]
    figure = (
        f"{rounds} × {seconds} s of {over['rate']:.0f} requests a second: {over['refused']:.0f} got 429 in "
        f"{median:.1f} / {late:.1f} ms (p50 / p99); inter-token p99 × {ratio:.2f}"
    )
    return figure, ratio <= 1.5 and late <= 50
