"""The file of keys, changed: one more, or one less.

Law: all else in the file stays as it is, comments too. What comes out is read before it takes the place of the old, in
one move, with mode 0600. The key itself is returned once and written nowhere.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from pellucid.errors import ConfigError
from pellucid.secret import Secret
from pellucid.server.keys import NAME, Scope, digest_of, header_of, parse, read

_HEAD = (
    "# Keys of a Pellucid server, as SHA-256. The server reads them again on SIGHUP. Change it with `pellucid keys`.\n"
)


def add(file: Path, name: str, scopes: Iterable[Scope], limits: Mapping[str, int | float]) -> Secret:
    """Make a key and write its digest to the file, which is made if need be. Raises ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name[:64]!r} cannot be a name; use letters, digits, - and _, at most 64", param="name")
    file = file.resolve()
    text = _text(file) if file.exists() else _HEAD
    if any(key.name == name for key in parse(text.encode(), str(file))):
        raise ConfigError(f"{file} has a key {name!r} already; revoke it first, or take another name", param="name")
    secret = Secret(f"pk-{secrets.token_urlsafe(32)}")
    lines = [
        "",
        f"[keys.{name}]",
        f'sha256 = "{digest_of(secret.reveal()).hex()}"',
        f"scopes = {json.dumps(list(scopes))}",
        *(f"{field} = {value}" for field, value in limits.items()),
    ]
    _replace(file, text.rstrip("\n") + "\n" + "\n".join(lines) + "\n")
    return secret


def revoke(file: Path, name: str) -> None:
    """Take a key out of the file. Raises ConfigError."""
    file = file.resolve()
    text = _text(file)
    names = [key.name for key in parse(text.encode(), str(file))]
    if name not in names:
        raise ConfigError(f"{file} has no key {name[:64]!r}; it has {', '.join(names) or 'none'}", param="name")
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            inside = header_of(line) == name
        if not inside:
            kept.append(line)
    left = "".join(kept).rstrip("\n") + "\n"
    if [key.name for key in parse(left.encode(), str(file))] != [other for other in names if other != name]:
        raise ConfigError(f"{file} is written in a way of its own; take {name!r} out by hand", param="name")
    _replace(file, left)


def _text(file: Path) -> str:
    read(file)  # says what is wrong with it
    return file.read_text()


def _replace(file: Path, text: str) -> None:
    parse(text.encode(), str(file))
    new = file.with_name(file.name + ".new")
    try:
        number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{new} is there: another command is changing the keys, or was cut off; if none is, remove it", param="file"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot write {new}: {error.strerror or error}", param="file") from None
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {file}: {error.strerror or error}", param="file") from None
