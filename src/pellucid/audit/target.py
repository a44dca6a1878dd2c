"""The server that is looked at: how it is asked, and its process if it runs on this machine.

Law: requests go out byte for byte as they are given, so that what a client library would mend is sent broken, too.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import psutil

from pellucid.errors import ConfigError, UnreachableError
from pellucid.server.auth import is_loopback

WAITING = -1


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    """0: the connection ended without an answer; WAITING: it did not end."""
    headers: dict[str, str]
    body: bytes
    chunks: tuple[int, ...] = ()
    """Sizes of the parts in which the body came, where it came in parts."""

    def json(self) -> Any:
        """The body as JSON; an empty object if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}


class Target:
    """A server."""

    def __init__(
        self, url: str, api_key: str | None, timeout: float = 10.0, *, certificate: Path | None = None
    ) -> None:
        """Look at `url`, with or without /v1 at its end; over TLS the certificate is verified, as clients do.

        `certificate`: file of the one that the server must show, whatever its name and its issuer.

        Raises ConfigError for what is no address of a server.
        """
        base = url.rstrip("/").removesuffix("/v1")
        base = base if "://" in base else f"http://{base}"
        try:
            parsed = httpx.URL(base)
            if parsed.scheme not in ("http", "https") or not parsed.host:
                raise ValueError
        except (httpx.InvalidURL, ValueError):
            raise ConfigError(
                f"{url!r} is not a server's address; give one as http://127.0.0.1:8000", param="url"
            ) from None
        self.url = base
        self.tls = parsed.scheme == "https"
        self.host = parsed.host
        self.port = parsed.port or (443 if self.tls else 80)
        self.key = api_key
        self._timeout = timeout
        self._trust = ssl.create_default_context(cafile=certificate)
        if certificate is not None:
            self._trust.check_hostname = False
            self._trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

    def connect(self, tls: ssl.SSLContext | None = None) -> socket.socket | ssl.SSLSocket:
        """Open a connection, over TLS as `tls` has it if it is given. Raises UnreachableError."""
        try:
            plain = socket.create_connection((self.host, self.port), timeout=self._timeout)
            if not self.tls:
                return plain
            return (tls or self._trust).wrap_socket(plain, server_hostname=self.host)
        except ssl.SSLCertVerificationError as error:
            raise UnreachableError(
                f"the certificate of {self.url} is not to be trusted: {error.verify_message}; audit it by a name that "
                "it holds, and if its issuer is your own, with SSL_CERT_FILE=ISSUER.pem"
            ) from None
        except OSError as error:
            raise UnreachableError(f"{self.url} does not answer: {error}; is `pellucid serve` running there?") from None

    def ask(
        self,
        path: str,
        body: Any = None,
        *,
        method: str | None = None,
        key: str | None = "",
        headers: dict[str, str] | None = None,
        raw_body: bytes | None = None,
        length: int | None = None,
        wait: float | None = None,
    ) -> Answer:
        """Send one request and read its answer to the end.

        Args:
            path: sent as it is.
            body: JSON; None: none.
            method: None: POST where there is a body, else GET.
            key: brought as a bearer token; "": the audit's own; None: none.
            headers: more of them; Host replaces the right one.
            raw_body: sent instead of `body`.
            length: stated as Content-Length instead of the true one.
            wait: seconds between two parts of the answer; None: the target's own.
        """
        data = raw_body if raw_body is not None else b"" if body is None else json.dumps(body).encode()
        sent = {"Host": f"{self._authority}", "Connection": "close"} | (headers or {})
        token = self.key if key == "" else key
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if data or length is not None:
            sent["Content-Type"] = "application/json"
            sent["Content-Length"] = str(len(data) if length is None else length)
        line = f"{method or ('POST' if 'Content-Length' in sent else 'GET')} {path} HTTP/1.1\r\n"
        head = line + "".join(f"{name}: {value}\r\n" for name, value in sent.items()) + "\r\n"
        answer = b""
        with self.connect() as s:
            s.settimeout(wait or self._timeout)
            try:
                s.sendall(head.encode("latin-1") + data)
                while part := s.recv(65536):
                    answer += part
            except TimeoutError:
                if not answer:
                    return Answer(WAITING, {}, b"")
            except OSError:  # reset: what came before counts
                pass
        return _parsed(answer)

    @property
    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def process(self) -> psutil.Process | None:
        """The process that listens there, if it is on this machine and may be looked at."""
        if not self._local():
            return None
        with contextlib.suppress(psutil.Error, OSError):
            for connection in psutil.net_connections("tcp"):
                address: Any = connection.laddr
                if connection.status == psutil.CONN_LISTEN and connection.pid and address.port == self.port:
                    return psutil.Process(connection.pid)
        return None

    def _local(self) -> bool:
        if is_loopback(self.host):
            return True
        with contextlib.suppress(OSError):
            addresses = {str(info[4][0]) for info in socket.getaddrinfo(self.host, None)}
            own = {str(a.address) for found in psutil.net_if_addrs().values() for a in found}
            return bool(addresses & own)
        return False


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    """(address, port) of every socket on which a process waits for others."""
    found: list[tuple[str, int]] = []
    for connection in process.net_connections("inet"):
        address: Any = connection.laddr
        udp = connection.type == socket.SOCK_DGRAM and not connection.raddr
        if connection.status == psutil.CONN_LISTEN or udp:
            found.append((str(address.ip), int(address.port)))
    return found


def waits_for_head(target: Target, seconds: float) -> bool:
    """Whether a connection with half a head is still open after so long."""
    with target.connect() as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        s.settimeout(seconds)
        began = time.monotonic()
        try:
            while time.monotonic() - began < seconds:
                if not s.recv(4096):
                    return False
        except TimeoutError:
            return True
        except OSError:
            return False
    return True


def _parsed(answer: bytes) -> Answer:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ", 2)
    status = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") != "chunked":
        return Answer(status, headers, body)
    parts = list(_parts(body))
    return Answer(status, headers, b"".join(parts), tuple(map(len, parts)))


def _parts(body: bytes) -> Iterator[bytes]:
    while (line := body.partition(b"\r\n")[0]) and _is_hex(line) and (size := int(line, 16)):
        yield body[len(line) + 2 : len(line) + 2 + size]
        body = body[len(line) + size + 4 :]


def _is_hex(line: bytes) -> bool:
    return 0 < len(line) < 16 and all(byte in b"0123456789abcdefABCDEF" for byte in line)


def fields(value: Any) -> dict[str, Any]:
    """A JSON object; what is none is an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
