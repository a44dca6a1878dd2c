"""`pellucid audit`: how safe a running server is.

Law: exit code 1 if anything High was found; what could not be checked is said, never counted as passed.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.cli import options

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from pellucid.audit.findings import Report
    from pellucid.server.keys import Lent, Scope

HIGH = 1
"""Exit code."""


def audit(
    url: Annotated[str, typer.Argument(envvar="PELLUCID_URL", help="Address of the server")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="PELLUCID_API_KEY", help="A key that may do everything; better in the variable")
    ] = None,
    second_key: Annotated[
        str | None,
        typer.Option(envvar="PELLUCID_SECOND_KEY", help="A key of another tenant, to see whether tenants are apart"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what takes its time (15 s)")] = False,
    as_json: options.Json = False,
    sarif: Annotated[bool, typer.Option("--sarif", help="Write SARIF, for code scanning, to stdout")] = False,
) -> None:
    """Look for security faults of a running server, by asking it and looking at its process. Exit code 1: High ones."""
    from pellucid.audit.findings import Severity
    from pellucid.audit.run import audit as look
    from pellucid.audit.target import Target
    from pellucid.audit.write import as_json as json_of
    from pellucid.audit.write import as_sarif

    report = look(Target(url, api_key), second_key=second_key, slow=not quick)
    if sarif or as_json:
        print(json.dumps(as_sarif(report) if sarif else json_of(report), indent=2))
    else:
        from rich.console import Console

        console = Console(width=None if sys.stdout.isatty() else 110)
        console.print(picture(report))
    if report.worst is Severity.HIGH:
        raise typer.Exit(HIGH)


def refuse_high(url: str, keys: Lent | None, certificate: Path | None) -> None:
    """Raise ConfigError if a quick audit finds anything High; it says each fault and its fix."""
    from pellucid.audit.findings import RULES, Severity
    from pellucid.audit.run import audit as look
    from pellucid.audit.target import Target
    from pellucid.errors import ConfigError

    if keys is None:
        report = look(Target(url, None, certificate=certificate), slow=False)
    else:
        target = Target(url, keys.first.reveal(), certificate=certificate)
        scoped: dict[Scope, str] = {scope: key.reveal() for scope, key in keys.scoped.items()}
        report = look(target, second_key=keys.second.reveal(), scoped=scoped, slow=False)
    high = [finding for finding in report.sorted() if finding.severity is Severity.HIGH]
    if high:
        told = "; ".join(f"{RULES[f.rule].title} ({f.evidence}): {f.fix}" for f in high)
        raise ConfigError(f"--strict: the audit found {len(high)} High. {told}", param="strict")


_STYLES = {"HIGH": "bold red", "MEDIUM": "yellow", "LOW": "cyan", "INFO": "dim"}


def picture(report: Report) -> RenderableType:
    """The report for people: what to mend first, then what is well, then what is not known."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from pellucid.audit.findings import RULES, Severity

    lines: list[RenderableType] = []
    for finding in report.sorted():
        rule, name = RULES[finding.rule], finding.severity.name
        lines.append(Text.assemble((f"{name:<7}", _STYLES[name]), (rule.title, "bold")))
        lines.append(Padding(Text(finding.evidence), (0, 0, 0, 7)))
        lines.append(Padding(Text.assemble(("fix: ", "bold"), finding.fix), (0, 0, 0, 7)))
        lines.append(Padding(Text(f"{finding.rule} · CWE-{rule.cwe} · OWASP {rule.owasp}", "dim"), (0, 0, 1, 7)))
    lines += [Padding(Text.assemble(("ok     ", "green"), what), (0, 0, 0, 0)) for what in report.passed]
    lines += [Text.assemble(("?      ", "magenta"), f"{what}: {why}") for what, why in report.unchecked.items()]
    counts = {s: sum(finding.severity is s for finding in report.findings) for s in reversed(Severity)}
    told = ", ".join(f"{count} {severity.name.lower()}" for severity, count in counts.items() if count) or "nothing"
    whole = f"{report.url} (pellucid {report.version or '?'}): found {told}; {len(report.passed)} ok"
    whole += f"; {len(report.unchecked)} not checked" if report.unchecked else ""
    return Group(*lines, Text(""), Text(whole, "bold"))
