"""TLS: what can be asked over it, which files are refused and how, and where plain HTTP may be served."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pellucid.errors import ConfigError
from pellucid.server.limits import Limits
from pellucid.server.serve import serve
from pellucid.server.tls import Certificate
from selfsigned import selfsigned
from serving import Live, running, until
from toymodel import toy_llm

KEY = "sk-tls-0123456789"
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return selfsigned(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def live(pair: tuple[Path, Path]) -> Iterator[Live]:
    limits = Limits(header_time=1.0)
    with toy_llm() as llm, running(llm, certificate=Certificate(*pair), api_key=KEY, limits=limits) as live:
        yield live


def trusting(certfile: Path, **options: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certfile)
    for name, value in options.items():
        setattr(context, name, value)
    return context


def shown(port: int, certfile: Path) -> bytes | None:
    """The certificate that the server shows; None if it is not the one of the file."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            trusting(certfile).wrap_socket(plain, server_hostname="localhost") as s,
        ):
            return s.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError:
        return None


def test_answers_and_streams_over_tls(live: Live) -> None:
    body = {"prompt": "a>", "max_tokens": 8, "temperature": 0}
    whole = live.post(PATH, body).json()["choices"][0]["text"]
    assert whole and "".join(event["choices"][0]["text"] for event in live.events(PATH, body)) == whole
    assert live.http.get("/v1/models", headers={"authorization": "Bearer wrong-key"}).status_code == 401


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions(live: Live, pair: tuple[Path, Path], version: ssl.TLSVersion) -> None:
    context = trusting(pair[0], minimum_version=version, maximum_version=version)
    assert httpx.get(f"{live.url}/health", verify=context, trust_env=False).status_code == 200


def test_an_early_answer_is_not_lost(live: Live) -> None:
    """The body that was announced never comes; the refusal does."""
    answer = live.post(PATH, None, content=b"{" * (9 << 20), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert live.http.get("/health").status_code == 200


def test_plain_http_is_not_answered_and_a_handshake_has_a_deadline(live: Live) -> None:
    assert not live.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP")
    with socket.create_connection(("127.0.0.1", live.port), timeout=10) as s:
        assert s.recv(1) == b""  # within Limits.header_time, here 1 s; TimeoutError otherwise
    assert live.http.get("/health").status_code == 200


def test_an_idle_client_does_not_hold_up_the_end(pair: tuple[Path, Path]) -> None:
    """It keeps its connection and never reads the server's farewell; without a bound the end takes 5 s."""
    with toy_llm() as llm, running(llm, certificate=Certificate(*pair)) as live:
        live.http.get("/health")
        live.server.stop()
        until(lambda: not live.server.server_state.connections, within=3)


def test_a_renewed_certificate_is_taken(tmp_path: Path) -> None:
    (old, key), (new, new_key) = selfsigned(tmp_path, "old"), selfsigned(tmp_path, "new")
    certificate = Certificate(old, key)
    with toy_llm() as llm, running(llm, certificate=certificate) as live:
        assert shown(live.port, old) and not shown(live.port, new)
        key.write_bytes(new_key.read_bytes())
        with pytest.raises(ConfigError, match="is not the key"):
            certificate.reload()
        kept = tmp_path / "kept.pem"
        kept.write_bytes(old.read_bytes())
        assert shown(live.port, kept)  # the pair that was there still holds
        old.write_bytes(new.read_bytes())
        certificate.reload()
        assert shown(live.port, new) and not shown(live.port, kept)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    cert, key = selfsigned(tmp_path, "a")
    other_cert, other_key = selfsigned(tmp_path, "b")
    _, hidden = selfsigned(tmp_path, "c", pass_phrase=b"secret")
    text = tmp_path / "text"
    text.write_text("hello")
    text.chmod(0o600)
    for files, words in (
        ((tmp_path / "none.pem", key), "cannot read .*none.pem: No such file.*--ssl-certfile"),
        ((cert, tmp_path / "none.key"), "cannot read .*none.key: No such file.*--ssl-keyfile"),
        ((tmp_path, key), "cannot read .*: Is a directory"),
        ((cert, other_key), r"b\.key is not the key of the first certificate in .*a\.pem"),
        ((other_cert, key), r"a\.key is not the key of the first certificate in .*b\.pem"),
        ((text, key), "holds no certificate in PEM"),
        ((cert, text), "holds no private key in PEM"),
        ((cert, hidden), "pass phrase.*openssl pkey"),
    ):
        with pytest.raises(ConfigError, match=words) as error:
            Certificate(*files)
        assert "\n" not in str(error.value) and error.value.param in ("ssl_certfile", "ssl_keyfile")
    both = tmp_path / "both.pem"
    both.touch(0o600)
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    Certificate(both)
    cert.chmod(0o600)
    with pytest.raises(ConfigError, match="name the file of the key with --ssl-keyfile"):
        Certificate(cert)


@pytest.mark.skipif(sys.platform == "win32", reason="modes are of POSIX")
def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    cert, key = selfsigned(tmp_path)
    for mode in (0o604, 0o644, 0o602, 0o620, 0o666):
        key.chmod(mode)
        with pytest.raises(ConfigError, match=f"mode {mode:o}.*chmod 600 {re.escape(str(key))}"):
            Certificate(cert, key)
    for mode in (0o400, 0o440, 0o600, 0o640):
        key.chmod(mode)
        Certificate(cert, key)


def refusal(host: str, **options: object) -> str:
    with pytest.raises(ConfigError) as error:
        serve(lambda: pytest.fail("loaded"), host, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


def test_beyond_loopback_a_key_and_tls_are_asked_for(pair: tuple[Path, Path]) -> None:
    certfile, keyfile = pair
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        neither = refusal(host)
        assert "PELLUCID_API_KEY" in neither and "--ssl-certfile" in neither and "--behind-tls-proxy" in neither
        plain = refusal(host, api_key=KEY)
        assert "PELLUCID_API_KEY" not in plain and f"--host {host} would send keys" in plain
        assert "--ssl-certfile CERT --ssl-keyfile KEY" in plain and "--behind-tls-proxy" in plain
        for options in ({"behind_tls_proxy": True}, {"ssl_certfile": certfile, "ssl_keyfile": keyfile}):
            open_ = refusal(host, **options)
            assert "PELLUCID_API_KEY" in open_ and "plain text" not in open_
    assert "--ssl-certfile" in refusal("127.0.0.1", ssl_keyfile=keyfile)


TOY = """
import sys
from pathlib import Path
from pellucid.server.serve import serve
from toymodel import toy_llm
port = lambda llm, host, port: print(port, flush=True)
with toy_llm() as llm:
    serve(llm, sys.argv[1], 0, api_key="sk-tls-0123456789", ready=port, **eval(sys.argv[2]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGHUP")
@pytest.mark.parametrize("tls", [True, False])
def test_with_either_it_serves_beyond_loopback(tls: bool, pair: tuple[Path, Path], tmp_path: Path) -> None:
    options = (
        f"dict(ssl_certfile=Path({str(pair[0])!r}), ssl_keyfile=Path({str(pair[1])!r}))"
        if tls
        else "dict(behind_tls_proxy=True)"
    )
    command = [sys.executable, "-c", TOY, "0.0.0.0", options]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            port = int(process.stdout.readline())
            verify = trusting(pair[0]) if tls else True
            url = f"http{'s' * tls}://127.0.0.1:{port}/v1/models"
            assert httpx.get(url, verify=verify, trust_env=False).status_code == 401
            bearer = {"authorization": f"Bearer {KEY}"}
            assert httpx.get(url, verify=verify, trust_env=False, headers=bearer).status_code == 200
            if tls:
                process.send_signal(signal.SIGHUP)
                assert process.stderr.readline() == f"{pair[0]} was read again and holds from now on\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0 and process.stderr.read() == ""
        finally:
            process.kill()
