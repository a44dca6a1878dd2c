"""`pellucid autopsy` against a live server: the list, one request, and what it says where there is nothing."""

from __future__ import annotations

import json

from serving import running, slow
from toymodel import toy_llm

from .conftest import Cli


def test_a_request_is_told_from_top_to_bottom(cli: Cli) -> None:
    with slow(toy_llm(), 0.002) as llm, running(llm, inspect=True) as server:
        assert "no request" in cli("autopsy", "--url", server.url).out
        body = {"prompt": "l am \x1b[31mred>", "max_tokens": 12, "stop": "zzz", "inspect": {}}
        id = server.post("/v1/completions", body).json()["id"]
        server.settles()
        listed = cli("autopsy", "--url", server.url)
        assert listed.code == 0 and id in listed.out and "length" in listed.out
        told = cli("autopsy", id, "--url", server.url)
        assert told.code == 0, told.err
        for word in ("queue", "prefill", "decode", "emit", "cache", "longest gaps", "l am �[31mred>", "xxxx"):
            assert word in told.out, word
        assert "\x1b" not in told.out
        assert "red>" not in cli("autopsy", id, "--url", server.url, "--redact").out
        assert json.loads(cli("autopsy", id, "--url", server.url, "--json").out)["id"] == id
        gone = cli("autopsy", "nobody", "--url", server.url)
        assert gone.code == 2 and "the last 256 are kept" in gone.err
