"""What the audit log says of a request, and where it is said.

Law: nothing that a client may word is written but ids of the form that all ids have: a path that is not in the manifest
and a method that no route has are null. The routes that are open to all, as probes are, leave no line.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.errors import PellucidError
from pellucid.server.auditlog import AuditLog
from pellucid.server.errors import error_response, unavailable
from pellucid.server.keys import Key
from pellucid.server.manifest import ROUTES, path_of, route_of
from pellucid.server.records import Record

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_METHODS = {method for method, _ in ROUTES} | {"HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"}


class Audited:
    """ASGI middleware that has a line written for every request, and lets none in while that cannot be done."""

    def __init__(self, app: ASGIApp, *, log: AuditLog, rejected: Callable[[PellucidError], PellucidError]) -> None:
        """Write to `log` what `app` is asked; `rejected` is told of requests that are refused here."""
        self._app = app
        self._log = log
        self._rejected = rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and write down how it ended."""
        route = route_of(path_of(scope)) if scope["type"] == "http" else None
        if scope["type"] != "http" or ROUTES.get((scope["method"], route or "")) == "open":
            await self._app(scope, receive, send)
            return
        if (fault := self._log.fault) is not None:
            self._log.omit()
            await error_response(self._rejected(unavailable(fault)), scope)(scope, receive, send)
            return
        status: int | None = None

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        except Exception:
            status, scope["error_code"] = status or 500, PellucidError.code
            raise
        finally:
            self._log.write("request", **_fields(scope, route, status))


def _fields(scope: Scope, route: str | None, status: int | None) -> dict[str, Any]:
    """What is written of a request; `status` None: its client left before it was answered."""
    host, port = scope.get("client") or (None, None)
    target = scope.get("path_params", {}).get("id")
    record: Record | None = scope.get("record")
    return {
        "request_id": scope["request_id"],
        "method": scope["method"] if scope["method"] in _METHODS else None,
        "route": route,
        "target": target if isinstance(target, str) and _ID.fullmatch(target) else None,
        "client": host,
        "client_port": port,
        **_who(scope.get("key")),
        "status": status,
        "refused": scope.get("error_code"),
        "seconds": round(time.monotonic() - scope["began"], 6),
        "answer": None if record is None else _answer(record),
    }


def _who(key: Key | None) -> dict[str, Any]:
    """Null of all for one that was not let in, and where no key is asked for."""
    if key is None or not key.name:
        return {"key": None, "key_sha256": None, "tenant": None}
    return {"key": key.name, "key_sha256": key.public_id, "tenant": key.tenant}


def _answer(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "stream": record.stream,
        "shown": record.shown,
        "tools": len(record.tools),
        **asdict(record.asked),
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.answer_tokens,
        "finish_reason": record.finish_reason or None,
    }
