"""What one client could learn of another, or an observer of both: cached prompts, sizes of packets, logs."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import psutil

from pellucid.audit.findings import Report, Severity
from pellucid.audit.network import exposed
from pellucid.audit.target import Answer, Target, fields

LOG_TAIL = 4 << 20
"""Bytes of a log that are searched, from its end."""


def check_tenants(target: Target, second: str | None, report: Report) -> None:
    """A canary: a prompt that one tenant has just sent is not found cached by another.

    The tenants are those of two keys; without a second key, two salts of the one.
    """
    prompt = f"audit {secrets.token_hex(200)}"
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
    ours = [target.ask("/v1/completions", body), target.ask("/v1/completions", body)]
    if any(answer.status != 200 for answer in ours):
        report.unchecked["isolation of tenants"] = f"a completion answers {ours[0].status}"
        return
    if second is not None:
        theirs, who = target.ask("/v1/completions", body, key=second), "another key"
    else:
        first = target.ask("/v1/completions", body | {"cache_salt": secrets.token_hex(16)})
        theirs, who = target.ask("/v1/completions", body | {"cache_salt": secrets.token_hex(16)}), "another salt"
        if first.status != 200:
            report.unchecked["isolation of tenants"] = "it takes a second key (--second-key), of another tenant"
            return
    if theirs.status != 200:
        report.unchecked["isolation of tenants"] = f"{who} answers {theirs.status}"
    elif cached(theirs) > 0:
        report.add(
            "shared-prefixes",
            Severity.HIGH,
            f"of a prompt that one tenant sent, {who} found {cached(theirs)} tokens cached",
            "give each tenant a key of its own; until then serve with --no-prefix-cache",
        )
    else:
        report.passed.append(f"a prompt cached for one tenant ({cached(ours[1])} tokens) is not found by {who}")


def cached(answer: Answer) -> int:
    """How many tokens of the prompt were found cached."""
    details = fields(fields(fields(answer.json()).get("usage")).get("prompt_tokens_details"))
    count = details.get("cached_tokens")
    return count if isinstance(count, int) else 0


def check_stream(target: Target, process: psutil.Process | None, report: Report) -> None:
    """A fingerprint: whether the packets of a stream differ in size as its tokens do."""
    body = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": True}
    sizes = target.ask("/v1/completions", body).chunks
    if len(sizes) < 3:
        report.unchecked["sizes of packets"] = "no stream came in parts"
        return
    if len(set(sizes)) == 1:
        report.passed.append(f"every packet of a stream has {sizes[0]} bytes")
        return
    report.add(
        "stream-sizes",
        Severity.MEDIUM if exposed(target, process) else Severity.INFO,
        f"{len(sizes)} packets of a stream have {len(set(sizes))} sizes, from {min(sizes)} to {max(sizes)} bytes",
        "serve with --private-stream, or let clients ask with stream_options.include_obfuscation",
    )


def check_logs(target: Target, process: psutil.Process | None, report: Report) -> None:
    """A planted secret, sent everywhere a client can write, shows in no error, no metric and no log."""
    secret = f"planted{secrets.token_hex(12)}"
    sent = [
        target.ask("/v1/completions", {"prompt": secret, "max_tokens": 1, "user": secret}),
        target.ask("/v1/completions", {"prompt": secret, "temperature": secret}),
        target.ask("/v1/chat/completions", {"messages": [{"role": secret, "content": secret}]}),
        target.ask("/v1/completions", raw_body=f'{{"prompt": "{secret}'.encode()),
        target.ask("/v1/models", key=secret),
        target.ask("/v1/models", headers={"X-Audit": secret, "User-Agent": secret, "Cookie": secret}),
    ]
    where = [f"the error {answer.status}" for answer in sent if answer.status >= 400 and secret.encode() in answer.body]
    where += ["/metrics"] * (secret.encode() in target.ask("/metrics").body)
    logs = [] if process is None else written(process)
    where += [str(path) for path in logs if secret.encode() in tail(path)]
    if where:
        report.add(
            "secret-logged",
            Severity.HIGH,
            f"what a client sent stands in {', '.join(sorted(set(where)))}",
            "turn off what logs requests (a wrapper, a proxy, a debug level); Pellucid logs no content; delete the log",
        )
    else:
        report.passed.append(f"a planted secret shows in no error, no metric and in none of {len(logs)} logs")
    if not logs:
        report.unchecked["logs"] = "the process writes to no file that can be read here"


def written(process: psutil.Process) -> list[Path]:
    """Regular files that a process has open to write to, its standard streams included."""
    paths: set[Path] = set()
    try:
        paths = {Path(file.path) for file in process.open_files() if getattr(file, "mode", "r") != "r"}
        paths |= {Path(f"/proc/{process.pid}/fd/{number}").resolve() for number in (1, 2)}
    except (psutil.Error, OSError):
        pass
    return sorted(path for path in paths if path.is_file() and os.access(path, os.R_OK))


def tail(path: Path) -> bytes:
    """The end of a file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL))
            return file.read()
    except OSError:
        return b""
