"""Running a batch: every request of a file, asked of the application in this process.

Law: a request is served by the very application of `pellucid serve`, so its answer is the server's, byte for byte. So
many are under way at once, and no more; one that finds no room waits until another has ended.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import httpx
from pydantic_core import from_json

from pellucid.server.app import create_app
from pellucid.server.batchfiles import Answers, Fault, Line, Requests
from pellucid.server.limits import Limits

if TYPE_CHECKING:
    from pellucid.llm import LLM

DONE = 200
NO_ROOM = 429
NO_MODEL = 503
MOST_WAIT = 5.0
"""Seconds before a request that found no room, with nobody else there, is asked again."""
JSON = {"content-type": "application/json"}


Tell = Callable[[Fault | None], None]
"""Called for each line that is through, with its fault if it has one."""


async def run(llm: LLM, name: str, requests: Requests, lines: Iterable[Line], answers: Answers, tell: Tell) -> None:
    """Ask `lines` of the model and write their answers as they come.

    Args:
        llm: the model.
        name: under which it is served.
        requests: where `lines` come from.
        lines: that are asked.
        answers: where answers go.
        tell: hears of each line.
    """
    async with _client(llm, name) as client:
        places = 2 * llm.config.max_seqs  # so many that the next ones are ready when answers end
        async for line, response in _Desk(client, requests).ask_all(lines, places):
            answers.answered(line, response.status_code, response.headers["x-request-id"], response.content)
            tell(None if response.status_code == DONE else _fault(line, response))


async def check(name: str, requests: Requests, tell: Tell) -> None:
    """Ask everything of the application without a model: it refuses what it would refuse before it asks one."""
    async with _client(None, name) as client:
        async for line, response in _Desk(client, requests).ask_all(requests.lines, 1):
            tell(None if response.status_code == NO_MODEL else _fault(line, response))


def _fault(line: Line, response: httpx.Response) -> Fault:
    error = cast(dict[str, Any], from_json(response.content)["error"])
    return Fault(line.number, str(error.get("code") or error["type"]), str(error["message"]), line.custom_id)


@asynccontextmanager
async def _client(llm: LLM | None, name: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the application, which runs here and takes no connections."""
    app = create_app(llm, name=name, limits=Limits(deadline=0))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", trust_env=False) as client,
    ):
        yield client


class _Desk:
    """Asks, so many at once."""

    def __init__(self, client: httpx.AsyncClient, requests: Requests) -> None:
        self._client = client
        self._requests = requests
        self._asking = 0
        """Requests that the application has."""
        self._ended = asyncio.Event()
        """Set when the next one is through."""

    async def ask_all(self, lines: Iterable[Line], places: int) -> AsyncGenerator[tuple[Line, httpx.Response]]:
        """Yield each line with its answer, as answers come."""
        waiting: Iterator[Line] = iter(lines)
        running: dict[asyncio.Task[httpx.Response], Line] = {}
        try:
            while True:
                for line in waiting:
                    running[asyncio.create_task(self._ask(line))] = line
                    if len(running) == places:
                        break
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield running.pop(task), task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _ask(self, line: Line) -> httpx.Response:
        asked = self._requests.read(line)
        body = json.dumps(asked.body).encode()
        alone = False
        while True:
            self._asking += 1
            try:
                response = await self._client.post(asked.url, content=body, headers=JSON)
            finally:
                self._asking -= 1
            if response.status_code != NO_ROOM or (alone and not self._asking):
                self._ended.set()
                self._ended = asyncio.Event()
                return response
            if self._asking:
                await self._ended.wait()
            else:  # the engine may still be giving back what the last one held: once more, then it is final
                alone = True
                await asyncio.sleep(min(MOST_WAIT, float(response.headers["retry-after-ms"]) / 1000))
