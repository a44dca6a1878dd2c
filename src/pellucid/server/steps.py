"""Records of steps as server-sent events.

Law: a client reads from the one ring at its own pace, so that it costs the engine a wake-up and nothing it has to keep;
what the client is too slow for is lost to it, and counted.
"""

from __future__ import annotations

import asyncio

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pellucid.engine.steps import StepRing
from pellucid.errors import CapacityError
from pellucid.server.errors import error_response
from pellucid.server.service import Service
from pellucid.server.stream import EVENT_HEADERS, Body, until_gone

MOST_LISTENERS = 16
PAUSE = 0.05
"""Seconds between two sends: steps that end meanwhile go together."""
LOOK_UP = 1.0
"""Seconds after which a stream without news looks whether the server is stopping."""
SILENCE = 15
"""Look-ups without news after which a comment is sent, so that nobody on the way takes the stream for dead."""


class StepEvents(Response):
    """The records after the first `cursor`, for as long as the client stays."""

    def __init__(self, service: Service, steps: StepRing, cursor: int) -> None:
        super().__init__()
        self._service = service
        self._steps = steps
        self._cursor = cursor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the client leaves or the server stops."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        try:
            end = self._steps.listen(lambda: loop.call_soon_threadsafe(news.set), most=MOST_LISTENERS)
        except CapacityError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        try:
            await until_gone(receive, self._send(send, news))
        finally:
            end()

    async def _send(self, send: Send, news: asyncio.Event) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        body = Body(send)
        await body.send(b": steps of the engine\n\n")
        quiet = 0
        while not self._service.draining:
            if data := self._data():
                await body.send(data)
                quiet = 0
                await asyncio.sleep(PAUSE)
            try:
                async with asyncio.timeout(LOOK_UP):
                    await news.wait()
                news.clear()
            except TimeoutError:
                quiet += 1
                if quiet % SILENCE == 0:
                    await body.send(b": nothing new\n\n")
        await body.end(self._data())

    def _data(self) -> bytes:
        """All that is new, as events; the id of each is its place in the row of all."""
        records, missed = self._steps.since(self._cursor)
        parts: list[bytes] = []
        self._cursor += missed
        if missed:
            parts.append(b'event: dropped\nid: %d\ndata: {"dropped":%d}\n\n' % (self._cursor, missed))
        for record in records:
            self._cursor += 1
            parts.append(b"event: step\nid: %d\ndata: %s\n\n" % (self._cursor, to_json(record)))
        return b"".join(parts)
