"""What one connection and one body may cost.

Law: each limit is checked before the cost is paid: bytes before they are kept, depth before it is parsed, time while it
passes. Limits on single fields stand in the schemas (openai.py), limits on work in the engine's configuration.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pellucid.server.errors import HTTPError, InvalidRequestError

if TYPE_CHECKING:
    from pellucid.server.service import Service


@dataclass(frozen=True)
class Limits:
    """Bounds of the server; times are in seconds."""

    header_bytes: int = 16 << 10
    header_time: float = 10.0
    """From the first byte (or the connection) to the end of the headers."""
    body_bytes: int = 8 << 20
    body_time: float = 30.0
    """From the end of the headers to the end of the body."""
    json_depth: int = 32
    write_stall: float = 30.0
    """How long a client may leave its answer unread, once the buffers are full."""
    connections: int = 1024
    deadline: float = 300.0
    """Longest a request may take as a whole; 0: no limit."""
    grace: float = 30.0
    """After a signal to stop: how long running requests have to finish."""
    exit_on_stall: float | None = None
    """Without a step of the engine, while there is work: when the process ends itself; None: never."""


_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def nests_deeper(body: bytes, limit: int) -> bool:
    """Whether arrays and objects of a JSON text nest deeper than `limit`, found without parsing it."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    brackets = np.frombuffer(_STRING.sub(b"", body).translate(None, _NOT_BRACKETS), np.uint8)
    depths = np.cumsum(np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1))
    return bool(len(depths)) and int(depths.max()) > limit


async def read_json(request: Request, limits: Limits) -> Any:
    """Read and parse the body of a request. Raises HTTPError (408, 413, 415) or InvalidRequestError (400)."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPError(
            "The body must be JSON: send the header Content-Type: application/json",
            status=415,
            code="unsupported_media_type",
        )
    if "content-encoding" in request.headers and request.headers["content-encoding"].lower() != "identity":
        raise HTTPError("A compressed body is not served; send it as it is", status=415, code="unsupported_encoding")
    body = await _read(request, limits)
    if nests_deeper(body, limits.json_depth):
        raise InvalidRequestError(
            f"The body nests more than {limits.json_depth} levels deep", param=None, code="invalid_json"
        )
    try:
        return from_json(body)
    except ValueError as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}", param=None, code="invalid_json") from None


async def _read(request: Request, limits: Limits) -> bytes:
    too_large = HTTPError(f"The body is larger than {limits.body_bytes} bytes", status=413, code="request_too_large")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limits.body_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_time):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise HTTPError(
            f"The body did not arrive within {limits.body_time:g} s", status=408, code="request_timeout"
        ) from None
    except ClientDisconnect:
        raise HTTPError("The client left", status=499, code="client_closed_request") from None
    return b"".join(parts)


class _Parsed(Request):
    """A request whose body was read and parsed already."""

    def __init__(self, request: Request, parsed: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._parsed = parsed

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> Any:
        return self._parsed


class JSONRoute(APIRoute):
    """A route whose body is read under the server's limits, then checked against its schema by FastAPI."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler."""
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler

        async def read_then_handle(request: Request) -> Response:
            service: Service = request.app.state.service
            parsed = await read_json(request, service.limits)
            if service.strict_requests and isinstance(parsed, dict):
                parsed["strict"] = True
            return await handler(_Parsed(request, await service.hide(parsed, request.scope)))

        return read_then_handle
