"""The life of a server: loading, readiness, a client that leaves, a full queue, an end in order, rest."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pellucid.server.limits import Limits
from serving import Live, running, slow, until
from toymodel import toy_llm

PATH = "/v1/completions"
LONG: dict[str, Any] = {"prompt": "l>", "max_tokens": 400, "temperature": 0}


def test_probes(live: Live) -> None:
    assert live.http.get("/health").json() == {"status": "ok"}
    assert live.http.get("/ready").json() == {"status": "ready"}
    for path in (
        "/health",
        "/ready",
        "/version",
        "/metrics",
        "/openapi.json",
        "/v1/models",
        f"/v1/models/{live.service.name}",
    ):
        head, get = live.http.head(path), live.http.get(path)
        assert head.status_code == get.status_code == 200 and not head.content
        assert head.headers["content-type"] == get.headers["content-type"]
    assert live.http.head("/v1/completions").status_code == 405
    assert live.http.get("/version").json()["version"]
    [card] = live.http.get("/v1/models").json()["data"]
    assert card["id"] == "toy" and card["max_model_len"] == 512 and card["object"] == "model"
    assert live.http.get("/v1/models/toy").json() == card


def test_openapi_describes_what_is_served(live: Live) -> None:
    spec = live.http.get("/openapi.json").json()
    chat = spec["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"type": "null"} in chat["temperature"]["anyOf"] and "anyOf" not in chat["messages"]
    assert not any("422" in operation["responses"] for path in spec["paths"].values() for operation in path.values())
    assert "cdn" not in json.dumps(spec)


def test_metrics(live: Live) -> None:
    live.post(PATH, {"prompt": "a>" * 20, "max_tokens": 4, "stop": "zzz"})
    live.settles()
    text = live.http.get("/metrics").text
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    label = '{model_name="toy"}'
    assert values[f"pellucid:num_requests_running{label}"] == values[f"pellucid:num_requests_waiting{label}"] == 0
    assert values[f"pellucid:kv_cache_usage_perc{label}"] == 0
    for name in (
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "e2e_request_latency_seconds_count",
        "request_queue_time_seconds_count",
        "request_prefill_time_seconds_count",
        "request_decode_time_seconds_count",
        "request_prompt_tokens_count",
        "request_generation_tokens_count",
    ):
        assert values[f"pellucid:{name}{label}"] > 0, name
    assert values['pellucid:request_success_total{finished_reason="length",model_name="toy"}'] > 0
    assert any(name.startswith("pellucid:cache_config_info") for name in values)


CONTRACT = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prefix_cache_queries_total": "counter",
    "prefix_cache_hits_total": "counter",
    "num_preemptions_total": "counter",
    "prompt_tokens_total": "counter",
    "generation_tokens_total": "counter",
    "request_success_total": "counter",
    "admission_rejections_total": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "iteration_tokens_total": "histogram",
    "cache_config_info": "gauge",
}
"""What dashboards made for vLLM read, by type."""


def test_metrics_have_the_names_and_types_that_dashboards_know() -> None:
    with toy_llm() as llm, running(llm) as live:
        live.post(PATH, {"prompt": "a>" * 20, "max_tokens": 4})
        live.settles()
        text = live.http.get("/metrics").text
        stats = llm.engine.stats
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE pellucid:"))
    for name, kind in CONTRACT.items():
        assert types.get(f"pellucid:{name}") == kind, name
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    label = '{model_name="toy"}'
    assert values[f"pellucid:iteration_tokens_total_sum{label}"] == stats.step_rows > 0
    assert values[f"pellucid:iteration_tokens_total_count{label}"] == sum(stats.step_sizes) > 1
    ones = values['pellucid:iteration_tokens_total_bucket{le="1.0",model_name="toy"}']
    assert ones == stats.step_sizes[0] >= 3


def test_loading() -> None:
    with running(None, name="later") as live:
        assert live.http.get("/health").status_code == 200
        for path in ("/ready", "/v1/models"):
            response = live.http.get(path)
            assert response.status_code == 503 and response.headers["retry-after"] == "1"
        assert live.post(PATH, {"prompt": "a"}).status_code == 503
        assert live.http.get("/metrics").status_code == 200
        with toy_llm() as llm:
            live.service.attach(llm)
            assert live.http.get("/ready").status_code == 200
            assert live.post(PATH, {"prompt": "a>", "model": "later"}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_its_work(stream: bool) -> None:
    with slow(toy_llm(ctx=4096, kv_pages=512), 0.02) as llm, running(llm) as live:
        body = json.dumps(LONG | {"max_tokens": 3000, "stream": stream, "n": 3})
        with closing(socket.create_connection(("127.0.0.1", live.port))) as s:
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            s.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            until(lambda: llm.engine.stats.generated_tokens > 20)
            if stream:
                assert s.recv(1000)
        began = time.monotonic()
        live.settles()
        assert time.monotonic() - began < 0.5
        assert llm.engine.stats.generated_tokens < 1000 and llm.engine.stats.finished["abort"] == 3
        assert live.post(PATH, {"prompt": "a>", "temperature": 0}).json()["choices"][0]["text"] == "apples and pears"


def test_a_client_that_leaves_in_the_queue() -> None:
    with slow(toy_llm(max_seqs=1), 0.02) as llm, running(llm) as live, ThreadPoolExecutor(4) as pool:
        first = pool.submit(live.post, PATH, LONG | {"max_tokens": 60})
        until(lambda: llm.engine.stats.running == 1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(live.url + PATH, json=LONG, timeout=0.2)
        until(lambda: llm.engine.stats.finished["abort"] == 1)
        assert first.result().json()["usage"]["completion_tokens"] == 60
        live.settles()


def test_a_full_queue() -> None:
    with slow(toy_llm(max_seqs=1, max_queue=2), 0.01) as llm, running(llm) as live, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: live.post(PATH, LONG | {"max_tokens": 30}), range(12)))
        refused = [answer for answer in answers if answer.status_code == 429]
        served = [answer for answer in answers if answer.status_code == 200]
        assert len(refused) + len(served) == 12 and len(served) >= 3 and refused
        for answer in refused:
            assert int(answer.headers["retry-after"]) >= 1 and int(answer.headers["retry-after-ms"]) >= 1
            assert answer.json()["error"]["type"] == "rate_limit_error"
        assert all(answer.json()["usage"]["completion_tokens"] == 30 for answer in served)
        assert live.post(PATH, LONG | {"n": 4}).status_code == 429  # can never fit, and takes nothing
        live.settles()
        assert f'code="rate_limit_exceeded",model_name="toy"}} {len(refused) + 1}.0' in live.http.get("/metrics").text


def test_a_step_that_fails_ends_its_request_only() -> None:
    with slow(toy_llm(fail_at=20), 0.01) as llm, running(llm) as live:
        short = {"prompt": "a>", "max_tokens": 5, "temperature": 0}
        response = live.post(PATH, LONG)
        assert response.status_code == 500 and response.json()["error"]["code"] == "engine_error"
        response = live.post(PATH, LONG | {"stream": True})
        assert response.status_code == 200 and "[DONE]" not in response.text
        *events, last, end = response.text.split("\n\n")
        assert len(events) > 5 and end == "" and json.loads(last[6:])["error"]["code"] == "engine_error"
        response = live.post(PATH, LONG | {"prompt": "l" * 30, "stream": True})
        assert response.status_code == 500  # nothing was sent yet, so the status can still say it
        assert live.post(PATH, short).json()["choices"][0]["text"] == "apple"
        live.settles()


def test_a_fault_of_ours_is_one_clear_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy_llm() as llm, running(llm) as live:
        monkeypatch.setattr(live.service, "check_model", lambda name: 1 / 0)
        response = live.post(PATH, {"prompt": "a>"}, headers={"x-request-id": "find-me"})
        assert response.status_code == 500 and response.headers["x-request-id"] == "find-me"
        assert "find-me" in response.json()["error"]["message"] and "division" not in response.text


def test_a_stalled_engine_is_not_ready() -> None:
    with toy_llm() as llm, running(llm) as live, ThreadPoolExecutor(1) as pool:
        run, gate = llm.engine.device.run, threading.Event()
        llm.engine.device.run = lambda batch: gate.wait() and run(batch)  # type: ignore[method-assign]
        answer = pool.submit(live.post, PATH, {"prompt": "a>"})
        until(lambda: llm.engine.busy)
        began = time.monotonic()
        assert live.http.get("/ready").status_code == 200
        until(lambda: live.http.get("/ready").status_code == 503, within=7)
        assert time.monotonic() - began > 4
        assert live.http.get("/health").status_code == 200
        gate.set()
        assert answer.result().status_code == 200
        assert live.http.get("/ready").status_code == 200


def test_an_end_in_order() -> None:
    with slow(toy_llm(), 0.01) as llm, running(llm) as live, ThreadPoolExecutor(2) as pool:
        answer = pool.submit(live.post, PATH, LONG | {"max_tokens": 100})
        stream = pool.submit(live.events, PATH, LONG | {"max_tokens": 100})
        until(lambda: llm.engine.stats.running == 2)
        live.server.stop()
        response = live.http.get("/ready")
        assert response.status_code == 503 and "shutting down" in response.text
        assert live.http.get("/health").status_code == 200
        assert live.post(PATH, {"prompt": "a>"}).status_code == 503
        assert answer.result().json()["usage"]["completion_tokens"] == 100
        assert stream.result()[-1]["choices"][0]["finish_reason"] == "length"


def test_what_outlasts_the_grace_is_told() -> None:
    limits = Limits(grace=0.2)
    with slow(toy_llm(), 0.02) as llm, ThreadPoolExecutor(2) as pool, running(llm, limits=limits) as live:
        answer = pool.submit(live.post, PATH, LONG)
        stream = pool.submit(live.post, PATH, LONG | {"stream": True})
        until(lambda: llm.engine.stats.running == 2 and llm.engine.stats.generated_tokens > 4)
        live.server.stop()
        assert answer.result().status_code == 503
        last = stream.result().text.split("\n\n")[-2]
        assert json.loads(last[6:])["error"]["code"] == "unavailable"
        live.settles()


TOY_SERVER = """
import sys
sys.path.insert(0, {tests!r})
from serving import slow
from toymodel import toy_llm
from pellucid.server.serve import serve
def load():
    {loading}
    return slow(toy_llm(), 0.02)
serve(load, port=0, ready=lambda llm, host, port: print(port, flush=True))
print("ended", flush=True)
"""


@contextmanager
def start(loading: str = "pass") -> Iterator[subprocess.Popen[str]]:
    code = TOY_SERVER.format(tests=str(Path(__file__).parents[1]), loading=loading)
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_signals(sig: signal.Signals) -> None:
    with start() as process, ThreadPoolExecutor(1) as pool:
        assert process.stdout is not None and process.stderr is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        answer = pool.submit(httpx.post, url + PATH, json=LONG | {"max_tokens": 50}, timeout=30)
        until(lambda: 'num_requests_running{model_name="toy"} 1.0' in httpx.get(url + "/metrics").text, within=20)
        process.send_signal(sig)
        assert answer.result().json()["usage"]["completion_tokens"] == 50
        assert process.wait(20) == 0
        assert process.stdout.read() == "ended\n" and process.stderr.read() == ""


def test_a_second_signal_ends_at_once() -> None:
    with start() as process, ThreadPoolExecutor(1) as pool:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        answer = pool.submit(httpx.post, url + PATH, json=LONG, timeout=30)
        until(lambda: 'num_requests_running{model_name="toy"} 1.0' in httpx.get(url + "/metrics").text, within=20)
        process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(url + "/ready").status_code == 503)
        process.send_signal(signal.SIGTERM)
        assert process.wait(2) == 128 + signal.SIGTERM
        assert answer.exception() is not None


def test_a_signal_while_loading_ends_at_once() -> None:
    with start('print("loading", flush=True); import time; time.sleep(60)') as process:
        assert process.stdout is not None and process.stdout.readline() == "loading\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(2) == 128 + signal.SIGINT


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    with start('from pellucid.errors import ModelNotFoundError; raise ModelNotFoundError("no such model")') as process:
        assert process.stderr is not None
        assert process.wait(20) != 0 and "no such model" in process.stderr.read()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_an_idle_server_takes_no_cpu() -> None:
    with start() as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        assert httpx.post(url + PATH, json=LONG | {"max_tokens": 2}).status_code == 200
        time.sleep(1.5)  # the worker checks its invariants once, a second after the last work

        def woken() -> int:
            tasks = Path(f"/proc/{process.pid}/task").iterdir()
            return sum(
                int(line.split()[1])
                for task in tasks
                for line in (task / "status").read_text().splitlines()
                if line.startswith("voluntary_ctxt_switches")
            )

        before = woken()
        time.sleep(1.0)
        assert woken() - before <= 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-c", "from pellucid.cli import main; main()", "serve", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: ") and port in done.stderr and "--port" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_public_address_without_a_key_is_one_line() -> None:
    environment = {**os.environ, "PELLUCID_HOST": "0.0.0.0"}
    environment.pop("PELLUCID_API_KEY", None)
    command = [sys.executable, "-c", "from pellucid.cli import main; main()", "serve"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 2 and "PELLUCID_API_KEY" in done.stderr and done.stderr.count("\n") == 1
