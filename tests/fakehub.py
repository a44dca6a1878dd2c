"""A small Hugging Face hub on loopback: listings, metadata, files with ranges, gates, and faults on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repo:
    files: dict[str, bytes]
    gated: bool = False
    licence: str = "apache-2.0"
    listed_sha256: dict[str, str] = field(default_factory=dict)
    """What the listing states instead of the true digest."""


class FakeHub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        """(method, path, Range) of every request."""
        self.tokens: set[str | None] = set()
        self.break_after: int | None = None
        """Cut the next bodies of files after so many bytes..."""
        self.breaks = 0
        """...so many times."""
        self.stall_after: int | None = None
        """Stop sending bodies of files after so many bytes, and keep the connection."""
        self.closed = threading.Event()
        self.status: int | None = None
        """Answer everything with this status."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def send(self, status: int, headers: dict[str, str], data: bytes, body: bool) -> None:
                self.send_response(status)
                for k, v in ({"Content-Length": str(len(data))} | headers).items():
                    self.send_header(k, v)
                self.end_headers()
                if body:
                    self.wfile.write(data)

            def answer(self, body: bool) -> None:
                path = unquote(urlsplit(self.path).path)
                hub.requests.append((self.command, path, self.headers.get("Range")))
                token = self.headers.get("Authorization")
                hub.tokens.add(token)
                if hub.status is not None:
                    return self.send(hub.status, {}, b"{}", body)
                if path.startswith("/api/models/"):
                    return self.listing(path.removeprefix("/api/models/").split("/revision/")[0], body)
                name, _, rest = path.lstrip("/").partition("/resolve/")
                repo = hub.repos.get(name)
                if repo is None:
                    return self.send(401, {"X-Error-Code": "RepoNotFound"}, b"", body)
                if repo.gated and token != "Bearer good":
                    status = 403 if token else 401
                    return self.send(status, {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}, b"", body)
                data = repo.files.get(rest.partition("/")[2])
                if data is None:
                    return self.send(404, {"X-Error-Code": "EntryNotFound"}, b"", body)
                return self.file(data, body)

            def listing(self, name: str, body: bool) -> None:
                repo = hub.repos.get(name)
                if repo is None:
                    return self.send(401, {"X-Error-Code": "RepoNotFound"}, b'{"error":"Repository not found"}', body)
                siblings = []
                for path, data in repo.files.items():
                    row: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": "0" * 40}
                    if path.endswith((".gguf", ".safetensors", ".bin")):
                        digest = repo.listed_sha256.get(path) or hashlib.sha256(data).hexdigest()
                        row["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
                    siblings.append(row)
                answer = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "private": False}
                answer |= {"gated": repo.gated, "tags": [], "downloads": 0, "cardData": {"license": repo.licence}}
                return self.send(200, {"Content-Type": "application/json"}, json.dumps(answer).encode(), body)

            def file(self, data: bytes, body: bool) -> None:
                etag = f'"{hashlib.sha256(data).hexdigest()}"'
                headers = {"ETag": etag, "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
                status, asked = 200, self.headers.get("Range")
                if asked and asked.startswith("bytes="):
                    first, _, last = asked.removeprefix("bytes=").partition("-")
                    start, end = int(first), int(last) if last else len(data) - 1
                    headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
                    status, data = 206, data[start : end + 1]
                if body and hub.breaks and hub.break_after is not None and len(data) > hub.break_after:
                    hub.breaks -= 1
                    self.send(status, headers | {"Content-Length": str(len(data))}, b"", False)
                    self.wfile.write(data[: hub.break_after])
                    self.close_connection = True
                    return None
                if body and hub.stall_after is not None and len(data) > hub.stall_after:
                    self.send(status, headers | {"Content-Length": str(len(data))}, b"", False)
                    self.wfile.write(data[: hub.stall_after])
                    hub.closed.wait(60)
                    self.close_connection = True
                    return None
                return self.send(status, headers, data, body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()
