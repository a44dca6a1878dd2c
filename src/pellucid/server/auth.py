"""Who may come in: the key, and the names under which the server answers to a browser.

Law: deny by default, on the path as it was sent, before anything is routed. What a route asks of a key stands in
manifest.py, who has which key in keys.py; who came in is the `key` of the request's scope from here on.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pellucid.errors import CapacityError, PellucidError
from pellucid.server.allowance import Allowances
from pellucid.server.errors import HTTPError, error_response
from pellucid.server.keys import ANYONE, Key, Keyring
from pellucid.server.manifest import ROUTES, methods_of, path_of, route_of


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


def bearer(headers: Headers) -> str | None:
    """Return the key that a request brings: its bearer token, or Anthropic's x-api-key; None if it brings none."""
    authorization = headers.get("authorization")
    if authorization is None:
        return headers.get("x-api-key")
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Gate:
    """ASGI middleware that lets a request in or answers 401, 403, 404, 405, 429 or 431."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keyring,
        allowances: Allowances,
        hosts: Iterable[str] | None,
        header_bytes: int,
        rejected: Callable[[PellucidError], object],
    ) -> None:
        """Guard `app`.

        Args:
            app: what is guarded.
            keys: of which clients must bring one, if there are any.
            allowances: what each key has left.
            hosts: names that Host and Origin may hold besides those of loopback; None: any, Host is not checked.
            header_bytes: most that all headers may hold.
            rejected: told of requests over their rate.
        """
        self._app = app
        self._keys = keys
        self._allowances = allowances
        self._header_bytes = header_bytes
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._rejected = rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer it here."""
        if scope["type"] == "http":
            try:
                self._check_names(scope)
                self._check_key(scope)
            except PellucidError as error:
                await error_response(error, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_names(self, scope: Scope) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > self._header_bytes:
            raise HTTPError(
                f"The headers are larger than {self._header_bytes} bytes", status=431, code="headers_too_large"
            )
        headers = Headers(scope=scope)
        if self._hosts is not None:
            named = headers.getlist("host")
            if len(named) != 1 or not self._known(host_of(named[0])):
                raise HTTPError(
                    "This server answers to loopback names only; for another name start it with --allowed-host NAME",
                    status=403,
                    code="host_not_allowed",
                )
        origin = headers.get("origin")
        if origin is not None and not self._may_come_from(origin, headers.get("host", "")):
            raise HTTPError("Requests from pages of other origins are refused", status=403, code="origin_not_allowed")

    def _check_key(self, scope: Scope) -> None:
        """Find who asks, and whether the manifest lets them; only then is a request counted."""
        route = route_of(path_of(scope))
        access = None if route is None else ROUTES.get((scope["method"], route))
        if access == "open":
            scope["key"] = ANYONE
            return
        key = scope["key"] = self._key(Headers(scope=scope))
        if route is None:
            raise HTTPError(f"Invalid URL ({scope['method']} {scope['path'][:256]})", status=404, code="not_found")
        if access is None:
            allowed = ", ".join(sorted(methods_of(route)))
            raise HTTPError(
                f"{scope['method'][:16]} is not allowed here; use {allowed}",
                status=405,
                code="method_not_allowed",
                headers={"allow": allowed},
            )
        if access != "any" and access not in key.scopes:
            raise HTTPError(
                f"This key lacks the scope {access}, which this route needs; it has {', '.join(sorted(key.scopes))}",
                status=403,
                code="insufficient_scope",
            )
        try:
            self._allowances.request(key)
        except CapacityError as error:
            self._rejected(error)
            raise

    def _key(self, headers: Headers) -> Key:
        """Who asks. Raises HTTPError (401)."""
        if not self._keys.required:
            return ANYONE
        given = bearer(headers)
        key = None if given is None else self._keys.find(given)
        if key is not None:
            return key
        raise HTTPError(
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
