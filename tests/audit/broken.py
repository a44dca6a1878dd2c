"""A server over the toy model that is broken on purpose: python broken.py FAULT FOLDER [words of a command line].

It prints its port and serves until it is told to stop. `sound` breaks nothing.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pellucid.server.app import create_app
from pellucid.server.limits import Limits
from pellucid.server.serve import _leave_no_core
from pellucid.server.transport import Server, bind
from toymodel import TEMPLATE, toy_llm

KEY = "sk-broken-0123456789"
LOOSE = Limits(header_bytes=1 << 30, body_bytes=1 << 40, json_depth=1 << 20)


class Wrapped:
    """The application behind something that a careless operator put before it."""

    def __init__(self, app: Any, fault: str) -> None:
        self.app, self.state, self.fault = app, app.state, fault

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.fault == "open-route" and scope["type"] == "http" and scope["path"] == "/admin":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"welcome"})
            return

        async def logged() -> Any:
            message = await receive()
            if self.fault == "secret-logged":
                print(message.get("body"), file=sys.stderr, flush=True)
            return message

        async def allowing(message: Any) -> None:
            if self.fault == "any-origin" and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"access-control-allow-origin", b"*")]
            await send(message)

        await self.app(scope, logged, allowing)


def main(fault: str, folder: Path) -> None:
    logging.disable()
    _leave_no_core()
    template = TEMPLATE
    if fault == "template-risk":
        template += "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    key = KEY if fault in ("plaintext", "open-route", "key-on-command-line", "key-file-mode") else None
    wide = fault in ("plaintext", "no-key")
    keep: list[Any] = []
    if fault == "core-dumps":
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    if fault == "extra-socket":
        keep.append(socket.create_server(("0.0.0.0", 0)))
    if fault in ("model-changed", "model-writable"):
        keep.append((folder / "toy.gguf").open("rb"))
    with toy_llm(template=template, max_seqs=32) as llm:
        hosts = None if fault in ("any-host", "plaintext", "no-key") else ()
        limits = LOOSE if fault == "no-limit" else Limits()
        app = create_app(llm, api_key=key, allowed_hosts=hosts, limits=limits)
        listener = bind("0.0.0.0" if wide else "127.0.0.1", 0)
        print(listener.getsockname()[1], flush=True)
        server = Server(Wrapped(app, fault))  # type: ignore[arg-type]
        asyncio.run(server.serve(sockets=[listener]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
