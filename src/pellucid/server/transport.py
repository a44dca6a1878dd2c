"""Connections and the life of the process: uvicorn, with the limits that it lacks.

Law: a client that owes bytes has a deadline; so has one that does not read. An answer given early is not lost to a
reset: what the client still sends is thrown away for a while. An idle server has no timer at all. The
first signal stops work in order (not ready, no new requests, running ones finish in time); the second ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import h11
import uvicorn
from fastapi import FastAPI
from pydantic_core import to_json
from uvicorn.protocols.http.h11_impl import H11Protocol

from pellucid.errors import ConfigError
from pellucid.server.errors import HTTPError, error_body
from pellucid.server.limits import Limits
from pellucid.server.service import Service
from pellucid.server.wire import Wire

log = logging.getLogger("pellucid.server")

LINGER = 2.0
"""Seconds for which the rest of a request is read and thrown away after it was answered early."""
FAREWELL = 0.5
"""Seconds that the client of an idle TLS connection has to answer its end when the server stops."""
LINGER_BYTES = 64 << 20
"""Most that is thrown away so."""


class Gentle:
    """A transport whose close() leaves time for the answer to be read, where the client is still sending.

    A socket closed with bytes unread resets the connection, and the reset overtakes the answer.
    """

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], bool]) -> None:
        """Wrap `transport`; `linger` is asked at close() whether to read on, and sees to the end of it."""
        self._transport = transport
        self._linger = linger
        self.lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more is to be written."""
        return self.lingering or self._transport.is_closing()

    def close(self) -> None:
        """Close; the second time at once."""
        if not self.is_closing() and self._linger():
            self.lingering = True
            if not self._transport.can_write_eof():  # TLS has no end of one side alone
                return
            try:
                self._transport.write_eof()
                return
            except OSError:  # the client is gone
                pass
        self._transport.close()


class Places:
    """How many connections there may be. Says so when they have run out, once until half of them are free again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._told = False

    def free(self, taken: int) -> bool:
        """Whether one more may come to those there are."""
        if taken < self._limit:
            self._told = self._told and taken > self._limit // 2
            return True
        if not self._told:
            log.warning("all %d connections are taken; new ones are reset until some end", self._limit)
            self._told = True
        return False


class Connection(H11Protocol):
    """One HTTP/1.1 connection."""

    limits = Limits()
    places = Places(limits.connections)
    _thrown = 0
    _owed: str | None = None
    _owing: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless there are too many already."""
        if not self.places.free(len(self.connections)):
            transport.abort()
            return
        self.conn = self._wire = Wire(self.limits.header_bytes)
        self._gentle = Gentle(transport, self._linger)
        super().connection_made(cast(asyncio.Transport, self._gentle))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End every timer."""
        if self.transport is None:  # turned away  # pyright: ignore[reportUnnecessaryComparison]
            return
        self._set_deadline(None, 0.0)
        self._end_stall()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read; the deadline for headers runs from their first byte and is not put off by later ones."""
        if self._owed == "rest":
            self._thrown += len(data)
            if self._thrown > LINGER_BYTES:
                self.transport.abort()
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self.transport.is_closing():
            self._watch()

    def on_response_complete(self) -> None:
        """Close a connection whose request was answered before its body had come, once the answer could be read."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.conn.their_state is h11.SEND_BODY:
            self._set_deadline("rest", LINGER)

    def shutdown(self) -> None:
        """Close if idle. A client that does not answer TLS's farewell is not waited for."""
        super().shutdown()
        if self.transport.is_closing() and not self.transport.can_write_eof():
            self.loop.call_later(FAREWELL, self.transport.abort)

    def _linger(self) -> bool:
        """Read on for a while before the close if the client is still sending; whoever answers it is done."""
        if self.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
            return False
        if self.cycle is not None and not self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.flow.resume_reading()
        self._set_deadline("rest", LINGER)
        return True

    def _watch(self) -> None:
        state = self.conn.their_state
        if state is h11.IDLE and self.timeout_keep_alive_task is None:
            self._set_deadline("headers", self.limits.header_time)
        elif state is not h11.SEND_BODY or self._owed != "rest":
            self._set_deadline(None, 0.0)

    def _set_deadline(self, owed: str | None, seconds: float) -> None:
        """Give the client so long to send what it owes; the same thing's deadline is never put off."""
        if owed == self._owed:
            return
        if self._owing is not None:
            self._owing.cancel()
        self._owed, self._thrown = owed, 0
        self._owing = None if owed is None else self.loop.call_later(seconds, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with a body of the one shape, unless an answer was begun, and close."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        error = self._wire.fault or HTTPError(msg, status=400, code="invalid_http")
        body = to_json(error_body(error))
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        for event in (h11.Response(status_code=error.status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def pause_writing(self) -> None:
        """The buffers are full: the client has some time to read."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.write_stall, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._end_stall()

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class Server(uvicorn.Server):
    """uvicorn's server without its ticking, with an orderly end, and with a deadline for TLS handshakes."""

    def __init__(self, app: FastAPI, tls: ssl.SSLContext | None = None) -> None:
        """Serve `app`; `tls`: with it connections are encrypted."""
        self._service: Service = app.state.service
        limits = self._service.limits
        protocol: Any = type("Connection", (Connection,), {"limits": limits, "places": Places(limits.connections)})
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="on",
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=5,
            backlog=1024,
        )
        super().__init__(config)
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections; a handshake that does not end is bounded as a head that does not."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise RuntimeError("the application did not start")

        def connection() -> asyncio.Protocol:
            protocol: Any = self.config.http_protocol_class
            return protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

        limits, tls = self._service.limits, self._tls
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(
                connection,
                sock=listener,
                ssl=tls,
                backlog=self.config.backlog,
                ssl_handshake_timeout=None if tls is None else limits.header_time,
                ssl_shutdown_timeout=None if tls is None else limits.write_stall,
            )
            for listener in sockets or []
        ]
        self.started = True

    async def main_loop(self) -> None:
        """Sleep until someone asks to stop; then let running requests finish, as long as the grace lasts."""
        self._loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._stop.wait()
        self._service.drain()
        try:
            async with asyncio.timeout(self._service.limits.grace):
                await self._service.idle.wait()
        except TimeoutError:
            self._service.cancel_all()

    def stop(self) -> None:
        """Ask for an orderly end; from any thread."""
        self.should_exit = True
        self._service.draining = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended already
                self._loop.call_soon_threadsafe(self._stop.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop in order on the first signal, at once on the second or while there is nothing to lose."""
        if self.should_exit or self._service.loading:
            os._exit(128 + sig)
        self.stop()


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises ConfigError in one line if the address cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(
            f"--host {host}: {error.strerror or error}; give an address of this machine", param="host"
        ) from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)  # with the protocol named, asyncio sets TCP_NODELAY
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        option = "host" if error.errno == errno.EADDRNOTAVAIL else "port"
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --{option}",
            param=option,
        ) from None
    return listener
