"""Serving one model until someone says stop.

Law: the address is taken first, so that a mistake costs no loading; the server answers probes while the model loads;
what it loaded itself it closes, last of all.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid.errors import ConfigError
from pellucid.secret import Secret
from pellucid.server.app import create_app
from pellucid.server.auditlog import AuditLog, kept
from pellucid.server.auth import is_loopback
from pellucid.server.keys import Keyring, Lent
from pellucid.server.limits import Limits
from pellucid.server.service import Service
from pellucid.server.tls import Certificate
from pellucid.server.transport import Server, bind

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.pii.find import Finder

Ready = Callable[["LLM", str, int], None]
"""Called with the model, the host and the port, as soon as requests are served."""
Check = Callable[[str, int, Lent | None], None]


def serve(
    llm: LLM | Callable[[], LLM],
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    name: str | None = None,
    api_key: str | None = None,
    api_key_file: Path | None = None,
    ssl_certfile: Path | None = None,
    ssl_keyfile: Path | None = None,
    behind_tls_proxy: bool = False,
    allowed_hosts: Iterable[str] = (),
    limits: Limits | None = None,
    inspect: bool | None = None,
    private_stream: bool = False,
    strict_requests: bool = False,
    pii: Finder | None = None,
    audit_log: Path | None = None,
    check: Check | None = None,
    ready: Ready | None = None,
) -> None:
    """Serve a model over HTTP; returns after an orderly stop (SIGINT or SIGTERM).

    Args:
        llm: the model, or what loads it; it is loaded while the server already answers /health and /ready.
        host: address to listen on; others than loopback need an API key, and TLS or `behind_tls_proxy`.
        port: TCP port; 0: any that is free.
        name: under which the model is served; None: its own name.
        api_key: what clients must bring as a bearer token.
        api_key_file: file of keys, each with what it may do (server/keys.py); read again on SIGHUP.
        ssl_certfile: chain of certificates in PEM, for TLS; read again on SIGHUP, with its key.
        ssl_keyfile: its key; None: it stands in `ssl_certfile`.
        behind_tls_proxy: only a proxy that speaks TLS reaches the address, so plain HTTP is well beyond loopback, too.
        allowed_hosts: names besides those of loopback under which a loopback server answers.
        limits: bounds; None: the defaults.
        inspect: serve /inspect; None: on loopback only, for prompts are sensitive and looking into them is costly.
        private_stream: packets of no stream tell of its tokens.
        strict_requests: fields that nobody knows are refused, not only named in `warnings`.
        pii: of the personal data that the model does not get to see; None: it sees all.
        audit_log: file in which every request is written down (server/auditlog.py).
        check: called on a thread with the host, the port and keys made for it, when the model is there and before
            /ready says so; what it raises ends the server.
        ready: told when requests are served.

    Raises:
        ConfigError: an address that cannot be had, or may not be had without a key or in plain text; keys, a
            certificate or an audit log that cannot be used.
        PellucidError: what loading the model raised.
    """
    keys = Keyring(None if api_key is None else Secret(api_key), api_key_file)
    certificate = _certificate(ssl_certfile, ssl_keyfile)
    if not is_loopback(host):
        _check_exposed(host, keyed=keys.required, encrypted=certificate is not None or behind_tls_proxy)
    _leave_no_core()
    inspect = is_loopback(host) if inspect is None else inspect
    with ExitStack() as closing:
        listener = closing.enter_context(bind(host, port))
        address = listener.getsockname()
        log = None
        if audit_log is not None:
            log = closing.enter_context(
                kept(
                    audit_log,
                    model=name or (None if callable(llm) else llm.name),
                    host=host,
                    port=address[1],
                    tls=certificate is not None,
                    behind_tls_proxy=behind_tls_proxy,
                    inspect=inspect,
                    keys=_public(keys),
                )
            )
        app = create_app(
            None if callable(llm) else llm,
            name=name,
            keys=keys,
            allowed_hosts=tuple(allowed_hosts) if is_loopback(host) else None,
            limits=limits,
            inspect=inspect,
            private_stream=private_stream,
            strict_requests=strict_requests,
            pii=pii,
            audit_log=log,
        )
        server = Server(app, None if certificate is None else certificate.context)

        async def run() -> None:
            model: LLM | None = None
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            if sys.platform != "win32" and not (api_key_file is None and certificate is None and log is None):
                asyncio.get_running_loop().add_signal_handler(
                    signal.SIGHUP, _read_again, keys, api_key_file, certificate, log
                )
            try:
                service: Service = app.state.service
                service.checking = check is not None
                model = await _in_thread(llm) if callable(llm) else llm
                if callable(llm):
                    service.attach(model)
                if check is not None:
                    with keys.lent() as lent:
                        await asyncio.to_thread(check, host, address[1], lent)
                    service.checking = False
                if ready is not None:
                    ready(model, host, address[1])
                await serving
            finally:
                server.stop()
                await serving
                if callable(llm) and model is not None:
                    await asyncio.to_thread(model.close)

        asyncio.run(run())


def _certificate(certfile: Path | None, keyfile: Path | None) -> Certificate | None:
    if certfile is not None:
        return Certificate(certfile, keyfile)
    if keyfile is not None:
        raise ConfigError(
            f"--ssl-keyfile {keyfile} is a key without a certificate; give that with --ssl-certfile",
            param="ssl_certfile",
        )
    return None


def _check_exposed(host: str, *, keyed: bool, encrypted: bool) -> None:
    """Raise ConfigError where others could come in without a key, or read what passes."""
    faults: list[str] = []
    if not keyed:
        faults.append(
            f"--host {host} would let anyone on the network in; set a key (PELLUCID_API_KEY=..., or --api-key-file)"
        )
    if not encrypted:
        faults.append(
            ("it" if faults else f"--host {host}") + " would send keys and prompts over the network in plain text; "
            "give --ssl-certfile CERT --ssl-keyfile KEY, or say --behind-tls-proxy if only such a proxy reaches it"
        )
    if faults:
        raise ConfigError(f"{'; '.join(faults)}; or leave --host out to serve this machine only", param="host")


def _read_again(
    keys: Keyring, api_key_file: Path | None, certificate: Certificate | None, log: AuditLog | None
) -> None:
    """Read files of keys and certificates; what is wrong with one is told, and what held before still holds."""
    if api_key_file is not None:
        well = _reread(api_key_file, keys.reload)
        if log is not None:
            log.write("reload", what="keys", ok=well, keys=_public(keys))
    if certificate is not None:
        well = _reread(certificate.certfile, certificate.reload)
        if log is not None:
            log.write("reload", what="certificate", ok=well)


def _reread(file: Path, read: Callable[[], None]) -> bool:
    try:
        read()
    except ConfigError as error:
        print(f"warning: {file} was not read again: {error}", file=sys.stderr, flush=True)
        return False
    print(f"{file} was read again and holds from now on", file=sys.stderr, flush=True)
    return True


def _public(keys: Keyring) -> list[dict[str, Any]]:
    """What may be told of the keys."""
    return [{"key": key.name, "key_sha256": key.public_id, "scopes": sorted(key.scopes)} for key in keys.known]


def _leave_no_core() -> None:
    """A core file would hold prompts and keys."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


async def _in_thread(load: Callable[[], LLM]) -> LLM:
    """Run `load` on a thread that does not keep the process alive."""
    loop = asyncio.get_running_loop()
    loaded: asyncio.Future[LLM] = loop.create_future()

    def run() -> None:
        try:
            llm = load()
        except BaseException as error:
            loop.call_soon_threadsafe(loaded.set_exception, error)
        else:
            loop.call_soon_threadsafe(loaded.set_result, llm)

    threading.Thread(target=run, name="pellucid-load", daemon=True).start()
    return await loaded
