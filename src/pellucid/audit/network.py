"""Who can reach the server, and by what names: sockets, TLS, keys of each route, Host and Origin."""

from __future__ import annotations

import contextlib
import ssl
import time
import warnings
from typing import TYPE_CHECKING

import psutil

from pellucid.audit.findings import Report, Severity
from pellucid.audit.target import Target, fields, listening
from pellucid.errors import UnreachableError
from pellucid.server.auth import is_loopback
from pellucid.server.manifest import OPEN, ROUTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pellucid.server.keys import Scope

STRANGER = "attacker.example"
SOON = 14
"""Days before the end of a certificate."""
NEW_KEY = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"


def exposed(target: Target, process: psutil.Process | None) -> bool:
    """Whether others than this machine can reach the server."""
    if process is None:
        return not is_loopback(target.host)
    return any(not is_loopback(address) for address, port in listening(process) if port == target.port)


def check_sockets(target: Target, process: psutil.Process | None, report: Report) -> None:
    """The API's address is the only one on which the process listens, and it is encrypted where others reach it."""
    open_to_others = exposed(target, process)
    if process is None:
        report.unchecked["sockets"] = "the process is not on this machine, or may not be looked at"
    else:
        others = [f"{address}:{port}" for address, port in listening(process) if port != target.port]
        if others:
            wide = any(not is_loopback(other.rpartition(":")[0]) for other in others)
            report.add(
                "extra-socket",
                Severity.HIGH if wide else Severity.MEDIUM,
                f"process {process.pid} also listens on {', '.join(sorted(others))}",
                "find out what opened it (`ss -tlnp`); Pellucid itself opens none but the API's",
            )
        else:
            report.passed.append("one socket is open: the API's")
    if not target.tls and open_to_others:
        proxied = process is not None and behind_proxy(process)
        report.add(
            "plaintext",
            Severity.LOW if proxied else Severity.HIGH,
            f"{target.url} is plain HTTP, and not on loopback alone"
            + (", behind a proxy as it was told" if proxied else ""),
            "see to it that only the proxy reaches this address"
            if proxied
            else "serve with --ssl-certfile CERT --ssl-keyfile KEY, or leave --host out and put a proxy with TLS in "
            "front of it",
        )


def check_tls(target: Target, report: Report) -> None:
    """What is encrypted is so by a version of TLS that holds, and with a certificate that will not end soon."""
    if not target.tls:
        return
    with target.connect() as s:
        if not isinstance(s, ssl.SSLSocket):
            return
        version, end = s.version(), ssl.cert_time_to_seconds(str((s.getpeercert() or {})["notAfter"]))
    days = (end - time.time()) / 86400
    if days < SOON:
        report.add(
            "certificate-ends",
            Severity.MEDIUM,
            f"the certificate ends in {days:.0f} days; clients refuse it from then on",
            "renew it, put the new one in the place of the old, and send the process SIGHUP",
        )
    if _takes_old(target):
        report.add(
            "old-tls",
            Severity.HIGH,
            "a connection with TLS 1.1 or older was taken",
            "have what ends TLS there ask for 1.2 or later; `pellucid serve --ssl-certfile` does",
        )
    else:
        report.passed.append(f"the connection is encrypted ({version}), the certificate holds for {days:.0f} days")


def _takes_old(target: Target) -> bool:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")  # else this side refuses
    try:
        target.connect(old).close()
    except UnreachableError:
        return False
    return True


def behind_proxy(process: psutil.Process) -> bool:
    """Whether the server was told that a proxy with TLS stands before it."""
    with contextlib.suppress(psutil.Error, OSError):
        if "--behind-tls-proxy" in process.cmdline():
            return True
        return process.environ().get("PELLUCID_BEHIND_TLS_PROXY", "").lower() in ("1", "true", "t", "yes", "y", "on")
    return False


def routes(target: Target) -> Iterator[tuple[str, str]]:
    """(method, path) of everything that the server says it serves, and of what it might serve unsaid."""
    for path, methods in fields(fields(target.ask("/openapi.json").json()).get("paths")).items():
        for method in fields(methods):
            yield method.upper(), path.replace("{model}", "x").replace("{id}", "x")
    for path in ("/openapi.json", "/docs", "/redoc", "/", "/inspect/kv", "/debug", "/admin", "/v1/files"):
        yield "GET", path


def check_keys(target: Target, process: psutil.Process | None, report: Report) -> None:
    """Without the key, and with a wrong one, no route but the probes answers."""
    open_to_others = exposed(target, process)
    if target.ask("/v1/models", key=None).status == 200:
        report.add(
            "no-key",
            Severity.HIGH if open_to_others else Severity.LOW,
            "GET /v1/models answers 200 without a key"
            + ("" if open_to_others else "; every user and process of this machine can ask"),
            f'start it with a key: PELLUCID_API_KEY="$({NEW_KEY})" pellucid serve …',
        )
        return
    opened: list[str] = []
    for method, path in routes(target):
        body: dict[str, str] | None = {} if method == "POST" else None
        for key in (None, "wrong-key-of-the-audit"):
            status = target.ask(path, body, method=method, key=key).status
            if path not in OPEN and status not in (401, 403):
                opened.append(f"{method} {path} → {status}")
    for path in ("//v1/models", "/health/../v1/models", "/health/%2e%2e/v1/models", "/v1/models?x=/health"):
        status = target.ask(path, key=None).status
        if status not in (400, 401, 403, 404):
            opened.append(f"GET {path} → {status}")
    if opened:
        report.add(
            "open-route",
            Severity.HIGH,
            "without the key: " + ", ".join(sorted(set(opened))[:8]),
            "update Pellucid, or take what added the routes out; only /health and /ready answer without a key",
        )
    else:
        report.passed.append("every route but /health and /ready asks for the key, whatever the spelling of its path")
    if target.key is None:
        report.unchecked["what needs a key"] = "the server has keys and the audit got none; give --api-key"


def check_scopes(target: Target, scoped: Mapping[Scope, str] | None, report: Report) -> None:
    """A key of one scope is refused by every route that the manifest gives to another."""
    if target.key is None:
        return  # check_keys says so
    if scoped is None:
        report.unchecked["scopes"] = "it takes a key of each; `pellucid serve --strict` makes them for its own audit"
        return
    opened: list[str] = []
    for (method, route), access in ROUTES.items():
        path = route.replace("{model:path}", "x").replace("{id}", "x")
        body: dict[str, str] | None = {} if method == "POST" else None
        for scope, key in scoped.items():
            if access in ("open", "any", scope):
                continue
            status = target.ask(path, body, method=method, key=key).status
            if status != 403:
                opened.append(f"{method} {route} with the scope {scope} → {status}")
    if opened:
        report.add(
            "wrong-scope",
            Severity.HIGH,
            f"{len(opened)} routes are open to keys that lack their scope: " + ", ".join(opened[:8]),
            "update Pellucid, or take what answers before its gate out",
        )
    else:
        report.passed.append("a key of one scope opens nothing that belongs to another")


def check_names(target: Target, process: psutil.Process | None, report: Report) -> None:
    """No web page can reach the server: neither by a name that it made point here, nor from its own origin."""
    answered = target.ask("/v1/models", headers={"Host": STRANGER}).status == 200
    keyless = target.ask("/v1/models", key=None).status == 200
    if answered and (keyless or not exposed(target, process)):
        report.add(
            "any-host",
            Severity.HIGH if keyless else Severity.MEDIUM,
            f"GET /v1/models with Host: {STRANGER} answers 200",
            "name the hosts that may be used, each with --allowed-host NAME; without it only loopback's are",
        )
    elif not answered:
        report.passed.append("other names in Host are refused")
    answer = target.ask("/v1/models", headers={"Origin": f"https://{STRANGER}"})
    allowed = answer.headers.get("access-control-allow-origin")
    if answer.status == 200 or allowed:
        report.add(
            "any-origin",
            Severity.HIGH if keyless or allowed else Severity.MEDIUM,
            f"a request of https://{STRANGER} answers {answer.status}"
            + (f", with Access-Control-Allow-Origin: {allowed[:64]}" if allowed else ""),
            "take out what answers for it (a proxy that sets CORS headers?); Pellucid refuses other origins",
        )
    else:
        report.passed.append("pages of other origins are refused")
