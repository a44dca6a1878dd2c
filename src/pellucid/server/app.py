"""The application: routes behind a gate, over one service.

Law: `create_app` only joins parts. Every way in passes the request's id, then the gate, then the router; every way out
has a body of one shape.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid import __version__
from pellucid.secret import Secret
from pellucid.server.audited import Audited
from pellucid.server.auditlog import AuditLog
from pellucid.server.auth import Gate
from pellucid.server.errors import install_error_handlers
from pellucid.server.keys import Keyring
from pellucid.server.limits import Limits
from pellucid.server.routes import chat, completions, embeddings, messages, models, page, probes, responses, tokens
from pellucid.server.service import Service

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.pii.find import Finder

_GOOD_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


def create_app(
    llm: LLM | None,
    *,
    name: str | None = None,
    api_key: str | None = None,
    keys: Keyring | None = None,
    allowed_hosts: Iterable[str] | None = (),
    limits: Limits | None = None,
    inspect: bool = False,
    private_stream: bool = False,
    strict_requests: bool = False,
    pii: Finder | None = None,
    audit_log: AuditLog | None = None,
) -> FastAPI:
    """Make the application for a model.

    Args:
        llm: the loaded model; None: it comes later, through app.state.service.attach.
        name: under which it is served; None: llm.name.
        api_key: what clients must bring as a bearer token; None: nothing.
        keys: instead of `api_key`, several, each with what it may do.
        allowed_hosts: names the Host header may hold besides those of loopback; None: any.
        limits: bounds; None: the defaults.
        inspect: serve /inspect, which replays prompts and looks into them.
        private_stream: packets of no stream tell of its tokens, whether the client asks for it or not.
        strict_requests: fields that nobody knows are refused, whether the client asks for it or not.
        pii: of the personal data that the model does not get to see; None: it sees all.
        audit_log: where every request is written down; the caller closes it.
    """
    service = Service(
        name,
        limits or Limits(),
        inspect=inspect,
        private_stream=private_stream,
        strict_requests=strict_requests,
        pii=pii,
        audit_log=audit_log,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        if llm is not None:
            service.attach(llm)
        yield
        service.stop()

    app = FastAPI(
        title="Pellucid",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from another host; ours is static/docs.html
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.add_middleware(
        Gate,
        keys=keys or Keyring(None if api_key is None else Secret(api_key)),
        allowances=service.allowances,
        hosts=allowed_hosts,
        header_bytes=service.limits.header_bytes,
        rejected=service.turned_away,
    )
    if audit_log is not None:
        app.add_middleware(Audited, log=audit_log, rejected=service.turned_away)
    app.add_middleware(Head)
    app.add_middleware(RequestId)
    for module in (chat, completions, embeddings, responses, messages, models, tokens, probes, page):
        app.include_router(module.router)
    if inspect:
        from pellucid.server.routes import anatomy, engine
        from pellucid.server.routes import inspect as looking

        app.include_router(anatomy.router)
        app.include_router(engine.router)
        app.state.traces = looking.Traces()
        app.include_router(looking.router)
    install_error_handlers(app)
    return app


class Head:
    """ASGI middleware: HEAD is answered wherever GET is, as GET without its body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, send_head)


class RequestId:
    """ASGI middleware: takes over the client's x-request-id if it is a decent one, else draws one; answers carry it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _GOOD_ID.fullmatch(given) else uuid4().hex
        scope["request_id"] = request_id
        scope["began"] = time.monotonic()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
