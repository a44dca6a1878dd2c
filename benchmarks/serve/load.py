"""Loads: requests that follow each other (closed loop), or come when they come (Poisson).

Law: in an open load a request counts from when it was due, not from when the generator got round to it; how late the
generator was is itself measured, for a late generator is no measurement.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

from connection import Connection, Seen

COMPLETIONS = "/v1/completions"


def body(prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    """A greedy completion of exactly `tokens` tokens."""
    return {
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def closed(port: int, bodies: Iterable[dict[str, Any]], streams: int) -> tuple[list[Seen], float]:
    """Send the requests over `streams` connections, each the next one when it has its answer. Returns also seconds."""
    waiting = iter(bodies)
    found: list[Seen] = []

    async def client(connection: Connection) -> None:
        for request in waiting:
            found.append(await connection.ask(COMPLETIONS, request))
            if not connection.open:
                return

    connections = [await Connection.to("127.0.0.1", port) for _ in range(streams)]
    began = time.perf_counter()
    await asyncio.gather(*map(client, connections))
    seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return found, seconds


async def poisson(
    port: int, bodies: Sequence[dict[str, Any]], rate: float, seconds: float, seed: int = 0
) -> tuple[list[Seen], list[float]]:
    """Send requests at `rate` a second for `seconds`; `bodies` go round. Returns also how late each was sent."""
    chance = random.Random(seed)
    free: list[Connection] = []
    late: list[float] = []

    async def one(request: dict[str, Any], due: float) -> Seen:
        connection = free.pop() if free else await Connection.to("127.0.0.1", port)
        late.append(time.perf_counter() - due)
        seen = await connection.ask(COMPLETIONS, request, due)
        if connection.open:
            free.append(connection)
        return seen

    tasks: list[asyncio.Task[Seen]] = []
    due = began = time.perf_counter()
    while due < began + seconds:
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(bodies[len(tasks) % len(bodies)], due)))
        due += chance.expovariate(rate)
    found = await asyncio.gather(*tasks)
    for connection in free:
        connection.close()
    return found, late
