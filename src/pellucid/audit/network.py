"""Who can reach the server, and by what names: sockets, TLS, keys of each route, Host and Origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from pellucid.audit.findings import Report, Severity
from pellucid.audit.target import Target, fields, listening
from pellucid.server.auth import is_loopback
from pellucid.server.manifest import OPEN

if TYPE_CHECKING:
    from collections.abc import Iterator

STRANGER = "attacker.example"
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
    if target.tls:
        report.passed.append("the connection is encrypted")
    elif open_to_others:
        proxied = process is not None and behind_proxy(process)
        report.add(
            "plaintext",
            Severity.LOW if proxied else Severity.HIGH,
            f"{target.url} is plain HTTP, and not on loopback alone"
            + (", behind a proxy as it was told" if proxied else ""),
            "see to it that only the proxy reaches this address"
            if proxied
            else "serve loopback (leave --host out) and put a proxy with TLS in front of it",
        )


def behind_proxy(process: psutil.Process) -> bool:
    """Whether the server was told that a proxy with TLS stands before it."""
    return "--behind-tls-proxy" in process.cmdline() or "PELLUCID_BEHIND_TLS_PROXY" in _variables(process)


def _variables(process: psutil.Process) -> set[str]:
    try:
        return set(process.environ())
    except (psutil.Error, OSError):
        return set()


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
