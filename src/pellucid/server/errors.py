"""Every error of the server, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

Law: a body is made from a PellucidError, and only here. What a client sent is named by field, never quoted; a fault of
ours says nothing of itself but the id of the request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
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


def error_response(error: PellucidError) -> JSONResponse:
    """Return the whole answer for an error: status, headers, body."""
    headers: dict[str, str] = {}
    if isinstance(error, CapacityError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
        headers["retry-after-ms"] = str(max(1, round(error.retry_after * 1000)))
    elif isinstance(error, HTTPError):
        headers = error.headers
    return JSONResponse(error_body(error), status_code=error.status, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    """Give every way in which a request can fail the same shape of answer."""
    app.add_exception_handler(PellucidError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(Exception, _bug)


async def _known(request: Request, error: Exception) -> Response:
    return error_response(cast(PellucidError, error))


async def _invalid(request: Request, error: Exception) -> Response:
    first = cast(RequestValidationError, error).errors()[0]
    return error_response(from_validation(first))


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
    return error_response(HTTPError(message, status=failure.status_code, code=code, headers=failure.headers))


async def _bug(request: Request, error: Exception) -> Response:
    request_id = str(request.scope.get("request_id", ""))
    response = error_response(
        PellucidError(f"The server failed on this request; its log has the cause under {request_id}")
    )
    response.headers["x-request-id"] = request_id
    return response


_CODES = {"missing": "missing_required_parameter", "not_served": "unsupported_parameter"}


def from_validation(error: Mapping[str, Any]) -> InvalidRequestError:
    """Turn pydantic's account of the first fault into ours: one line that names the field."""
    context = cast(Mapping[str, Any], error.get("ctx") or {})
    param: str | None = context.get("param") or param_of(error["loc"])
    kind = str(error["type"])
    if kind == "not_served":
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
