"""Every error of the server, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}; under /v1/messages in
Anthropic's: {"type": "error", "error": {"type", "message"}}.

Law: a body is made from a PellucidError, and only here. What a client sent is named by field, never quoted; a fault of
ours says nothing of itself but the id of the request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope
from typing_extensions import TypedDict

from pellucid.errors import CapacityError, PellucidError, RequestError


class ErrorObject(TypedDict):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """Body of every answer that is an error."""

    error: ErrorObject


class AnthropicErrorObject(TypedDict):
    """What went wrong."""

    type: str
    message: str


class AnthropicErrorBody(TypedDict):
    """Body of every answer under /v1/messages that is an error, and of the event that ends a stream with one."""

    type: Literal["error"]
    error: AnthropicErrorObject


class HTTPError(PellucidError):
    """An error of the transport rather than of the engine: it brings its own status."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        type: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.type = type
        self.headers = dict(headers or {})


class InvalidRequestError(RequestError):
    """A body that does not fit its schema; `code` says in which way."""

    def __init__(self, message: str, *, param: str | None, code: str) -> None:
        super().__init__(message, param=param)
        self.code = code


def unavailable(message: str, *, retry_after: int = 1) -> HTTPError:
    """Return the 503 of a server that does not take work at the moment."""
    headers = {"retry-after": str(retry_after)}
    return HTTPError(message, status=503, code="unavailable", type="server_error", headers=headers)


def error_body(error: PellucidError) -> ErrorBody:
    """Return the body for an error."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error_body(error: PellucidError) -> AnthropicErrorBody:
    """Return the body for an error, as Anthropic's clients read it."""
    other = "api_error" if error.status >= 500 else "invalid_request_error"
    return {
        "type": "error",
        "error": {"type": _ANTHROPIC_TYPES.get(error.status, other), "message": error.message},
    }


def error_response(error: PellucidError, scope: Scope) -> JSONResponse:
    """Return the whole answer for an error: status, headers, body; the request's path tells which client reads it.

    The scope has the error's code from here on, for those who write down how requests end.
    """
    headers: dict[str, str] = {}
    if isinstance(error, CapacityError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
        headers["retry-after-ms"] = str(max(1, round(error.retry_after * 1000)))
    elif isinstance(error, HTTPError):
        headers = error.headers
    scope["error_code"] = error.code
    anthropic = scope["path"].startswith("/v1/messages")
    body = anthropic_error_body(error) if anthropic else error_body(error)
    return JSONResponse(body, status_code=error.status, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    """Give every way in which a request can fail the same shape of answer."""
    app.add_exception_handler(PellucidError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(Exception, _bug)


async def _known(request: Request, error: Exception) -> Response:
    return error_response(cast(PellucidError, error), request.scope)


async def _invalid(request: Request, error: Exception) -> Response:
    first = cast(RequestValidationError, error).errors()[0]
    return error_response(from_validation(first), request.scope)


async def _routing(request: Request, error: Exception) -> Response:
    failure = cast(HTTPException, error)
    if failure.status_code == 404:
        message, code = f"Invalid URL ({request.method} {request.url.path[:256]})", "not_found"
    elif failure.status_code == 405:
        allowed = (failure.headers or {}).get("Allow", "")
        message, code = (
            f"{request.method[:16]} is not allowed here; use {allowed or 'another method'}",
            "method_not_allowed",
        )
    else:
        message, code = str(failure.detail), "invalid_request"
    known = HTTPError(message, status=failure.status_code, code=code, headers=failure.headers)
    return error_response(known, request.scope)


async def _bug(request: Request, error: Exception) -> Response:
    request_id = str(request.scope.get("request_id", ""))
    response = error_response(
        PellucidError(f"The server failed on this request; its log has the cause under {request_id}"), request.scope
    )
    response.headers["x-request-id"] = request_id
    return response


_CODES = {
    "missing": "missing_required_parameter",
    "not_served": "unsupported_parameter",
    "unknown": "unknown_parameter",
}


def from_validation(error: Mapping[str, Any]) -> InvalidRequestError:
    """Turn pydantic's account of the first fault into ours: one line that names the field."""
    context = cast(Mapping[str, Any], error.get("ctx") or {})
    param: str | None = context.get("param") or param_of(error["loc"])
    kind = str(error["type"])
    if kind in ("not_served", "unknown"):
        message = str(error["msg"])
    elif kind == "missing":
        message = f"Missing required parameter: {param}" if param else "Missing body: send a JSON object"
    else:
        message = f"{param}: {error['msg']}" if param else f"The body is not as it should be: {error['msg']}"
    code = _CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")
    return InvalidRequestError(message, param=param, code=code)


def param_of(location: Sequence[int | str]) -> str | None:
    """Write the place of a fault as people do: ("body", "messages", 0, "role") is messages[0].role."""
    path = ""
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part[:64]}" if path else part[:64]
    return path or None
