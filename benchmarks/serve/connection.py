"""One connection of the load generator: a request out, the times of its tokens in.

Law: it costs little beside the server it measures, for both share the machine: no HTTP library, no JSON but for the
last event. It reads what a server of completions streams (chunked, `data: ` lines), not HTTP in general.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    """What one request saw; times are of time.perf_counter()."""

    sent: float
    status: int = 0
    tokens: list[float] = field(default_factory=list)
    """When each event with text came."""
    ended: float = 0.0
    usage: dict[str, Any] | None = None
    fault: str = ""

    @property
    def ttft(self) -> float:
        return self.tokens[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.tokens, self.tokens[1:], strict=False)]


class Connection(asyncio.Protocol):
    """A connection that is kept for one request after the other."""

    def __init__(self) -> None:
        self._tail = b""
        self._seen: Seen | None = None
        self._done: asyncio.Future[None] | None = None
        self._left = 0
        self._transport: asyncio.Transport | None = None
        self.open = False

    @classmethod
    async def to(cls, host: str, port: int) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, port)
        return connection

    def connection_made(self, transport: Any) -> None:
        self._transport, self.open = transport, True

    async def ask(self, path: str, body: dict[str, Any], sent: float | None = None) -> Seen:
        """Send a request and wait for the end of its answer. `sent`: when it was due, if it was before now."""
        assert self._transport is not None
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
        self._seen = Seen(time.perf_counter() if sent is None else sent)
        self._done = asyncio.get_running_loop().create_future()
        self._tail = b""
        self._transport.write(head.encode() + str(len(data)).encode() + b"\r\n\r\n" + data)
        await self._done
        return self._seen

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        now, seen = time.perf_counter(), self._seen
        if seen is None:
            return
        *lines, self._tail = (self._tail + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                self._event(seen, line[6:], now)
            elif not seen.status and line.startswith(b"HTTP/1.1 "):
                seen.status = int(line[9:12])
                if seen.status != 200:
                    self._left = -1
            elif self._left == -1 and line.lower().startswith(b"content-length:"):
                self._left = int(line.split(b":")[1])
            elif self._left > 0 and line == b"\r":
                self._left = -2 - self._left  # what follows is the body
        if self._left < -1 and len(self._tail) >= -self._left - 2:
            seen.fault = self._tail.decode(errors="replace")
            self._end(now)

    def _event(self, seen: Seen, data: bytes, now: float) -> None:
        if data.startswith(b"[DONE]"):
            self._end(now)
        elif data.startswith(b'{"error"'):
            seen.fault = data.decode(errors="replace")
            self._end(now)
        elif b'"choices":[]' in data:
            seen.usage = json.loads(data)["usage"]
        else:
            seen.tokens.append(now)

    def _end(self, now: float) -> None:
        if self._seen is not None and self._done is not None and not self._done.done():
            self._seen.ended = now
            self._left = 0
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._seen is not None and not self._seen.ended:
            self._seen.fault = f"the connection was lost: {exc}"
            self._end(time.perf_counter())
