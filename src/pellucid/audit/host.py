"""The process as the system sees it: who it is, what a crash would leave, what stands on its command line."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import psutil

from pellucid.audit.findings import Report, Severity
from pellucid.server.tls import OTHERS

KEY_OPTIONS = ("--api-key",)
KEY_FILES = {"--api-key-file": "PELLUCID_API_KEY_FILE", "--ssl-keyfile": "PELLUCID_SSL_KEYFILE"}
"""Option → its variable."""


def check_process(process: psutil.Process | None, report: Report) -> None:
    """It is nobody special, leaves no core, and its keys are its own."""
    if process is None:
        report.unchecked["process"] = "it is not on this machine, or may not be looked at"
        return
    try:
        _who(process, report)
        _keys(process, report)
    except (psutil.Error, OSError) as error:
        report.unchecked["process"] = f"the system refuses to tell: {error}"


def _who(process: psutil.Process, report: Report) -> None:
    root = sys.platform != "win32" and process.uids().effective == 0
    cores = sys.platform == "linux" and process.rlimit(psutil.RLIMIT_CORE)[0] != 0
    if root:
        report.add(
            "root",
            Severity.MEDIUM,
            f"process {process.pid} has uid 0",
            "run it as a user of its own: deploy/systemd/pellucid.service and deploy/Containerfile do",
        )
    if cores:
        report.add(
            "core-dumps",
            Severity.HIGH if root else Severity.MEDIUM,
            f"the limit on core files of process {process.pid} is {process.rlimit(psutil.RLIMIT_CORE)[0]}, not 0",
            "do not raise it after the start: `pellucid serve` sets it to 0 (ulimit -c 0)",
        )
    if not root and not cores:
        report.passed.append("it does not run as root, and leaves no core")


def _keys(process: psutil.Process, report: Report) -> None:
    words = process.cmdline()
    options = [option for option in KEY_OPTIONS if _value(words, option) is not None]
    for option in options:
        report.add(
            "key-on-command-line",
            Severity.HIGH,
            f"process {process.pid} was started with {option}; `ps` shows the key to every user",
            "change it, and give the new one as PELLUCID_API_KEY in the environment, or in a file of mode 600",
        )
    variables = process.environ()
    paths = [_value(words, option) or variables.get(name) for option, name in KEY_FILES.items()]
    files = [Path(process.cwd(), path) for path in paths if path]
    for path in files:
        if not path.is_file():
            continue
        mode = path.stat().st_mode
        if sys.platform != "win32" and mode & OTHERS:
            report.add("key-file-mode", Severity.HIGH, f"{path} has mode {stat.filemode(mode)}", f"chmod 600 {path}")
        else:
            report.passed.append(f"others may not read {path.name}")
    if not options:
        report.passed.append("no key stands on the command line")


def _value(words: list[str], option: str) -> str | None:
    """What an option was given, as "--x y" or "--x=y"."""
    for i, word in enumerate(words):
        if word == option and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(option + "="):
            return word.partition("=")[2]
    return None
