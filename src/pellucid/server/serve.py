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
from pathlib import Path
from typing import TYPE_CHECKING

from pellucid.errors import ConfigError
from pellucid.secret import Secret
from pellucid.server.app import create_app
from pellucid.server.auth import is_loopback
from pellucid.server.keys import Keyring
from pellucid.server.limits import Limits
from pellucid.server.service import Service
from pellucid.server.transport import Server, bind

if TYPE_CHECKING:
    from pellucid.llm import LLM

Ready = Callable[["LLM", str, int], None]
"""Called with the model, the host and the port, as soon as requests are served."""
Check = Callable[[str, int], None]


def serve(
    llm: LLM | Callable[[], LLM],
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    name: str | None = None,
    api_key: str | None = None,
    api_key_file: Path | None = None,
    allowed_hosts: Iterable[str] = (),
    limits: Limits | None = None,
    inspect: bool | None = None,
    private_stream: bool = False,
    check: Check | None = None,
    ready: Ready | None = None,
) -> None:
    """Serve a model over HTTP; returns after an orderly stop (SIGINT or SIGTERM).

    Args:
        llm: the model, or what loads it; it is loaded while the server already answers /health and /ready.
        host: address to listen on; others than loopback need an API key.
        port: TCP port; 0: any that is free.
        name: under which the model is served; None: its own name.
        api_key: what clients must bring as a bearer token.
        api_key_file: file of keys, each with what it may do (server/keys.py); read again on SIGHUP.
        allowed_hosts: names besides those of loopback under which a loopback server answers.
        limits: bounds; None: the defaults.
        inspect: serve /inspect; None: on loopback only, for prompts are sensitive and looking into them is costly.
        private_stream: packets of no stream tell of its tokens.
        check: called on a thread with the host and the port when the model is there and before /ready says so; what it
            raises ends the server.
        ready: told when requests are served.

    Raises:
        ConfigError: an address that cannot be had, or may not be had without a key.
        PellucidError: what loading the model raised.
    """
    keys = Keyring(None if api_key is None else Secret(api_key), api_key_file)
    if not is_loopback(host) and not keys.required:
        raise ConfigError(
            f"--host {host} would let anyone on the network in; set a key (PELLUCID_API_KEY=..., or --api-key-file), "
            "or leave --host out to serve this machine only",
            param="host",
        )
    _leave_no_core()
    app = create_app(
        None if callable(llm) else llm,
        name=name,
        keys=keys,
        allowed_hosts=tuple(allowed_hosts) if is_loopback(host) else None,
        limits=limits,
        inspect=is_loopback(host) if inspect is None else inspect,
        private_stream=private_stream,
    )
    with bind(host, port) as listener:
        server = Server(app)
        address = listener.getsockname()

        async def run() -> None:
            model: LLM | None = None
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            if api_key_file is not None and sys.platform != "win32":
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _read_again, keys)
            try:
                service: Service = app.state.service
                service.checking = check is not None
                model = await _in_thread(llm) if callable(llm) else llm
                if callable(llm):
                    service.attach(model)
                if check is not None:
                    await asyncio.to_thread(check, host, address[1])
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


def _read_again(keys: Keyring) -> None:
    """Read the file of keys; what is wrong with it is told, and the keys that held before still hold."""
    try:
        keys.reload()
    except ConfigError as error:
        print(f"warning: the keys were not read again: {error}", file=sys.stderr, flush=True)
    else:
        print(f"{len(keys)} keys hold from now on", file=sys.stderr, flush=True)


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
