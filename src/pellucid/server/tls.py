"""TLS: the certificate and its key, read from files, and read again when they were renewed.

Law: a pair is tried before it takes the place of another; one that cannot be used is an error that names the file and
what to do. A key that others may read is refused. Nothing asks for a pass phrase at a terminal.
"""

from __future__ import annotations

import ssl
import stat
import sys
from pathlib import Path

from pellucid.errors import ConfigError

OTHERS = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
"""What the mode of a private file may not hold. A group may read it: that is how Kubernetes hands secrets over."""


class Certificate:
    """A chain of certificates in PEM, and the key of the first."""

    def __init__(self, certfile: Path, keyfile: Path | None = None) -> None:
        """Read both; `keyfile` None: the key stands in `certfile`, too. Raises ConfigError."""
        self.certfile = certfile
        self._keyfile = keyfile
        self.context = self._read()
        """For new connections; TLS 1.2 or later."""

    def reload(self) -> None:
        """Read the files again, for the connections to come. Raises ConfigError, and keeps the pair there is."""
        self._read()
        self._load(self.context)

    def _read(self) -> ssl.SSLContext:
        keyfile, option = self._keyfile or self.certfile, "ssl_certfile" if self._keyfile is None else "ssl_keyfile"
        _readable(self.certfile, "ssl_certfile")
        _readable(keyfile, option)
        mode = stat.S_IMODE(keyfile.stat().st_mode)
        if sys.platform != "win32" and mode & OTHERS:
            raise ConfigError(
                f"the key {keyfile} may be read or written by others (mode {mode:o}); run: chmod 600 {keyfile}",
                param=option,
            )
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self.certfile, self._keyfile, _no_pass_phrase)
        except ssl.SSLError as error:
            raise ConfigError(self._fault(error), param="ssl_certfile") from None

    def _fault(self, error: ssl.SSLError) -> str:
        cert, key = self.certfile, self._keyfile or self.certfile
        if "mismatch" in str(error).lower():
            return f"{key} is not the key of the first certificate in {cert}; give the two that were made together"
        if not _has(cert, b"-----BEGIN CERTIFICATE-----"):
            return f"{cert} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)"
        if not _has(key, b"PRIVATE KEY-----"):
            more = "" if self._keyfile else "; name the file of the key with --ssl-keyfile"
            return f"{key} holds no private key in PEM (-----BEGIN PRIVATE KEY-----){more}"
        return f"{cert} and {key} cannot be used: {error.reason or error}"


def _readable(file: Path, option: str) -> None:
    try:
        with file.open("rb") as stream:
            stream.read(1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror or error}; give --{option.replace('_', '-')} a file in PEM "
            "that this user may read",
            param=option,
        ) from None


def _has(file: Path, words: bytes) -> bool:
    return words in file.read_bytes()


def _no_pass_phrase() -> str:
    """Without it OpenSSL would ask at the terminal."""
    raise ConfigError(
        "the TLS key is encrypted, and there is nobody to ask for its pass phrase; "
        "write it without one: openssl pkey -in KEY -out NEW, with mode 600",
        param="ssl_keyfile",
    )
