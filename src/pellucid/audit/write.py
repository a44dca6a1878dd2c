"""A report as JSON, and as SARIF 2.1.0, which code-scanning tools read."""

from __future__ import annotations

from typing import Any

from pellucid import __version__
from pellucid.audit.findings import RULES, Report, Severity

_LEVELS = {Severity.HIGH: "error", Severity.MEDIUM: "warning", Severity.LOW: "note", Severity.INFO: "note"}
_SCORES = {Severity.HIGH: "8.0", Severity.MEDIUM: "5.0", Severity.LOW: "2.0", Severity.INFO: "0.0"}


def as_json(report: Report) -> dict[str, Any]:
    """For --json."""
    findings = [
        {
            "rule": finding.rule,
            "severity": finding.severity.name.lower(),
            "title": RULES[finding.rule].title,
            "evidence": finding.evidence,
            "fix": finding.fix,
            "cwe": f"CWE-{RULES[finding.rule].cwe}",
            "owasp": RULES[finding.rule].owasp,
        }
        for finding in report.sorted()
    ]
    return {
        "url": report.url,
        "version": report.version,
        "worst": None if report.worst is None else report.worst.name.lower(),
        "findings": findings,
        "passed": report.passed,
        "unchecked": report.unchecked,
    }


def as_sarif(report: Report) -> dict[str, Any]:
    """For --sarif."""
    rules = [
        {
            "id": id,
            "shortDescription": {"text": rule.title},
            "helpUri": f"https://cwe.mitre.org/data/definitions/{rule.cwe}.html",
            "properties": {"tags": ["security", f"external/cwe/cwe-{rule.cwe}", rule.owasp]},
        }
        for id, rule in RULES.items()
    ]
    results = [
        {
            "ruleId": finding.rule,
            "ruleIndex": list(RULES).index(finding.rule),
            "level": _LEVELS[finding.severity],
            "message": {"text": f"{finding.evidence}. Fix: {finding.fix}"},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": report.url}}}],
            "properties": {"security-severity": _SCORES[finding.severity]},
        }
        for finding in report.sorted()
    ]
    driver = {"name": "pellucid audit", "semanticVersion": __version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
