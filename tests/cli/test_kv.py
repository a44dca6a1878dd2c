"""`pellucid kv` against a live server: the drawing is the map, plain where it is piped."""

from __future__ import annotations

import json
import threading
from typing import Any

from rich.console import Console

from pellucid.cli.kv import drawing
from serving import running, slow, until
from toymodel import toy_llm

from .conftest import Cli


def test_the_drawing_is_the_map(cli: Cli) -> None:
    with slow(toy_llm(), 0.005) as llm, running(llm, inspect=True) as server:
        empty = cli("kv", "--url", server.url)
        assert empty.code == 0 and "no request holds a page" in empty.out and empty.out.count("·") == 64 + 1
        body = {"prompt": "l" + "y" * 40 + ">", "max_tokens": 400}
        asking = threading.Thread(target=server.post, args=("/v1/completions", body))
        asking.start()
        until(lambda: llm.engine.stats.pages_used > 4)
        drawn = cli("kv", "--url", server.url + "/v1")
        found = json.loads(cli("kv", "--url", server.url, "--json").out)
        asking.join()
        assert drawn.code == 0 and "\x1b" not in drawn.out and "AAAA" in drawn.out
        assert found["requests"][0]["id"] in drawn.out and found["held"] == found["requests"][0]["pages"]


def test_errors_say_what_to_do(cli: Cli) -> None:
    nobody = cli("kv", "--url", "http://127.0.0.1:9")
    assert nobody.code == 5 and "pellucid serve" in nobody.err
    with toy_llm() as llm, running(llm, api_key="long-enough-key") as server:
        refused = cli("kv", "--url", server.url)
        assert refused.code == 2 and "PELLUCID_API_KEY" in refused.err
        absent = cli("kv", "--url", server.url, "--api-key", "long-enough-key")
        assert absent.code == 5 and "loopback" in absent.err
    with running(None, inspect=True) as server:
        loading = cli("kv", "--url", server.url)
        assert loading.code == 5 and "loading" in loading.err


def test_large_maps_fit_the_screen() -> None:
    runs: list[dict[str, Any]] = [
        {"page": i * 1000, "count": 1000, "state": "held", "request": i, "refs": 1, "age": 1.0, "prefix": None}
        for i in range(60)
    ]
    requests = [
        {"id": f"r{i}", "tenant": "team", "tokens": 1, "computed": 1, "pages": 1000, "shared": 0} for i in range(60)
    ]
    found = {"page_count": 70_000, "page_size": 16, "free": 0, "cached": 0, "held": 60_000, "shared": 0, "evictions": 3,
             "requests": requests, "runs": runs, "left_out": 10_000}  # fmt: skip
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(drawing(found, 80))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80 and len(text.splitlines()) < 50
    assert "and 40 more" in text and "10000 pages are left out" in text and "team" in text
