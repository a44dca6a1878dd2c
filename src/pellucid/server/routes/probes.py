"""Is it alive, is it ready, which version is it, how does it do."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from pellucid import __version__
from pellucid.server.errors import ErrorBody, unavailable
from pellucid.server.service import Service

router = APIRouter(tags=["operation"], responses={"default": {"model": ErrorBody}})


class Status(TypedDict):
    """That all is well."""

    status: str


class Version(TypedDict):
    """What runs here."""

    version: str


@router.get("/health")
async def health() -> Status:
    """Answer as long as the process is alive."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> Status:
    """Answer 200 if a request would be served now; 503 while loading, shutting down, or when the engine is stalled."""
    service: Service = request.app.state.service
    fault = service.fault()
    if fault is not None:
        raise unavailable(f"Not ready: {fault}")
    return {"status": "ready"}


@router.get("/version")
async def version() -> Version:
    """Return Pellucid's version."""
    return {"version": __version__}


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return the numbers for Prometheus."""
    service: Service = request.app.state.service
    return Response(service.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")
