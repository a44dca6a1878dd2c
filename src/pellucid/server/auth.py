"""Who may come in: the key, and the names under which the server answers to a browser.

Law: deny by default, on the path as it was sent, before anything is routed. Only the probes in OPEN need no key. A key
is kept as a digest and compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pellucid.errors import ConfigError
from pellucid.server.errors import HTTPError, error_response
from pellucid.server.routes import page

OPEN = frozenset({"/health", "/ready", *page.FILES})


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine only."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def host_of(authority: str) -> str:
    """Return the host of "host", "host:port" or "[address]:port", in lower case; "" if it is none of these."""
    try:
        parts = urlsplit("//" + authority)
        _ = parts.port
    except ValueError:
        return ""
    if parts.path or parts.query or parts.fragment or "@" in authority:
        return ""
    return (parts.hostname or "").rstrip(".")


class Key:
    """An API key of which only a digest is kept."""

    def __init__(self, text: str) -> None:
        if len(text) < 8 or not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigError(
                "the API key must be 8 or more printable ASCII characters without spaces; "
                "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
                param="api_key",
            )
        self._digest = hashlib.sha256(text.encode()).digest()

    def matches(self, token: str) -> bool:
        """Whether this is the key."""
        given = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(given, self._digest)

    def __repr__(self) -> str:
        return "Key(…)"


def bearer(headers: Headers) -> str | None:
    """Return the key that a request brings: its bearer token, or Anthropic's x-api-key; None if it brings none."""
    authorization = headers.get("authorization")
    if authorization is None:
        return headers.get("x-api-key")
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Gate:
    """ASGI middleware that lets a request in or answers 401, 403 or 431."""

    def __init__(self, app: ASGIApp, *, key: Key | None, hosts: Iterable[str] | None, header_bytes: int) -> None:
        """Guard `app`.

        Args:
            key: what clients must bring; None: nothing.
            hosts: names that Host and Origin may hold besides those of loopback; None: any, Host is not checked.
            header_bytes: most that all headers may hold.
        """
        self._app = app
        self._key = key
        self._header_bytes = header_bytes
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer it here."""
        if scope["type"] == "http":
            error = self._fault(scope)
            if error is not None:
                await error_response(error, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _fault(self, scope: Scope) -> HTTPError | None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._header_bytes:
            return HTTPError(
                f"The headers are larger than {self._header_bytes} bytes", status=431, code="headers_too_large"
            )
        headers = Headers(scope=scope)
        if self._hosts is not None:
            named = headers.getlist("host")
            if len(named) != 1 or not self._known(host_of(named[0])):
                return HTTPError(
                    "This server answers to loopback names only; for another name start it with --allowed-host NAME",
                    status=403,
                    code="host_not_allowed",
                )
        origin = headers.get("origin")
        if origin is not None and not self._may_come_from(origin, headers.get("host", "")):
            return HTTPError("Requests from pages of other origins are refused", status=403, code="origin_not_allowed")
        raw_path = scope.get("raw_path") or scope["path"].encode()
        if self._key is None or raw_path.decode("latin-1") in OPEN:
            return None
        given = bearer(headers)
        if given is not None and self._key.matches(given):
            return None
        return HTTPError(
            "Incorrect API key provided"
            if given is not None
            else "Missing API key: send the header Authorization: Bearer KEY",
            status=401,
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )

    def _known(self, host: str) -> bool:
        return is_loopback(host) or host in (self._hosts or ())

    def _may_come_from(self, origin: str, host: str) -> bool:
        try:
            authority = urlsplit(origin).netloc
        except ValueError:
            return False
        return authority.lower() == host.lower() if self._hosts is None else self._known(host_of(authority))
