"""What the audit can find, by rule: how bad, which known weakness, what to do.

Law: a finding has evidence that was seen, and the exact fix. Ids are stable: people filter by them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Severity(IntEnum):
    """How bad; at HIGH a server should not run."""

    INFO = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3


@dataclass(frozen=True)
class Rule:
    """A kind of fault."""

    title: str
    cwe: int
    owasp: str
    """Of OWASP's Top 10 for LLM applications, 2025."""


_EXPOSED, _SUPPLY, _UNBOUNDED = "LLM02:2025", "LLM03:2025", "LLM10:2025"

RULES: dict[str, Rule] = {
    "no-key": Rule("Anyone who reaches the server may use it", 306, _UNBOUNDED),
    "open-route": Rule("A route answers without the key", 306, _EXPOSED),
    "wrong-scope": Rule("A key opens what its scopes do not allow", 863, _EXPOSED),
    "any-host": Rule("Any name in the Host header is answered, so a web page can reach the server", 350, _EXPOSED),
    "any-origin": Rule("Pages of other origins may call the server", 346, _EXPOSED),
    "plaintext": Rule("Prompts and keys cross the network in plain text", 319, _EXPOSED),
    "old-tls": Rule("Connections with a version of TLS that is broken are taken", 327, _EXPOSED),
    "certificate-ends": Rule("The certificate is about to end", 298, _EXPOSED),
    "extra-socket": Rule("The process listens on more than the API's address", 668, _EXPOSED),
    "no-limit": Rule("A bound on what one request may cost is missing", 770, _UNBOUNDED),
    "over-capacity": Rule("One admitted request may take most of the server", 770, _UNBOUNDED),
    "shared-prefixes": Rule("One tenant's cached prompts can be noticed by another", 200, _EXPOSED),
    "stream-sizes": Rule("Sizes of packets tell the lengths of an answer's tokens", 203, _EXPOSED),
    "secret-logged": Rule("What a client sends stands in a log, a metric or an error", 532, _EXPOSED),
    "path-shown": Rule("The model's name tells a path of this machine", 209, _EXPOSED),
    "model-changed": Rule("The model file is not the one that was pulled", 494, _SUPPLY),
    "model-unpinned": Rule("Nothing says what the model file should be", 353, _SUPPLY),
    "model-writable": Rule("Others may change the model file while it is served", 732, _SUPPLY),
    "template-risk": Rule("The chat template does what no chat template needs", 1336, _SUPPLY),
    "root": Rule("The server runs as root", 250, _EXPOSED),
    "core-dumps": Rule("A crash would write prompts and keys to disk", 528, _EXPOSED),
    "key-file-mode": Rule("Others may read the file of the keys", 732, _EXPOSED),
    "key-on-command-line": Rule("The key stands on the command line, where every user sees it", 214, _EXPOSED),
    "old-dependency": Rule("A library has a known hole", 1395, _SUPPLY),
}


@dataclass(frozen=True)
class Finding:
    """One fault of this server."""

    rule: str
    severity: Severity
    evidence: str
    """What was seen."""
    fix: str
    """What to do, exactly."""


@dataclass
class Report:
    """All that one audit found."""

    url: str
    version: str = ""
    findings: list[Finding] = field(default_factory=list[Finding])
    passed: list[str] = field(default_factory=list[str])
    """What was tried and is as it should be."""
    unchecked: dict[str, str] = field(default_factory=dict[str, str])
    """What could not be tried → why."""

    def add(self, rule: str, severity: Severity, evidence: str, fix: str) -> None:
        """Note a fault."""
        self.findings.append(Finding(rule, severity, evidence, fix))

    @property
    def worst(self) -> Severity | None:
        """The worst of the findings."""
        return max((finding.severity for finding in self.findings), default=None)

    def sorted(self) -> list[Finding]:
        """The findings, the worst first."""
        return sorted(self.findings, key=lambda finding: (-finding.severity, finding.rule))
