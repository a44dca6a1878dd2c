"""A live server in a test: uvicorn on a thread, a free port, and a way to see that nothing was left behind."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from pellucid.llm import LLM
from pellucid.server.app import create_app
from pellucid.server.service import Service
from pellucid.server.tls import Certificate
from pellucid.server.transport import Server, bind


@dataclass
class Live:
    llm: LLM
    server: Server
    service: Service
    port: int
    http: httpx.Client

    @property
    def url(self) -> str:
        return str(self.http.base_url).rstrip("/")

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The data of each event of a stream; the last must be [DONE], which is left out."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        events = response.text.split("\n\n")
        assert events.pop() == ""
        assert all(event.startswith("data: ") for event in events)
        assert events.pop() == "data: [DONE]"
        return [json.loads(event[6:]) for event in events]

    def raw(self, data: bytes, *, wait: float = 5.0) -> bytes:
        """What the server answers to raw bytes until it closes the connection or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as s:
            s.sendall(data)
            answer = b""
            try:
                while part := s.recv(65536):
                    answer += part
            except (TimeoutError, ConnectionError):
                pass
            return answer

    def settles(self, within: float = 10.0) -> None:
        """Wait until no sequence is left and every page is free or kept by the prefix cache alone."""
        engine, worker = self.llm.engine, self.llm.worker
        until(lambda: self.service.idle.is_set() and not worker.pending and not engine.busy, within)
        assert self.llm.engine.stats.pages_used == 0
        self.llm.engine.pool.check()


def until(condition: Callable[[], bool], within: float = 5.0) -> None:
    """Wait for a condition; fail if it does not come."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.005)


def slow(llm: LLM, seconds: float) -> LLM:
    """Let every step of the model take so long at least."""
    run = llm.engine.device.run

    def slowly(batch: Any) -> Any:
        time.sleep(seconds)
        return run(batch)

    llm.engine.device.run = slowly  # type: ignore[method-assign]
    return llm


@contextmanager
def running(llm: LLM | None, *, certificate: Certificate | None = None, **options: Any) -> Iterator[Live]:
    """Serve a model, over TLS if there is a certificate; `options` are those of create_app."""
    app = create_app(llm, **options)
    server = Server(app, certificate.context if certificate else None)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    key = options.get("api_key")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = f"http{'s' if certificate else ''}://127.0.0.1:{port}"
    trust = ssl.create_default_context(cafile=certificate.certfile) if certificate else True
    with httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False, verify=trust) as http:
        try:
            yield Live(llm, server, app.state.service, port, http)  # type: ignore[arg-type]
        finally:
            server.stop()
            thread.join(20)
            assert not thread.is_alive()
