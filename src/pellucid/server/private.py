"""Streams that tell nothing of their tokens to one who only sees packets: blocks of one size, at ticks of one clock.

Law: when a block leaves and how large it is depend on the request and the clock, never on what the model says. What is
due and does not fill a block is filled up with a comment, which every reader of server-sent events skips; what does not
fit waits for the next. How long an answer is in all can still be seen. After Weiss et al., "What Was Your Prompt?"
(2024), which read answers from the sizes of packets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Send

from pellucid.server.choices import Piece

TICK = 0.1
"""Seconds between two blocks."""
BLOCK = 1024
"""Bytes of a block for each choice; SCORED with logprobs, of which a token has thousands."""
SCORED = 8192


class Clock:
    """Ticks at whole multiples of TICK of the loop's time, so those of all streams fall together."""

    def __init__(self) -> None:
        self._last = 0

    async def tick(self) -> None:
        """Sleep until the next tick. One that has passed already is left out; none comes twice."""
        loop = asyncio.get_running_loop()
        self._last = max(self._last, int(loop.time() / TICK)) + 1
        await asyncio.sleep(self._last * TICK - loop.time())


class Blocks:
    """The body of a stream as blocks of one size, one for each tick."""

    def __init__(self, send: Send, clock: Clock, size: int) -> None:
        self._send = send
        self._clock = clock
        self._size = size
        self._due = b""

    async def send(self, data: bytes) -> None:
        """Send a block now, with as much as fits of what is due; the rest waits."""
        self._due += data
        block, self._due = self._due[: self._size], self._due[self._size :]
        block += _padding(self._size - len(block))
        await self._send({"type": "http.response.body", "body": block, "more_body": True})

    async def end(self, data: bytes) -> None:
        """Send what is left, a block each tick, and end."""
        self._due += data
        while self._due:
            await self._clock.tick()
            await self.send(b"")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _padding(size: int) -> bytes:
    """Bytes that mean nothing between two events: empty lines, or a comment."""
    return b"\n" * size if size < 3 else b":" + b" " * (size - 3) + b"\n\n"


async def at_ticks(steps: AsyncIterator[list[Piece]], clock: Clock) -> AsyncIterator[list[Piece]]:
    """Yield at every tick, the first with something to say and all that follow, what came since: maybe nothing.

    Raises what `steps` raises, at a tick. `steps` is read to its end, or closed with this.
    """
    waiting: dict[int, Piece] = {}
    news = asyncio.Event()

    async def read() -> None:
        try:
            async for pieces in steps:
                for piece in pieces:
                    if piece.choice in waiting:
                        waiting[piece.choice].add(piece)
                    else:
                        waiting[piece.choice] = piece
                news.set()
        finally:
            news.set()

    reading = asyncio.ensure_future(read())
    try:
        await news.wait()
        while True:
            await clock.tick()
            pieces = list(waiting.values())
            waiting.clear()
            ended = reading.done()
            if pieces or not ended:
                yield pieces
            if ended:
                reading.result()
                return
    finally:
        reading.cancel()
        await asyncio.wait([reading])
