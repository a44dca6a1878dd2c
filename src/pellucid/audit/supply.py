"""What was brought from elsewhere: the model file and its template, the libraries."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil
from jinja2 import Environment, TemplateError, nodes

from pellucid import __version__
from pellucid.audit.findings import Report, Severity
from pellucid.audit.target import Target, fields
from pellucid.models import registry

WEIGHTS = (".gguf", ".safetensors")
SAFE: dict[str, tuple[str, str]] = {
    "h11": ("0.16.0", "CVE-2025-43859"),
    "jinja2": ("3.1.6", "CVE-2025-27516"),
    "starlette": ("0.49.1", "CVE-2025-62727"),
    "pydantic": ("2.4.0", "CVE-2024-3772"),
    "certifi": ("2024.7.4", "CVE-2024-39689"),
    "idna": ("3.7", "CVE-2024-3651"),
    "requests": ("2.32.4", "CVE-2024-47081"),
    "urllib3": ("2.5.0", "CVE-2025-50181"),
}
"""Of what Pellucid stands on: the first version without a hole, and that hole's name."""


def check_models(process: psutil.Process | None, report: Report) -> None:
    """The files that are served are those that were pulled, and nobody else can write them."""
    files = [] if process is None else model_files(process)
    if not files:
        report.unchecked["model files"] = "no model file of the process can be seen from here"
    for path in files:
        writable = path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if writable:
            report.add(
                "model-writable",
                Severity.HIGH if writable & stat.S_IWOTH else Severity.MEDIUM,
                f"{path} has mode {stat.filemode(path.stat().st_mode)}; a change shows in answers at once",
                f"chmod go-w {path}",
            )
        due, got = expected(path), digest(path)
        if due is None and got not in {row.sha256 for row in registry.MODELS}:
            report.add(
                "model-unpinned",
                Severity.INFO,
                f"{path} has SHA-256 {got}; no record of a pull is beside it",
                "compare the digest with its publisher's, or bring the model with `pellucid pull`, which records it",
            )
        elif due not in (None, got):
            report.add(
                "model-changed",
                Severity.HIGH,
                f"{path} has SHA-256 {got}, and was pulled with {due}",
                "stop the server and bring the model anew: pellucid pull --force NAME",
            )
        else:
            report.passed.append(f"{path.name} has the digest that it was pulled with")


def model_files(process: psutil.Process) -> list[Path]:
    """Files of weights that a process has open or mapped."""
    paths: set[str] = set()
    try:
        paths = {file.path for file in process.open_files()}
        paths |= {part.path for part in process.memory_maps()}
    except (psutil.Error, OSError, AttributeError):  # macOS has no memory_maps
        pass
    return sorted(path for path in map(Path, paths) if path.suffix in WEIGHTS and path.is_file())


def expected(path: Path) -> str | None:
    """The digest that a file was pulled with, by the record beside it; None: there is none."""
    for folder in list(path.parents)[:3]:
        try:
            record = fields(json.loads((folder / "model.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
        for file in record.get("files", []):
            if folder / str(fields(file).get("path")) == path:
                return fields(file).get("sha256")
    return None


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_template(target: Target, report: Report) -> None:
    """The chat template only writes a conversation."""
    answer = target.ask("/tokenizer_info")
    source = fields(answer.json()).get("chat_template")
    if answer.status != 200:
        report.unchecked["chat template"] = f"/tokenizer_info answers {answer.status}"
        return
    if not isinstance(source, str):
        report.passed.append("there is no chat template")
        return
    risks: dict[Severity, list[str]] = {}
    for severity, what in template_risks(source):
        risks.setdefault(severity, []).append(what)
    for severity, what in risks.items():
        report.add(
            "template-risk",
            severity,
            f"the template {'; it '.join(what[:8])}",
            "do not serve this file; its publisher means harm (the sandbox refuses it, other programs may not)"
            if severity is Severity.HIGH
            else "read the template (`curl /tokenizer_info`) and ask its publisher what this is for",
        )
    if not risks:
        report.passed.append("the chat template only writes a conversation")


def template_risks(source: str) -> Iterator[tuple[Severity, str]]:
    """What a template does that only an attack needs, or that changes what a conversation says."""
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"]).parse(_plain(source))
    except TemplateError as error:
        yield Severity.MEDIUM, f"cannot be parsed: {error}"
        return
    for node in tree.find_all((nodes.Getattr, nodes.Getitem, nodes.Filter, nodes.Const)):
        name = _reached(node)
        if name is not None and name.startswith("__"):
            yield Severity.HIGH, f"reaches for {name[:64]} (line {node.lineno}), which leads out of a sandbox"
    for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
        yield Severity.HIGH, f"loads another file (line {node.lineno})"
    for node in tree.find_all(nodes.If):
        for word in _watched(node.test):
            yield Severity.MEDIUM, f"does something else when a message says {word[:64]!r} (line {node.lineno})"


def _plain(source: str) -> str:
    """Hugging Face's own tag says nothing here."""
    for tag in ("generation", "endgeneration"):
        for left in ("{%", "{%-"):
            for right in ("%}", "-%}"):
                source = source.replace(f"{left} {tag} {right}", "")
    return source


def _reached(node: nodes.Node) -> str | None:
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        return node.value
    return None


def _watched(test: nodes.Node) -> Iterator[str]:
    """Words of a human language that a condition looks for in a message: neither tags nor names of fields."""
    for compare in [test, *test.find_all(nodes.Compare)]:
        if not isinstance(compare, nodes.Compare):
            continue
        for operand in compare.ops:
            looks_into = operand.op == "in" and isinstance(operand.expr, nodes.Getattr | nodes.Getitem | nodes.Name)
            word = compare.expr.value if isinstance(compare.expr, nodes.Const) else None
            if looks_into and isinstance(word, str) and "<" not in word and " " in word.strip():
                yield word


def check_libraries(target: Target, report: Report) -> None:
    """No library that this installation stands on has a hole that was known when this version was made."""
    version = fields(target.ask("/version").json()).get("version")
    if version != __version__:
        report.unchecked["libraries"] = "the server is another version than this command; audit it where it runs"
        return
    for name, (safe, hole) in SAFE.items():
        try:
            have = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if _numbers(have) < _numbers(safe):
            report.add("old-dependency", Severity.MEDIUM, f"{name} {have} has {hole}", f"pip install '{name}>={safe}'")
    report.passed.append(f"{len(SAFE)} libraries were held against known holes; pip-audit knows today's")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())
