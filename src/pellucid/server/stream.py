"""Sending an answer: as one JSON object, or as server-sent events.

Law: the status is sent when the first piece is there, so what fails before that has its right status; what fails later
is an event that holds `error`, and the stream ends. Whatever happens, the client leaving too, the generation is closed.
How a private stream leaves is private.py's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pellucid.errors import EngineError, PellucidError
from pellucid.server.choices import Generation, Piece
from pellucid.server.errors import error_response
from pellucid.server.private import BLOCK, SCORED, Blocks, Clock, at_ticks
from pellucid.server.records import Record
from pellucid.server.service import Service
from pellucid.server.shapes import Shape, WholeShape

log = logging.getLogger("pellucid.server")

EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: Any, *, named: bool = False) -> bytes:
    """Return one server-sent event; `named`: after its own type."""
    name = f"event: {data['type']}\n".encode() if named else b""
    return name + b"data: " + to_json(data) + b"\n\n"


class Body:
    """The body of a stream, sent as it comes."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, data: bytes) -> None:
        """Send a part."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        """Send the last part."""
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


class Whole(Response):
    """The answer to one request, in one JSON object."""

    def __init__(self, service: Service, generation: Generation, shape: WholeShape, *, stream: bool = False) -> None:
        """Answer with what `generation`, not yet started, brings.

        Args:
            service: starts and closes the generation.
            generation: the work.
            shape: how it is written.
            stream: what the record of the request says.
        """
        super().__init__()
        self._service = service
        self._generation = generation
        self._whole_shape = shape
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        record = Record.of(self._generation, scope, stream=self._stream)
        self._service.records.add(record)
        scope["record"] = record
        try:
            await until_gone(receive, self._send(scope, receive, send))
        finally:
            self._service.close(self._generation)
            record.close(self._generation)
            self._service.wasted.answered(record, self._generation.reads)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._service.start(self._generation)
            response = await self._respond(send)
        except PellucidError as error:
            response = error_response(error, scope)
        if response is not None:
            await response(scope, receive, send)

    async def _respond(self, send: Send) -> Response | None:
        """Return what is to be sent; None: it is sent."""
        generation = self._generation
        wholes = [Piece(choice.index) for choice in generation.choices]
        async for pieces in generation.steps():
            for piece in pieces:
                wholes[piece.choice].add(piece)
        scored = 0 if generation.params.prompt_logprobs is None else sum(map(len, generation.prompts))
        body = await self._service.prepare(lambda: to_json(self._whole_shape.whole(wholes, generation.usage())), scored)
        return Response(body, media_type="application/json")


class Answer(Whole):
    """The answer to one request, in one or as events that are made while they are sent."""

    def __init__(
        self, service: Service, generation: Generation, shape: Shape, *, stream: bool, private: bool = False
    ) -> None:
        """Answer as Whole does, or in events.

        Args:
            service, generation, shape: as of Whole.
            stream: in events, or in one.
            private: events leave so that packets tell nothing of tokens; also where the service says so for all.
        """
        super().__init__(service, generation, shape, stream=stream)
        self._shape = shape
        self._private = private or service.private_stream

    async def _respond(self, send: Send) -> Response | None:
        if not self._stream:
            return await super()._respond(send)
        await self._send_events(send)
        return None

    async def _send_events(self, send: Send) -> None:
        shape, usage = self._shape, self._generation.usage
        steps = self._generation.steps()
        body: Body | Blocks = Body(send)
        if self._private:
            clock = Clock()
            size = SCORED if self._generation.params.logprobs is not None else BLOCK
            steps, body = at_ticks(steps, clock), Blocks(send, clock, size * len(self._generation.choices))
        begun = False
        try:
            async for pieces in steps:
                chunks = [] if begun else shape.begin(usage())
                chunks += shape.chunks(pieces, usage)
                if not begun:
                    await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
                    begun = True
                await body.send(self._events(chunks))
            end = self._events(shape.end(usage())) + (b"" if shape.named else b"data: [DONE]\n\n")
        except Exception as error:
            if not begun:
                raise
            if not isinstance(error, PellucidError):
                log.exception("request %s failed while it was streamed", self._generation.id)
                error = EngineError("The server failed on this request; its log has the cause")
            end = self._events([shape.failed(error)])
        await body.end(end)

    def _events(self, chunks: list[Any]) -> bytes:
        return b"".join(event(chunk, named=self._shape.named) for chunk in chunks)


async def until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do `work` until it is done or the client has left, whichever comes first. Raises what it raises."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if not tasks[0].cancelled():
        tasks[0].result()
    elif not tasks[1].cancelled():
        tasks[1].result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
