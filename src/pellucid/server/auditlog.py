"""The audit log: who asked the server for what and how it ended, a line each, chained (auditchain.py).

Law: no text of a prompt or an answer is in a line. Whoever writes puts a line into a bounded queue and goes on; a
thread of its own chains, writes and syncs all that wait, in one go. While the file cannot be written requests are
refused, and what is not written of them is counted in a line of its own: nothing is left out in silence.
"""

from __future__ import annotations

import contextlib
import os
import queue
import stat
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pellucid import __version__
from pellucid.errors import ConfigError, PellucidError
from pellucid.server.auditchain import GENESIS, MOST_BYTES, digest_of, link, read

MOST_WAITING = 4096
"""Lines that may wait; from half of it on requests are refused, so that those which run have room for theirs."""
BATCH = 256
RETRY = 0.5
"""Seconds between two tries to write."""
PATIENCE = 5.0
"""Seconds that the end of the server waits for a file that cannot be written."""


class AuditLog:
    """An open audit log."""

    def __init__(self, path: Path) -> None:
        """Open or make the file, and go on where it ended. Raises ConfigError."""
        self.path = path
        self.number, self.head = 0, GENESIS
        """Of the last line."""
        self._file = -1
        torn = self._begin()
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_WAITING)
        self._omitted = 0
        self._omitting = threading.Lock()
        self._failure: str | None = None
        self._give_up = float("inf")
        if torn:
            what = f"{path}: the last line is torn ({len(torn)} bytes), as a crash leaves it; it is sealed"
            print(f"warning: {what}", file=sys.stderr, flush=True)
            seal, self.head = link(
                self.number + 1,
                self.head,
                {"time": _now(), "event": "sealed", "torn_bytes": len(torn), "torn_sha256": digest_of(torn)},
            )
            self.number += 1
            self._put(b"\n" + seal)
        self._thread = threading.Thread(target=self._run, name="pellucid-audit", daemon=True)
        self._thread.start()

    @property
    def fault(self) -> str | None:
        """Why no request may come in now; None: one may."""
        if self._failure is not None:
            return f"The audit log cannot be written ({self._failure}), and nothing is served without it"
        if self._waiting.qsize() >= MOST_WAITING // 2:
            return "The audit log cannot be written fast enough, and nothing is served without it"
        return None

    def write(self, event: str, **fields: Any) -> None:
        """Have a line written; from any thread but not from a signal handler."""
        try:
            self._waiting.put_nowait({"time": _now(), "event": event, **fields})
        except queue.Full:
            self.omit()

    def omit(self) -> None:
        """Count a line that is not written."""
        with self._omitting:
            self._omitted += 1

    def close(self) -> None:
        """Write what waits, and end. What cannot be written is told."""
        self._give_up = time.monotonic() + PATIENCE
        with contextlib.suppress(queue.Full):  # then the thread has given up already
            self._waiting.put(None, timeout=2 * PATIENCE)
        self._thread.join()
        os.close(self._file)

    def _run(self) -> None:
        ended = False
        while not ended:
            batch: list[dict[str, Any]] = []
            while not ended and len(batch) < BATCH and not (batch and self._waiting.empty()):
                fields = self._waiting.get()
                if fields is None:
                    ended = True
                else:
                    batch.append(fields)
            with self._omitting:
                omitted, self._omitted = self._omitted, 0
            if omitted:
                batch.append({"time": _now(), "event": "omitted", "requests": omitted})
            lines: list[bytes] = []
            for fields in batch:
                line, self.head = link(self.number + 1, self.head, fields)
                self.number += 1
                lines.append(line)
            if lines and not self._put(b"".join(lines)):
                lost = len(lines) + self._waiting.qsize()
                print(f"error: {lost} lines of {self.path} were not written", file=sys.stderr, flush=True)
                return

    def _put(self, data: bytes) -> bool:
        """Write and sync, however long it takes; False: the server ends, and it could not be written."""
        at_border, written = True, False
        while True:
            try:
                if at_border and not written:
                    self._follow_rotation()
                while data:
                    count = os.write(self._file, data)
                    at_border, data = data[:count].endswith(b"\n"), data[count:]
                written = True
                _sync(self._file)
            except (OSError, ConfigError) as error:
                self._fail((error.strerror if isinstance(error, OSError) else None) or str(error))
            else:
                self._mend()
                return True
            if time.monotonic() > self._give_up:
                return False
            time.sleep(RETRY)

    def _fail(self, why: str) -> None:
        if self._failure is None:
            print(
                f"error: the audit log {self.path} cannot be written: {why}; "
                "requests are refused with 503 until it can; make room, or move the file away",
                file=sys.stderr,
                flush=True,
            )
        self._failure = why

    def _mend(self) -> None:
        if self._failure is not None:
            self._failure = None
            print(f"the audit log {self.path} is written again", file=sys.stderr, flush=True)

    def _begin(self) -> bytes:
        """Open the file and find the last whole line; return what stands behind it."""
        try:
            self._open()
        except OSError as error:
            raise ConfigError(
                f"cannot write the audit log {self.path}: {error.strerror or error}; "
                "give --audit-log a file in a folder that this user may write",
                param="audit_log",
            ) from None
        size = os.fstat(self._file).st_size
        tail = _read(self._file, max(0, size - 2 * MOST_BYTES), size)
        end = tail.rfind(b"\n") + 1
        torn = tail[end:]
        if end == 0 and len(torn) < MOST_BYTES:
            return torn
        last = read(tail[tail.rfind(b"\n", 0, end - 1) + 1 : end])
        if last is None or len(torn) >= MOST_BYTES:
            os.close(self._file)
            raise ConfigError(
                f"{self.path} does not end as an audit log does; look at it with pellucid audit-log verify, "
                "and move it away or name another file",
                param="audit_log",
            )
        self.number, self.head = last.number, last.digest
        return torn

    def _open(self) -> None:
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise ConfigError(f"the audit log {self.path} is not a regular file", param="audit_log")
            if sys.platform != "win32":
                _lock(file, self.path)
                os.fchmod(file, 0o600)
        except BaseException:
            os.close(file)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        if sys.platform != "win32":
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # the name of a new file is kept by its folder
            finally:
                os.close(folder)

    def _follow_rotation(self) -> None:
        """Go on in a new file if the one that is open was moved away."""
        try:
            moved = not os.path.samestat(self.path.stat(), os.fstat(self._file))
        except FileNotFoundError:
            moved = True
        if moved:
            self._open()


@contextmanager
def kept(path: Path, **start: Any) -> Generator[AuditLog]:
    """Keep an audit log for the life of a server: from the line `start`, with these fields, to the line `stop`.

    The head is told at both ends, so that whoever reads stderr elsewhere can later see whether lines were cut off.
    Raises ConfigError.
    """
    log = AuditLog(path)
    print(f"audit log {path}: {log.number} lines so far, head {log.head}", file=sys.stderr, flush=True)
    uid = os.getuid() if sys.platform != "win32" else None
    log.write("start", version=__version__, pid=os.getpid(), uid=uid, **start)
    why: str | None = None
    try:
        yield log
    except BaseException as error:
        why = error.code if isinstance(error, PellucidError) else type(error).__name__
        raise
    finally:
        log.write("stop", error=why)
        log.close()
        print(f"audit log {path}: {log.number} lines, head {log.head}", file=sys.stderr, flush=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read(file: int, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    os.lseek(file, start, os.SEEK_SET)
    while start < end and (part := os.read(file, end - start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _sync(file: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(file)
    else:
        os.fsync(file)


def _lock(file: int, path: Path) -> None:
    """Keep other processes from writing the same log, whose chain would fork. Raises ConfigError."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"another server writes the audit log {path}; give this one a file of its own", param="audit_log"
        ) from None
