"""`pellucid waste` against a live server."""

from __future__ import annotations

import json

from serving import running
from toymodel import toy_llm

from .conftest import Cli


def test_waste_is_ranked_and_told(cli: Cli) -> None:
    with toy_llm() as llm, running(llm, inspect=True) as server:
        assert "nothing was computed for nothing" in cli("waste", "--url", server.url).out
        for clock in ("10:01 ", "10:02 "):
            server.post("/v1/completions", {"prompt": clock + "the same words " * 8, "max_tokens": 1})
        server.settles()
        told = cli("waste", "--url", server.url)
        assert told.code == 0 and "prompts nearly alike" in told.out and "differ at token 4" in told.out
        found = json.loads(cli("waste", "--url", server.url, "--json").out)
        assert found["items"][0]["cause"] == "near_miss"
