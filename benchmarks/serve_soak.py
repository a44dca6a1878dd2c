"""A long, mixed load on a running server: streams, whole answers, clients that leave, hostile bodies.

Law: a client that stays gets an answer with the right usage, whatever the others do; nothing is a 5xx; in the end no
sequence runs, no page is held by one, and the process has not grown. Prints one JSON object; exit code 1 on any fault.

    pellucid serve smollm2 --port 8000 &
    python benchmarks/serve_soak.py --url http://127.0.0.1:8000 --pid $! --requests 2000 --clients 64
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

WORDS = ["river", "stone", "light", "paper", "engine", "window", "garden", "number", "music", "winter", "copper"]
HOSTILE: list[bytes] = [
    b"",
    b"{",
    b"[" * 10000,
    b'{"messages": 1}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
    b'{"messages": [{"role": "user", "content": "a"}], "n": 1000000}',
    b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 99999999999999999999}',
    b'{"messages": [{"role": "user", "content": "a"}], "logit_bias": {"99999999": 1}}',
    b'{"messages": [{"role": "user", "content": "' + b"long " * 20000 + b'"}]}',
]


def body(chance: random.Random) -> dict[str, Any]:
    """A request: sometimes with a beginning that others share, so that the prefix cache has work."""
    shared = "You answer in few words. " * chance.choice([0, 0, 4, 12])
    text = shared + " ".join(chance.choices(WORDS, k=chance.randint(1, 60)))
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": chance.randint(1, 48),
        "temperature": chance.choice([0, 0.7, 1.3]),
        "seed": chance.randint(0, 9),
        "n": chance.choice([1, 1, 1, 3]),
    }
    if chance.random() < 0.3:
        request |= {"stop": [chance.choice(WORDS), ". "]}
    if chance.random() < 0.3:
        request |= {"logprobs": True, "top_logprobs": chance.randint(0, 5)}
    return request


def check(usage: dict[str, Any], request: dict[str, Any]) -> None:
    """Raise if a usage cannot be right."""
    answer = usage["completion_tokens"]
    assert request["n"] <= answer <= request["n"] * request["max_tokens"], usage
    assert usage["total_tokens"] == usage["prompt_tokens"] + answer, usage
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"], usage


async def one(http: httpx.AsyncClient, chance: random.Random, seen: Counter[str]) -> None:
    """Send one request of some kind and count what came of it."""
    path = "/v1/chat/completions"
    kind = chance.random()
    if kind < 0.1:
        content = chance.choice(HOSTILE)
        response = await http.post(path, content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400, (response.status_code, content[:80])
        seen["hostile"] += 1
        return
    request = body(chance)
    leaves = kind < 0.4
    if kind < 0.2:  # leave before there is an answer
        try:
            await http.post(path, json=request, timeout=chance.random() / 2)
        except httpx.TimeoutException:
            seen["left early"] += 1
        return
    if kind < 0.7:
        after = chance.randint(1, 10) if leaves else None
        asked = request | {"stream": True, "stream_options": {"include_usage": True}}
        async with http.stream("POST", path, json=asked) as response:
            if response.status_code == 429:
                seen["429"] += 1
                return
            assert response.status_code == 200, response.status_code
            events, last = 0, ""
            async for line in response.aiter_lines():
                if line and line != "data: [DONE]":
                    events, last = events + 1, line
                if events == after:
                    seen["left a stream"] += 1
                    return
        chunk = json.loads(last.removeprefix("data: "))
        assert "error" not in chunk, chunk
        check(chunk["usage"], request)
        seen["stream"] += 1
        return
    response = await http.post(path, json=request)
    if response.status_code == 429:
        seen["429"] += 1
        return
    assert response.status_code == 200, response.text
    check(response.json()["usage"], request)
    seen["whole"] += 1


def memory(pid: int | None) -> int | None:
    """Resident bytes of the server."""
    if pid is None:
        return None
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else None


async def metrics(http: httpx.AsyncClient) -> dict[str, float]:
    """The server's gauges and counters, without their labels."""
    lines = [line for line in (await http.get("/metrics")).text.splitlines() if line[:1] not in ("#", "")]
    return {line.split("{")[0].removeprefix("pellucid:"): float(line.rpartition(" ")[2]) for line in lines}


async def soak(url: str, requests: int, clients: int, seed: int, pid: int | None) -> dict[str, Any]:
    """Run the load. Returns what was counted."""
    seen: Counter[str] = Counter()
    faults: list[str] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=clients)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=600, trust_env=False) as http:
        todo = iter(range(requests))
        began, middle = time.monotonic(), None

        async def client() -> None:
            nonlocal middle
            for i in todo:
                if i == requests // 2:
                    middle = memory(pid)
                try:
                    await one(http, random.Random(seed * 1_000_003 + i), seen)
                except Exception as error:
                    faults.append(f"request {i}: {type(error).__name__}: {error}")

        await asyncio.gather(*(client() for _ in range(clients)))
        took = time.monotonic() - began
        await asyncio.sleep(1)
        now = await metrics(http)
    left = {name: now[name] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")}
    if any(left.values()):
        faults.append(f"work is left: {left}")
    return {
        "requests": requests,
        "clients": clients,
        "seconds": round(took, 1),
        "answers": dict(seen),
        "generated_tokens": now["generation_tokens_total"],
        "prefix_hits": now["prefix_cache_hits_total"] / max(1.0, now["prefix_cache_queries_total"]),
        "rss_at_half": middle,
        "rss_at_end": memory(pid),
        "left": left,
        "faults": faults[:20],
    }


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pid", type=int)
    given = parser.parse_args()
    result = asyncio.run(soak(given.url, given.requests, given.clients, given.seed, given.pid))
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["faults"] else 0)


if __name__ == "__main__":
    main()
