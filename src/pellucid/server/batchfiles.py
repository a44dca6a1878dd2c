"""The files of a batch: requests, one a line, and their answers, one a line.

Law: a line that cannot be asked is a fault with its number; it ends nothing. A line of the answers is written whole, by
one write; what stands there with status 200 stays as it is and is not asked again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic_core import from_json, to_json

from pellucid.errors import CapacityError, RequestError
from pellucid.server.limits import Limits
from pellucid.server.manifest import ROUTES

URLS = tuple(sorted(path for (method, path), access in ROUTES.items() if method == "POST" and access == "infer"))
"""Where the requests of a batch may go."""
MAX_LINE = Limits.body_bytes + (64 << 10)
"""Bytes of a line: those of a body, and room for what stands around it."""
MAX_ID = 512
"""Characters of a custom_id."""
BEGINNING = b'{"id":"batch_req_'
"""Of every line of the answers."""


class LineError(Exception):
    """Why a line cannot be asked."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.custom_id = custom_id


@dataclass(frozen=True, slots=True)
class Asked:
    """What a line asks."""

    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """Where a request lies."""

    number: int
    start: int
    size: int
    """In bytes, as `start`."""
    custom_id: str
    id: str
    """Made from what is asked, and of which model: the same request has the same."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that cannot be asked."""

    number: int
    code: str
    message: str
    custom_id: str | None


class Requests:
    """The requests of a file: each line is looked at once, and read again when it is asked."""

    def __init__(self, file: BinaryIO, model: str) -> None:
        """Look at every line.

        Args:
            file: that can be read at any place.
            model: name under which the model is served.
        """
        self._file = file
        self.lines: list[Line] = []
        self.faults: list[Fault] = []
        first: dict[str, int] = {}
        for number, start, data in _lines(file):
            try:
                asked = parse(data)
                if asked.custom_id in first:
                    raise LineError(
                        "duplicate_custom_id", f"custom_id is that of line {first[asked.custom_id]}", asked.custom_id
                    )
            except LineError as error:
                self.faults.append(Fault(number, error.code, error.message, error.custom_id))
                continue
            first[asked.custom_id] = number
            whole = json.dumps([model, asked.custom_id, asked.url, asked.body], sort_keys=True)
            self.lines.append(Line(number, start, len(data), asked.custom_id, _id(whole.encode())))

    def read(self, line: Line) -> Asked:
        """Return what a line asks."""
        self._file.seek(line.start)
        return parse(self._file.read(line.size))


def parse(data: bytes) -> Asked:
    """Read a line. Raises LineError."""
    if len(data) > MAX_LINE:
        raise LineError("line_too_long", f"longer than {MAX_LINE} bytes")
    try:
        value = from_json(data)
    except ValueError as error:
        raise LineError("invalid_json", f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise LineError("invalid_line", "not a JSON object with custom_id, method, url and body")
    fields = cast(dict[str, Any], value)
    custom_id, url, body = fields.get("custom_id"), fields.get("url"), fields.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID:
        raise LineError("invalid_custom_id", f"custom_id: give a string of 1 to {MAX_ID} characters")
    if fields.get("method") != "POST":
        raise LineError("invalid_method", "method: give POST", custom_id)
    if url not in URLS:
        raise LineError("invalid_url", f"url: give one of {', '.join(URLS)}", custom_id)
    if not isinstance(body, dict):
        raise LineError("invalid_body", "body: give a JSON object, as the server takes it", custom_id)
    if cast(dict[str, Any], body).get("stream"):
        raise LineError("unsupported_parameter", "body.stream: answers of a batch come whole; leave it out", custom_id)
    return Asked(custom_id, url, cast(dict[str, Any], body))


def _lines(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """(number, start, bytes) of each line that is not blank; of one that is too long only the beginning."""
    number, start = 0, 0
    while data := file.readline(MAX_LINE + 1):
        number += 1
        size = len(data)
        while len(data) > MAX_LINE and not data.endswith(b"\n") and (more := file.readline(MAX_LINE)):
            size += len(more)
            if more.endswith(b"\n"):
                break
        if data.strip():
            yield number, start, data
        start += size


def _id(data: bytes) -> str:
    return "batch_req_" + sha256(data).hexdigest()[:24]


class Answers:
    """The answers of a file, or of standard output."""

    def __init__(self, path: Path | None) -> None:
        """Open, and see what is there: a torn last line and lines that failed are taken out, to be made anew.

        Args:
            path: of the file; None: standard output, where nothing is taken up again.

        Raises:
            RequestError: the file cannot be had, or holds something else.
        """
        self._path = path
        self._fd: int | None = None
        self.done: dict[str, tuple[str, int]] = {}
        """custom_id → the id of its request, and the number of its line."""
        if path is not None:
            self._path = path = path.resolve()
            try:
                self._fd = _opened(path)
                self._take_up(path)
            except OSError as error:
                self.close()
                raise self._unwritten(error) from None
            except RequestError:
                self.close()
                raise

    def close(self) -> None:
        """Write no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def holds(self, line: Line) -> bool:
        """Whether a request is answered already. Raises RequestError if another of its custom_id is."""
        found = self.done.get(line.custom_id)
        if found is None:
            return False
        if found[0] != line.id:
            raise RequestError(
                f"line {line.number}: {self._path} has an answer to another request, or of another model, under the "
                f"custom_id {line.custom_id[:64]!r} (line {found[1]}); give another file with -o"
            )
        return True

    def answered(self, line: Line, status: int, request_id: str, body: bytes) -> None:
        """Write what the application answered; `body` is JSON."""
        head = BEGINNING[:6] + to_json(line.id) + b',"custom_id":' + to_json(line.custom_id)
        response = b'{"status_code":%d,"request_id":%s,"body":%s}' % (status, to_json(request_id), body)
        self._write(head + b',"response":' + response + b',"error":null}\n')

    def failed(self, fault: Fault) -> None:
        """Write why a line was not asked."""
        error = {"code": fault.code, "message": f"line {fault.number}: {fault.message}", "line": fault.number}
        id = _id(b"%d" % fault.number)
        self._write(to_json({"id": id, "custom_id": fault.custom_id, "response": None, "error": error}) + b"\n")

    def _write(self, data: bytes) -> None:
        if self._fd is None:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise self._unwritten(error) from None

    def _take_up(self, path: Path) -> None:
        kept: list[tuple[int, int]] = []
        """(start, end) of the lines that stay."""
        start, dropped = 0, False
        with path.open("rb") as file:
            for number, data in enumerate(file, 1):
                if not data.endswith(b"\n"):
                    torn = data if len(data) >= len(BEGINNING) else data + BEGINNING[len(data) :]
                    if not torn.startswith(BEGINNING):
                        raise _foreign(path, number)
                    dropped = True
                elif (answer := _answer(data)) is None:
                    raise _foreign(path, number)
                elif (custom_id := answer.get("custom_id")) is not None and _is_good(answer):
                    kept.append((start, start + len(data)))
                    self.done[custom_id] = (answer["id"], len(kept))
                else:
                    dropped = True
                start += len(data)
            if dropped:
                self._rewrite(path, file, kept)

    def _rewrite(self, path: Path, file: BinaryIO, kept: list[tuple[int, int]]) -> None:
        """Put a file with only some lines in the place of this one: at every moment there is a whole one."""
        new = path.with_name(path.name + ".new")
        fd = _opened(new)
        try:
            os.ftruncate(fd, 0)
            os.fchmod(fd, os.fstat(file.fileno()).st_mode & 0o777)
            with open(fd, "wb", closefd=False) as out:
                for start, end in kept:
                    file.seek(start)
                    out.write(file.read(end - start))
            os.fsync(fd)
            new.replace(path)
        except BaseException:
            os.close(fd)
            new.unlink(missing_ok=True)
            raise
        self.close()
        self._fd = fd

    def _unwritten(self, error: OSError) -> RequestError | CapacityError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return CapacityError(
                f"{self._path} cannot be written: {error.strerror}; make room, and the same command goes on from there"
            )
        return RequestError(f"{self._path} cannot be written: {error.strerror}")


def _opened(path: Path) -> int:
    """Open a file for adding to it, and hold it alone."""
    if path.exists() and not path.is_file():
        raise RequestError(f"{path} is not a file; without -o answers go to standard output")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise RequestError(f"{path} is being written by another batch; give another file with -o") from None
    return fd


def _answer(data: bytes) -> dict[str, Any] | None:
    """A line of the answers; None: it is none."""
    try:
        value = from_json(data)
    except ValueError:
        return None
    if not data.startswith(BEGINNING) or not {"id", "custom_id", "response", "error"} <= value.keys():
        return None
    return cast(dict[str, Any], value)


def _is_good(answer: dict[str, Any]) -> bool:
    response = answer["response"]
    return isinstance(response, dict) and cast(dict[str, Any], response).get("status_code") == 200


def _foreign(path: Path, number: int) -> RequestError:
    return RequestError(
        f"{path}, line {number}: this is not the answers of a batch, so nothing is added; give another file with -o"
    )
