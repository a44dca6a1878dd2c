"""Keys: who may do what, and how much of it. They are kept as digests, in memory and in the file.

Law: a key is compared in constant time with all there are. A file that others may write is refused, and one that is not
as it should be is an error that names the line; the keys that held before still hold then.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import stat
import sys
import tomllib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from pellucid.errors import ConfigError
from pellucid.secret import Secret

Scope = Literal["infer", "inspect", "metrics", "admin"]
SCOPES: tuple[Scope, ...] = ("infer", "inspect", "metrics", "admin")
"""infer: ask the model. inspect: look into what one sent oneself. metrics: read the numbers. admin: see all tenants."""

MOST_KEYS = 1024
MOST_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LIMITS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day")
_FIELDS = {"sha256", "scopes", "weight", *_LIMITS}


@dataclass(frozen=True)
class Key:
    """What one key may do."""

    name: str
    tenant: str
    """Whose the work is in the engine; "": of the operator alone, with no tenants beside it."""
    scopes: frozenset[Scope]
    digest: bytes = field(default=b"", repr=False)
    """SHA-256 of its text."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    weight: float = 1.0
    """A key of weight 2 gets twice the tokens of one of 1 when both want all they can get."""

    @property
    def public_id(self) -> str | None:
        """The first digits of its digest, which tell two keys of one name apart; None for a text that was not drawn."""
        return self.digest.hex()[:8] if self.tenant else None


ANYONE = Key("", "", frozenset(SCOPES))
"""Who comes in where there are no keys."""


def digest_of(text: str) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def single_key(secret: Secret) -> Key:
    """Return the operator's one key, which opens everything. Raises ConfigError for one that cannot be a key."""
    text = secret.reveal()
    if len(text) < 8 or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(
            "the API key must be 8 or more printable ASCII characters without spaces; "
            "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'",
            param="api_key",
        )
    return Key("api-key", "", frozenset(SCOPES), digest_of(text))


@dataclass(frozen=True)
class Lent:
    """Keys that a server makes for a while, of a tenant each."""

    first: Secret
    """May do everything, as `second` may."""
    second: Secret
    scoped: dict[Scope, Secret]
    """Scope → a key that has it alone."""


class Keyring:
    """The keys of a server; those of the file can be read again."""

    def __init__(self, single: Secret | None = None, file: Path | None = None) -> None:
        """Take one key, or those of a file, or both; with neither anyone comes in. Raises ConfigError."""
        self._single = () if single is None else (single_key(single),)
        self._file = file
        self._keys = self._single
        self._lent: tuple[Key, ...] = ()
        self.reload()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def required(self) -> bool:
        """Whether who comes in must bring a key."""
        return bool(self._single) or self._file is not None

    @property
    def known(self) -> tuple[Key, ...]:
        """The operator's keys."""
        return self._keys

    def reload(self) -> None:
        """Read the file again. Raises ConfigError, and keeps the keys there are."""
        if self._file is not None:
            self._keys = (*self._single, *read(self._file))

    @contextmanager
    def lent(self) -> Generator[Lent | None]:
        """Make keys for the server's audit of itself, which hold until the context ends; None where none are asked."""
        if not self.required:
            yield None
            return
        made: list[Key] = []

        def lend(name: str, scopes: Iterable[Scope]) -> Secret:
            # No key of the file can have such a name.
            text = f"pk-{secrets.token_urlsafe(32)}"
            made.append(Key(f"audit:{name}", f"audit:{name}", frozenset(scopes), digest_of(text)))
            return Secret(text)

        lent = Lent(lend("first", SCOPES), lend("second", SCOPES), {scope: lend(scope, [scope]) for scope in SCOPES})
        self._lent = tuple(made)
        try:
            yield lent
        finally:
            self._lent = ()

    def find(self, token: str) -> Key | None:
        """Return the key of that text, if there is one; every key is compared, whichever it is."""
        given = digest_of(token)
        found = None
        for key in (*self._keys, *self._lent):
            if hmac.compare_digest(given, key.digest):
                found = key
        return found


def read(file: Path) -> list[Key]:
    """Read a file of keys. Raises ConfigError, which names the line."""
    try:
        with file.open("rb") as stream:
            mode = stat.S_IMODE(file.stat().st_mode)
            if sys.platform != "win32" and mode & 0o022:
                raise ConfigError(
                    f"{file} may be written by others (mode {mode:o}), who could add keys; run: chmod 600 {file}",
                    param="api_key_file",
                )
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read the keys of {file}: {error.strerror or error}; pellucid keys new NAME --file {file} makes it",
            param="api_key_file",
        ) from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{file} is larger than {MOST_BYTES} bytes; is it a file of keys?", param="api_key_file")
    return parse(data, str(file))


def parse(data: bytes, source: str) -> list[Key]:
    """Read the keys of a file's text; `source` is its name in errors. Raises ConfigError."""
    try:
        text = data.decode()
        table = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{source} is not TOML: {error}", param="api_key_file") from None
    return [*_Reader(text, source).keys(table)]


class _Reader:
    """Turns the parsed table into keys, and knows on which line of the text a fault is."""

    def __init__(self, text: str, source: str) -> None:
        self._lines = text.splitlines()
        self._source = source

    def keys(self, table: dict[str, Any]) -> list[Key]:
        for name in table:
            if name != "keys":
                raise self._fault(self._line(name), f"{name!r} is not known; a key is a table [keys.NAME]")
        tables: object = table.get("keys", {})
        if not isinstance(tables, dict):
            raise self._fault(self._line("keys"), "keys is not a table; a key is a table [keys.NAME]")
        named = cast("dict[str, object]", tables)
        if len(named) > MOST_KEYS:
            raise self._fault(1, f"{len(named)} keys are too many; at most {MOST_KEYS} are read")
        keys = [self._key(name, fields) for name, fields in named.items()]
        owners: dict[bytes, str] = {}
        for key in keys:
            if (other := owners.setdefault(key.digest, key.name)) != key.name:
                raise self._fault(self._line("sha256", key.name), f"this is the key of {other!r}, too; make another")
        return keys

    def _key(self, name: str, table: object) -> Key:
        at = self._line("", name)
        if not NAME.fullmatch(name):
            raise self._fault(at, f"{name[:64]!r} cannot be a name; use letters, digits, - and _, at most 64")
        if not isinstance(table, dict):
            raise self._fault(at, f"keys.{name} is not a table; write [keys.{name}]")
        given = cast("dict[str, Any]", table)
        for unknown in given.keys() - _FIELDS:
            raise self._fault(
                self._line(unknown, name), f"{unknown!r} is not known; a key has {', '.join(sorted(_FIELDS))}"
            )
        digest: object = given.get("sha256")
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-fA-F]{64}", digest):
            raise self._fault(
                self._line("sha256", name),
                f"{name}: sha256 must be the key's SHA-256 in 64 hexadecimal digits, never the key; "
                "`pellucid keys new` writes it",
            )
        scopes: object = given.get("scopes")
        if not isinstance(scopes, list) or not scopes or not set(cast("list[object]", scopes)) <= {*SCOPES}:
            raise self._fault(
                self._line("scopes", name), f"{name}: scopes must be a list of some of {', '.join(SCOPES)}"
            )
        weight: object = given.get("weight", 1)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.01 <= weight <= 100:
            raise self._fault(self._line("weight", name), f"{name}: weight must be a number from 0.01 to 100")
        limits: dict[str, int] = {}
        for limit in _LIMITS:
            value: object = given.get(limit)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**15:
                raise self._fault(
                    self._line(limit, name), f"{name}: {limit} must be a whole number, 1 or more; leave it out for none"
                )
            limits[limit] = value
        return Key(
            name=name,
            tenant=name,
            scopes=frozenset(cast("list[Scope]", scopes)),
            digest=bytes.fromhex(digest),
            weight=float(weight),
            **limits,
        )

    def _line(self, field: str, name: str | None = None) -> int:
        """Line of a field, of the header of its table if it has none there; 1 if that is not found either."""
        first = 1
        lines = list(enumerate(self._lines, 1))
        if name is not None:
            first = next((number for number, line in lines if header_of(line) == name), 1)
        for number, line in lines[first - (name is None) :]:
            if name is not None and line.lstrip().startswith("["):
                break
            if field and re.match(rf"\s*\[*\s*[\"']?{re.escape(field)}\b", line):
                return number
        return first

    def _fault(self, line: int, what: str) -> ConfigError:
        return ConfigError(f"{self._source}, line {line}: {what}", param="api_key_file")


def header_of(line: str) -> str | None:
    """Name of the key whose table a line begins; None: it begins none."""
    found = re.match(r"""\s*\[\s*keys\s*\.\s*["']?([^"'\]]+?)["']?\s*\]""", line)
    return found[1] if found else None
