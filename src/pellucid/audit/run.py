"""One audit: every check in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psutil

from pellucid.audit import bounds, host, network, privacy, supply
from pellucid.audit.findings import Report
from pellucid.audit.target import Target, fields
from pellucid.errors import PellucidError, UnreachableError
from pellucid.server.keys import Scope


def audit(
    target: Target,
    *,
    second_key: str | None = None,
    scoped: Mapping[Scope, str] | None = None,
    slow: bool = True,
) -> Report:
    """Look at a server.

    Args:
        target: the server; its key should be one that may do everything.
        second_key: a key of another tenant, for the isolation canary.
        scoped: scope → a key that has it alone, to see what each opens.
        slow: also try what takes its time, 15 s in all.

    Raises UnreachableError if nobody answers, or it is another server that does.
    """
    health, version = target.ask("/health"), target.ask("/version")
    told = fields(version.json()).get("version")
    if health.status not in (200, 503) or (version.status == 200 and not isinstance(told, str)):
        hint = "" if target.tls or health.status else "; if it speaks TLS, give the address with https://"
        raise UnreachableError(
            f"{target.url} answers, but not as a Pellucid server does (/health: {health.status}){hint}"
        )
    report = Report(target.url, str(told or ""))
    process = target.process()
    checks: dict[str, Callable[[], None]] = {
        "sockets": lambda: network.check_sockets(target, process, report),
        "TLS": lambda: network.check_tls(target, report),
        "keys": lambda: network.check_keys(target, process, report),
        "scopes": lambda: network.check_scopes(target, scoped, report),
        "names": lambda: network.check_names(target, process, report),
        "bounds": lambda: bounds.check_bounds(target, report, slow=slow),
        "capacity": lambda: bounds.check_capacity(target, report),
        "isolation of tenants": lambda: privacy.check_tenants(target, second_key, report),
        "sizes of packets": lambda: privacy.check_stream(target, process, report),
        "logs": lambda: privacy.check_logs(target, process, report),
        "chat template": lambda: supply.check_template(target, report),
        "model files": lambda: supply.check_models(process, report),
        "libraries": lambda: supply.check_libraries(target, report),
        "process": lambda: host.check_process(process, report),
    }
    for name, check in checks.items():
        try:
            check()
        except (PellucidError, psutil.Error, OSError) as error:
            report.unchecked[name] = str(error)
    return report
