"""The page at /, and that of the API at /docs: the files that web/ builds, as they are.

Law: files of fixed names, the same for everybody, so they need no key; what they show is asked for by them, under
the key that the reader gives. The policy lets the page load from here alone.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "/docs.css": ("docs.css", "text/css; charset=utf-8"),
}
"""Path → file, and what it is."""
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


@cache
def _file(name: str) -> tuple[bytes, str]:
    data = files("pellucid.server").joinpath("static", name).read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'


async def _serve(request: Request) -> Response:
    """Give a file of the page; 304 where the browser has it."""
    name, kind = FILES[request.url.path]
    data, tag = _file(name)
    headers = {
        "etag": tag,
        "cache-control": "no-cache",
        "content-security-policy": POLICY,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=kind, headers=headers)


for path in FILES:
    router.add_api_route(path, _serve, methods=["GET"], name=path)
