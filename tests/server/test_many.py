"""Many clients at once: each gets its own answer and the right usage, some leave, and no page stays behind."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from serving import Live, running
from toymodel import SCRIPTS, toy_llm

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def busy() -> Iterator[Live]:
    with toy_llm(max_seqs=24, kv_pages=128, token_budget=64) as llm, running(llm) as live:
        yield live


def ask(key: str, i: int, **more: Any) -> dict[str, Any]:
    text = key + "~" * (i % 40)
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 60, **more}


async def stream(client: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None = None) -> tuple[str, Any]:
    """Read a stream to its end, or leave after some events. Returns text and usage."""
    text, usage, seen = "", None, 0
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", PATH, json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk["usage"]
            text += "".join(choice["delta"].get("content", "") for choice in chunk["choices"])
            seen += 1
            if seen == leave_after:
                return text, None
    return text, usage


def client(live: Live) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=live.url, limits=limits, timeout=60, trust_env=False)


def expected(key: str) -> tuple[str, int]:
    script = SCRIPTS[key].encode()
    return script[:60].decode("utf-8", "ignore"), min(60, len(script) + 1)


def test_64_streams_together(busy: Live) -> None:
    keys = [list(SCRIPTS)[i % len(SCRIPTS)] for i in range(64)]

    async def go() -> list[tuple[str, Any]]:
        async with client(busy) as http:
            return await asyncio.gather(*(stream(http, ask(key, i)) for i, key in enumerate(keys)))

    for i, (key, (text, usage)) in enumerate(zip(keys, asyncio.run(go()), strict=True)):
        answer, count = expected(key)
        assert text == answer
        assert usage["completion_tokens"] == count
        assert usage["prompt_tokens"] == 2 + len(key.encode()) + i % 40
        assert usage["total_tokens"] == usage["prompt_tokens"] + count
        assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]
    busy.settles()
    assert busy.llm.engine.stats.pages_cached > 0


def test_some_leave_and_the_others_do_not_notice(busy: Live) -> None:
    chance = random.Random(5)
    plan = [(chance.choice(list(SCRIPTS)), chance.random() < 0.3) for _ in range(150)]
    gone: list[int] = []

    async def one(http: httpx.AsyncClient, i: int, key: str, leaves: bool) -> None:
        if leaves and i % 3 == 0:  # at a moment of the clock: the answer may have come before it
            try:
                await http.post(PATH, json=ask("l", i, max_tokens=400), timeout=0.001 * (1 + i % 20))
            except httpx.TimeoutException:
                gone.append(i)
            return
        text, _ = await stream(http, ask(key, i), 1 + i % 9 if leaves else None)
        if not leaves:
            assert text == expected(key)[0]

    async def go() -> None:
        async with client(busy) as http:
            gate = asyncio.Semaphore(40)

            async def gated(i: int, key: str, leaves: bool) -> None:
                async with gate:
                    await one(http, i, key, leaves)

            await asyncio.gather(*(gated(i, *entry) for i, entry in enumerate(plan)))

    asyncio.run(go())
    busy.settles()
    assert gone
    assert busy.llm.engine.stats.finished["error"] == 0


def test_an_answer_does_not_depend_on_its_neighbours(busy: Live) -> None:
    body = ask("a", 3, temperature=1.5, seed=11, max_tokens=40)
    alone = busy.post(PATH, body).json()["choices"][0]["message"]["content"]

    async def go() -> list[Any]:
        async with client(busy) as http:
            noise = [http.post(PATH, json=ask("l", i, temperature=2, n=2)) for i in range(20)]
            return await asyncio.gather(*noise, *(http.post(PATH, json=body) for _ in range(4)))

    answers = [answer.json() for answer in asyncio.run(go())[20:]]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == [alone] * 4
