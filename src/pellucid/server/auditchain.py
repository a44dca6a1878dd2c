"""The chain of an audit log: how a line holds on to the one before it, and how a log is verified. No server is needed.

Law: a line is one JSON object in ASCII without spaces; `prev` is the digest of the line before it, and `digest`, its
last field, is the SHA-256 of the line without that field. What is verified are the bytes as they stand in the file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pellucid.errors import ConfigError

GENESIS = "0" * 64
"""`prev` of the first line of all."""
MOST_BYTES = 1 << 20
"""Longest line, and the most that a torn one may have."""
DIGEST = re.compile("[0-9a-f]{64}")
_LINE = re.compile(rb'(\{.+),"digest":"([0-9a-f]{64})"\}\n', re.DOTALL)


@dataclass(frozen=True)
class Line:
    """A line that agrees with its own digest."""

    number: int
    """Place in the chain, from 1, through all files."""
    previous: str
    digest: str
    fields: Mapping[str, Any]


def link(number: int, previous: str, fields: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return a line of the log, with its newline, and its digest."""
    body = json.dumps({"line": number, "prev": previous, **fields}, separators=(",", ":")).encode()
    digest = hashlib.sha256(body).hexdigest()
    return b'%s,"digest":"%s"}\n' % (body[:-1], digest.encode()), digest


def read(line: bytes) -> Line | None:
    """Return what a line says, its newline included; None: it is not whole, or does not agree with its digest."""
    found = _LINE.fullmatch(line)
    if found is None or hashlib.sha256(found[1] + b"}").hexdigest().encode() != found[2]:
        return None
    try:
        fields = json.loads(line)
        number, previous = fields["line"], fields["prev"]
    except (ValueError, KeyError, RecursionError):
        return None
    if type(number) is not int or not isinstance(previous, str):
        return None
    return Line(number, previous, found[2].decode(), fields)


@dataclass(frozen=True)
class Intact:
    """What is said of a log whose chain holds."""

    lines: int
    first: int | None
    """Place in the chain of the first line; over 1 where older files were not given. None: there is no line."""
    head: str
    """Digest of the last line."""
    sealed: tuple[str, ...]
    """Where a line was torn by a crash, and sealed at the next start: file and line."""


class BrokenError(Exception):
    """The chain does not hold; the message says where first, and in which way."""


def verify(files: Iterable[Path], head: str | None = None) -> Intact:
    """Follow the chain through files, the oldest first.

    Args:
        files: of one log, as rotation left them.
        head: a digest that was noted earlier, which must be that of a line: only so a cut tail shows.

    Raises:
        BrokenError: at the first line that does not follow.
        ConfigError: a file that cannot be read.
    """
    walk = _Walk(head)
    for file in files:
        try:
            walk.file(file)
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror or error}", param="file") from None
    if head is not None and not walk.met:
        raise BrokenError(
            f"no line has the digest {head}: lines were cut off since it was noted, or the log was written anew"
        )
    return Intact(walk.lines, walk.first, walk.head, tuple(walk.sealed))


class _Walk:
    def __init__(self, wanted: str | None) -> None:
        self.lines = 0
        self.first: int | None = None
        self.head = GENESIS
        self.sealed: list[str] = []
        self.met = wanted == GENESIS
        self._wanted = wanted
        self._number: int = 0

    def file(self, file: Path) -> None:
        """Follow the lines of one file."""
        torn: bytes | None = None
        place = 0
        with file.open("rb") as stream:
            while text := stream.readline(MOST_BYTES):
                place += 1
                line = read(text)
                if line is None:
                    if torn is not None:
                        raise _changed(file, place - 1)
                    torn = text
                    continue
                if torn is not None:
                    if line.fields.get("event") != "sealed" or line.fields.get("torn_sha256") != digest_of(torn):
                        raise _changed(file, place - 1)
                    self.sealed.append(f"{file}, line {place - 1}")
                    torn = None
                self._follow(line, f"{file}, line {place}")
        if torn is not None:
            if torn.endswith(b"\n"):
                raise _changed(file, place)
            raise BrokenError(f"{file}, line {place} is torn; a server that is started on the file seals it")

    def _follow(self, line: Line, where: str) -> None:
        if self.first is None:
            self.first = line.number
            follows = (line.number == 1) == (line.previous == GENESIS)
        else:
            follows = line.previous == self.head and line.number == self._number + 1
        if not follows:
            raise BrokenError(
                f"{where} does not follow the line before it: lines were taken out, put in or moved, "
                f"or a file between is missing (it is number {line.number} after {line.previous[:12]}…, "
                f"and comes after number {self._number}, {self.head[:12]}…)"
            )
        self.lines += 1
        self._number, self.head = line.number, line.digest
        self.met = self.met or line.digest == self._wanted


def digest_of(torn: bytes) -> str:
    """Return what seals a torn line: the SHA-256 of its bytes without the newline that ended it later."""
    return hashlib.sha256(torn.removesuffix(b"\n")).hexdigest()


def _changed(file: Path, place: int) -> BrokenError:
    return BrokenError(f"{file}, line {place} was changed: it does not agree with its digest")
