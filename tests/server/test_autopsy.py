"""/inspect/requests: what is told of a request is what happened to it, and its text only if its client agreed."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from serving import Live, running, slow, until
from toymodel import toy_llm

PATH = "/v1/completions"
SECRET = "l am a secret prompt>"


@pytest.fixture
def looked() -> Iterator[Live]:
    with slow(toy_llm(), 0.003) as llm, running(llm, inspect=True) as live:
        yield live


def ask(live: Live, prompt: str, max_tokens: int = 4, **more: Any) -> str:
    done = live.post(PATH, {"prompt": prompt, "max_tokens": max_tokens, **more})
    assert done.status_code == 200, done.text
    return done.json()["id"]


def of(live: Live, id: str, **query: Any) -> dict[str, Any]:
    done = live.http.get(f"/inspect/requests/{id}", params=query)
    assert done.status_code == 200, done.text
    return done.json()


def test_stages_add_up_and_counts_are_those_of_the_answer(looked: Live) -> None:
    done = looked.post(PATH, {"prompt": "l" * 40 + ">", "max_tokens": 12}, headers={"x-request-id": "mine-1"})
    usage = done.json()["usage"]
    looked.settles()
    found = of(looked, done.json()["id"])
    assert of(looked, "mine-1") == found and found["request_id"] == "mine-1" and found["route"] == PATH
    assert (found["prompt_tokens"], found["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    [choice] = found["choices"]
    stages = [found["stages"]["receive"], *choice["stages"].values(), found["stages"]["emit"]]
    assert all(seconds is not None and seconds >= 0 for seconds in stages)
    assert sum(stages) == pytest.approx(found["seconds"], abs=0.002)
    assert choice["steps"] == 12 and choice["rows"] == 41 + 11 and choice["rows_again"] == 0
    assert choice["gaps"]["p50"] >= 0.003 and len(choice["gaps"]["worst"]) == 8
    assert choice["finish_reason"] == found["finish_reason"] == "length"
    for gap in choice["gaps"]["worst"]:
        assert gap["cause"] == "decode" and len(gap["steps"]) == 1 and 1 <= gap["token"] <= 11
    [first, *_] = looked.http.get("/inspect/requests").json()
    assert first["id"] == found["id"] and first["state"] == "ended"


def test_a_cache_miss_names_its_cause_and_the_token(looked: Live) -> None:
    shared = "the same words at the beginning of two prompts, long enough for pages "
    first = ask(looked, shared + "one>", 1)
    second = ask(looked, shared + "two>", 1, inspect={})
    cache = of(looked, second)["choices"][0]["cache"]
    assert cache["cached"] == 64 and cache["could"] == 64 and cache["nearest"] == f"{first}-0"
    assert cache["diverged_at"] == len(shared) and cache["diverged_token"]["text"] == "t"
    early = ask(looked, "T" + shared[1:] + "one>", 1)
    cache = of(looked, early)["choices"][0]["cache"]
    assert cache["cached"] == 0 and cache["new"] == 64 and cache["diverged_at"] == 0
    assert cache["same_after"] == len(shared) + 3 and "differs at token 0" in cache["why"]
    looked.llm.engine.pool.clear()
    cache = of(looked, ask(looked, shared + "one>", 1))["choices"][0]["cache"]
    assert cache["cached"] == 0 and cache["evicted"] == 64 and "given to others" in cache["why"]
    scored = ask(looked, shared + "one>", 1, echo=True, logprobs=1)
    cache = of(looked, scored)["choices"][0]["cache"]
    assert cache["not_looked_up"] == 64 and "logprobs" in cache["why"]


def test_a_conversation_that_goes_on_is_no_divergence(looked: Live) -> None:
    first = looked.post(PATH, {"prompt": "l" * 20 + ">", "max_tokens": 30}).json()
    went_on = ask(looked, "l" * 20 + ">" + first["choices"][0]["text"] + "and more", 1)
    cache = of(looked, went_on)["choices"][0]["cache"]
    assert cache["cached"] == 48 and cache["diverged_at"] is None and cache["evicted"] == 0


def test_text_is_told_only_of_who_let_it_be_seen(looked: Live) -> None:
    hidden, seen = ask(looked, SECRET, stop="qqqq"), ask(looked, SECRET, inspect={}, stop="xx")
    assert "secret" not in json.dumps(of(looked, hidden)) and of(looked, hidden)["prompt"] is None
    found = of(looked, seen)
    assert "".join(piece["text"] for piece in found["prompt"]).endswith(SECRET) and found["choices"][0]["stop"] == "xx"
    assert found["choices"][0]["output"][0]["text"] == "x"
    redacted = of(looked, seen, redact=True)
    assert redacted["prompt"] is None and "xx" not in json.dumps(redacted)
    assert looked.post(PATH, {"prompt": "a>", "max_tokens": 1, "inspect": 3}).status_code == 400


def test_who_waited_is_told_for_what_and_who_came_between(looked: Live) -> None:
    looked.llm.engine.scheduler.max_seqs = 1
    ids: list[str] = []
    asking = [threading.Thread(target=lambda i=i: ids.append(ask(looked, "l" * (i + 1) + ">", 20))) for i in range(3)]
    for thread in asking:
        thread.start()
        until(lambda: looked.llm.worker.pending >= 1)
    for thread in asking:
        thread.join()
    choices = [of(looked, id)["choices"][0] for id in ids]
    last = max(choices, key=lambda choice: choice["stages"]["queue"])
    assert last["queue"]["running"] + last["queue"]["waiting"] >= 1
    assert last["queue"]["seconds"]["seats"] == pytest.approx(last["stages"]["queue"], abs=0.05)
    assert sum(last["queue"]["seconds"].values()) == pytest.approx(last["stages"]["queue"], abs=0.05)


def test_a_prompt_that_held_up_a_token_is_named() -> None:
    with toy_llm(token_budget=400) as llm, running(llm, inspect=True) as live:
        device = llm.engine.device
        run = device.run

        def by_rows(batch: Any) -> Any:
            threading.Event().wait(0.001 * len(batch.tokens))
            return run(batch)

        device.run = by_rows  # type: ignore[method-assign]
        ids: dict[str, str] = {}
        long = threading.Thread(target=lambda: ids.update(a=ask(live, "l>", 60)))
        long.start()
        until(lambda: llm.engine.stats.generated_tokens > 3)
        ids["b"] = ask(live, "b" * 200 + ">", 1)
        long.join()
        worst = of(live, ids["a"])["choices"][0]["gaps"]["worst"][0]
        assert worst["cause"] == f"prefill of 201 tokens for {ids['b']}-0" and worst["seconds"] > 0.15
        assert of(live, ids["a"])["choices"][0]["mates"]["ids"] == [f"{ids['b']}-0"]


def test_preemptions_are_told_with_what_they_cost() -> None:
    with slow(toy_llm(ctx=256, kv_pages=17), 0.002) as llm, running(llm, inspect=True) as live:
        ids: list[str] = []
        asking = [
            threading.Thread(target=lambda i=i: ids.append(ask(live, "l" * (30 + i) + ">", 150))) for i in range(2)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert llm.engine.stats.preemptions
        choices = [of(live, id)["choices"][0] for id in ids]
        hit = [choice for choice in choices if choice["preemptions"]]
        assert hit and all(choice["preemptions"][0]["tokens"] > 0 for choice in hit)
        assert any(gap["cause"] == "preempted" for choice in hit for gap in choice["gaps"]["worst"])
        assert live.service.lives.totals.preempted == sum(choice["rows_again"] for choice in choices)


def test_tokens_drawn_for_nobody_are_counted() -> None:
    with slow(toy_llm(ctx=4096, kv_pages=300), 0.005) as llm, running(llm, inspect=True) as live:
        body = json.dumps({"prompt": "l>", "max_tokens": 1000, "stream": True})
        with closing(socket.create_connection(("127.0.0.1", live.port))) as s:
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            s.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            until(lambda: llm.engine.stats.generated_tokens > 5)
        live.settles()
        [record] = live.service.records.newest()
        found = of(live, record.id)
        assert found["finish_reason"] == "abort"
        drawn, sent = llm.engine.stats.generated_tokens, found["completion_tokens"]
        assert live.service.lives.totals.after_disconnect == drawn - sent <= 3


def test_calls_of_tools_are_told_as_they_were_parsed() -> None:
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    with toy_llm(scripts={"a": call}) as llm, running(llm, inspect=True) as live:
        body = {
            "messages": [{"role": "user", "content": "a"}],
            "tools": tools,
            "tool_choice": "required",
            "temperature": 0,
            "inspect": {},
        }
        done = live.post("/v1/chat/completions", body)
        assert done.status_code == 200, done.text
        made = done.json()["choices"][0]["message"]["tool_calls"]
        found = of(live, done.json()["id"])
        assert found["tools"] == ["look"] and made
        assert [(event["what"], event["name"]) for event in found["parser"]] == [("call", "look")] * len(made)


def test_what_is_kept_is_bounded(looked: Live) -> None:
    service = looked.service
    service.records._kept = service.lives._kept = 2
    ids = [ask(looked, "a>", 1) for _ in range(4)]
    looked.settles()
    assert len(service.lives.all()) == 2 and len(service.records.newest()) == 2
    gone = looked.http.get(f"/inspect/requests/{ids[0]}")
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "request_not_found"
    service.lives._most_bytes = 1
    ask(looked, "a>", 1)
    looked.settles()
    assert len(service.lives.all()) == 1


def test_a_request_that_runs_can_be_looked_at(looked: Live) -> None:
    with httpx.stream("POST", looked.url + PATH, json={"prompt": "l>", "max_tokens": 200, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        [first, *_] = looked.http.get("/inspect/requests").json()
        found = of(looked, first["id"])
        assert found["state"] == "running" and found["choices"][0]["steps"] > 0
        assert found["choices"][0]["stages"]["decode"] is None and found["seconds"] > 0
