"""/inspect/waste: each cause is counted when it happens, and only then."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pellucid.engine.prefixes import Prefixes
from serving import Live, running, slow
from toymodel import toy_llm

PATH = "/v1/completions"
WORDS = "l and a rather long text that is the same in all of these prompts, whatever stands before it"


def report(live: Live) -> dict[str, Any]:
    live.settles()
    done = live.http.get("/inspect/waste")
    assert done.status_code == 200, done.text
    return done.json()


def tokens(found: dict[str, Any]) -> dict[str, int]:
    return {item["cause"]: item["tokens"] for item in found["items"]}


def test_nothing_is_wasted_by_requests_that_share_nothing() -> None:
    with toy_llm() as llm, running(llm, inspect=True) as live:
        assert report(live)["items"] == []
        live.post(PATH, {"prompt": "a" * 40 + ">", "max_tokens": 5})
        live.post(PATH, {"prompt": "b" * 40 + ">", "max_tokens": 5})
        found = report(live)
        assert found["items"] == [] and found["prefill_tokens"] == 82 and found["decode_tokens"] == 8


def test_pages_that_were_given_to_others_are_computed_again() -> None:
    with toy_llm(ctx=256, kv_pages=16) as llm, running(llm, inspect=True) as live:
        for prompt in ("a" * 64 + ">", "b" * 250 + ">", "a" * 64 + ">"):
            live.post(PATH, {"prompt": prompt, "max_tokens": 1})
        assert tokens(report(live)) == {"evicted": 64}


def test_prompts_that_are_nearly_alike_are_named_with_the_place() -> None:
    with toy_llm() as llm, running(llm, inspect=True) as live:
        for clock in ("10:01 ", "10:02 ", "10:03 "):
            live.post(PATH, {"prompt": clock + WORDS, "max_tokens": 1})
        found = report(live)
        [miss] = found["near_misses"]
        assert miss["diverged_at"] == 4 and miss["requests"] == 2
        saved = len(WORDS) + 1
        assert tokens(found) == {"near_miss": 2 * saved} and miss["tokens"] == 2 * saved
        assert found["items"][0]["seconds"] > 0 and "behind" in found["items"][0]["advice"]


def test_tools_that_nobody_called_are_ranked_by_tokens() -> None:
    def tool(name: str, text: str = "") -> dict[str, Any]:
        schema = {"type": "object", "properties": {}}
        return {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}

    with toy_llm(ctx=4096, kv_pages=512) as llm, running(llm, inspect=True) as live:
        choice = {"type": "function", "function": {"name": "look"}}
        body = {"messages": [{"role": "user", "content": "a"}], "tool_choice": choice}
        long = "long " * 40
        for tools in ([tool("look"), tool("rest", long)], [tool("look"), tool("rest", long), tool("c")]):
            assert live.post("/v1/chat/completions", body | {"tools": tools}).status_code == 200
        found = report(live)
        assert [(one["name"], one["requests"], one["called"]) for one in found["unused_tools"]] == [
            ("rest", 2, 0),
            ("c", 1, 0),
        ]
        rest = found["unused_tools"][0]
        assert rest["tokens"] == 2 * rest["schema_tokens"] > 400
        assert tokens(found)["unused_tools"] == sum(one["tokens"] for one in found["unused_tools"])


def test_preempted_and_scored_prompts_count() -> None:
    with slow(toy_llm(ctx=256, kv_pages=17), 0.001) as llm, running(llm, inspect=True) as live:
        prompts = ["l" * 30 + ">", "m" * 31 + ">"]
        asking = [
            threading.Thread(target=live.post, args=(PATH, {"prompt": p, "max_tokens": 150, "ignore_eos": True}))
            for p in prompts
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert llm.engine.stats.preemptions and tokens(report(live))["preempted"] > 0
        live.post(PATH, {"prompt": "b" * 33, "max_tokens": 1, "echo": True, "logprobs": 1})
        assert tokens(report(live))["not_looked_up"] == 32


def test_another_tenants_pages_are_told_from_lost_ones() -> None:
    known = Prefixes(16)
    known.add("one", "red", list(range(40)))
    story = known.story("blue", list(range(40)), 0, looked_up=True)
    assert (story.other_tenant, story.evicted, story.new) == (32, 0, 0)
    story = known.story("red", list(range(40)), 16, looked_up=True)
    assert (story.other_tenant, story.evicted, story.new) == (0, 16, 0)


def test_memory_of_prompts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.engine.prefixes.MOST_BYTES", 1000)
    known = Prefixes(16, most=8)
    for i in range(50):
        known.add(str(i), "", [i] * 64)
    assert len(known._pages) == 8 and known._bytes <= 1000 and len(known._held) <= 4
    lost = known.story("", [0] * 64, 0, looked_up=True)
    assert lost.new == 48 and lost.nearest is not None
