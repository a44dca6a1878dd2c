"""`pellucid top` against a live server: its figures are what the server did, and its errors say what to do."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import replace

import pytest
from rich.console import Console

from pellucid.cli.dashboard import History, bar, dashboard, spark
from pellucid.cli.readings import PREFIX, Reading, Source, figures, parse, quantile
from pellucid.errors import UnreachableError
from serving import running, slow
from toymodel import toy_llm

from .conftest import Cli


def reading(at: float, text: str) -> Reading:
    return Reading(at, parse(text, "test"))


def histogram(name: str, counts: dict[str, int]) -> str:
    return "".join(f'{PREFIX}{name}_bucket{{le="{edge}",model_name="m"}} {n}\n' for edge, n in counts.items())


def test_quantiles_interpolate_inside_a_bucket_as_prometheus_does():
    cumulative = [(0.1, 10.0), (0.2, 30.0), (math.inf, 40.0)]
    assert quantile(cumulative, 0.5) == pytest.approx(0.15)
    assert quantile(cumulative, 0.25) == pytest.approx(0.1)
    assert quantile(cumulative, 0.99) == 0.2  # beyond the last edge nothing is known but that edge


def test_rates_and_latencies_are_of_the_time_between():
    name = "inter_token_latency_seconds"
    before = reading(
        10.0, f"{PREFIX}generation_tokens_total 100\n" + histogram(name, {"0.01": 50, "0.1": 90, "+Inf": 90})
    )
    now = reading(
        12.0, f"{PREFIX}generation_tokens_total 160\n" + histogram(name, {"0.01": 50, "0.1": 110, "+Inf": 110})
    )
    shown = figures(before, now)
    assert shown.tokens_per_second == 30.0
    assert shown.latency["inter_token"][0] == pytest.approx(0.055)  # the old ones, all fast, do not count
    assert shown.latency["first_token"] == [None, None, None]
    assert shown.running is None and shown.cpu is None  # not stated is not 0


def test_a_server_that_was_restarted_counts_from_zero():
    before = reading(1.0, f"{PREFIX}generation_tokens_total 5000\n")
    assert figures(before, reading(2.0, f"{PREFIX}generation_tokens_total 40\n")).tokens_per_second == 40.0


def test_once_tells_what_a_live_server_does(cli: Cli):
    with toy_llm() as llm, running(slow(llm, 0.005)) as server:
        body = {"prompt": "l>", "max_tokens": 400}
        asking = threading.Thread(target=server.post, args=("/v1/completions", body))
        asking.start()
        while not llm.engine.stats.generated_tokens:
            time.sleep(0.002)
        outcome = cli("top", server.url + "/v1", "--once", "--json", "--interval", "0.3")
        asking.join()
        assert outcome.code == 0, outcome.err
        seen = json.loads(outcome.out)
        assert seen["ready"] and seen["running"] == 1 and seen["model"] == server.service.name
        assert 0 < seen["tokens_per_second"] <= 200
        assert seen["latency"]["inter_token"][0] >= 0.004
        assert 0 < seen["kv_usage"] < 1
        picture = cli("top", server.url, "--once", "--interval", "0.1")
        assert picture.code == 0 and "KV cache" in picture.out and "\x1b" not in picture.out
        assert "length 1" in picture.out


def test_errors_say_what_to_do(cli: Cli):
    nobody = cli("top", "http://127.0.0.1:9", "--once")
    assert nobody.code == 5 and "pellucid serve" in nobody.err
    wrong = cli("top", "ftp://somewhere", "--once")
    assert wrong.code == 2 and "http://127.0.0.1:8000" in wrong.err
    with toy_llm() as llm, running(llm, api_key="long-enough-key") as server:
        refused = cli("top", server.url, "--once")
        assert refused.code == 2 and "PELLUCID_API_KEY" in refused.err
        assert cli("top", server.url, "--once", "--interval", "0.1", "--api-key", "long-enough-key").code == 0


def test_a_model_that_is_loading_is_no_error():
    with running(None, name="late") as server:
        source = Source(server.url, None)
        shown = figures(source.read(), source.read())
        source.close()
        assert not shown.ready and "loading" in shown.why
        assert "not ready: loading" in draw(shown)


def test_other_servers_are_recognised():
    with pytest.raises(UnreachableError, match="Prometheus"):
        parse("<html>{}</html>", "http://x")


def draw(shown: object, width: int = 80, **more: str) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    history = History()
    history.add(shown)  # type: ignore[arg-type]
    console.print(dashboard("http://127.0.0.1:8000", shown, history, width, **more))  # type: ignore[arg-type]
    return console.export_text()


def test_the_picture_fits_80_columns_and_cuts_nothing():
    empty = reading(0.0, "")
    full = replace(
        figures(empty, reading(1.0, "")), model="smollm2", kv_usage=0.97, kv_pages=16384, kv_format="q8_0",
        cpu=1.5, threads=2, memory=3e8, parts={"weights": 1e8, "kv": 3.6e8},
        bandwidth=6e9, running=64.0, waiting=3.0,
    )  # fmt: skip
    for shown in (figures(empty, reading(1.0, "")), full):
        text = draw(shown, trouble="no answer for 3 s; trying again")
        assert "…" not in text and max(map(len, text.splitlines())) <= 80
        assert "no answer for 3 s" in text


def test_bars_and_curves():
    assert bar(0.5, 10).plain == "█████░░░░░" and bar(None, 10).plain == "–" and bar(7.0, 4).plain == "████"
    assert spark([0, 1, 2, 4], 3) == "▂▄█" and spark([0.0, 0.0], 9) == "▁▁"
