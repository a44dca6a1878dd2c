"""What the engine is doing, for those who operate it: the map of the KV cache, its steps as they come, what
became of each request, and what was computed for nothing.

Law: only numbers and names of requests leave here; text only of a request whose client let it be seen. The engine is
asked between two steps; what is slow is done here, on the loop's threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import Response

from pellucid.engine.engine import Engine
from pellucid.errors import RequestError
from pellucid.kv.map import KVMap, map_of
from pellucid.server.autopsy import autopsy, line
from pellucid.server.errors import ErrorBody, HTTPError, unavailable
from pellucid.server.service import STALL_AFTER, Service
from pellucid.server.steps import StepEvents
from pellucid.server.waste import Waste

router = APIRouter(tags=["see-through"], responses={"default": {"model": ErrorBody}})
T = TypeVar("T")


@router.get("/inspect/kv")
async def kv(request: Request) -> KVMap:
    """Give the map of the pages of the KV cache, in runs of neighbours that are alike."""
    view, holdings = await asked(
        request.app.state.service, lambda engine: (engine.pool.view(), engine.scheduler.holdings())
    )
    return await asyncio.to_thread(map_of, view, holdings)


@router.get("/inspect/engine/events", response_class=Response)
async def events(request: Request, last_event_id: Annotated[str, Header(max_length=32)] = "") -> Response:
    """Send a record of each step, from now on or from after Last-Event-ID, as server-sent events."""
    service: Service = request.app.state.service
    steps = service.steps
    if last_event_id and not last_event_id.isdecimal():
        raise RequestError("Last-Event-ID is not one that this server gave", param="last-event-id")
    cursor = min(int(last_event_id), steps.count) if last_event_id else steps.count
    return StepEvents(service, steps, cursor)


@router.get("/inspect/requests")
async def requests(request: Request, limit: Annotated[int, Query(ge=1, le=256)] = 100) -> list[dict[str, Any]]:
    """List the last requests, the newest first."""
    service: Service = request.app.state.service
    return [line(record) for record in service.records.newest()[:limit]]


@router.get("/inspect/requests/{id}")
async def one_request(
    request: Request, id: Annotated[str, Path(max_length=128)], redact: bool = False
) -> dict[str, Any]:
    """Say what became of a request, by the id of its answer or its x-request-id, and what its time went to.

    Text and ids of tokens are there if the request had `inspect` in its body, and `redact` is not asked for.
    """
    service: Service = request.app.state.service
    record = service.records.get(id)
    if record is None:
        raise HTTPError(
            "There is no such request; the last 256 are kept, and GET /inspect/requests lists them",
            status=404,
            code="request_not_found",
        )
    return await asyncio.to_thread(autopsy, record, service.lives, service.llm.tokenizer, redact=redact)


@router.get("/inspect/waste")
async def waste(request: Request) -> Waste:
    """Say what was computed for nothing since the start, by cause, the largest saving first."""
    service: Service = request.app.state.service
    return await asyncio.to_thread(service.wasted.report, service.lives, service.llm.tokenizer)


async def asked(service: Service, look: Callable[[Engine], T]) -> T:
    """What the engine answers between two steps. Raises HTTPError (503): it makes none."""
    try:
        async with asyncio.timeout(STALL_AFTER):
            return await asyncio.wrap_future(service.llm.worker.ask(look))
    except TimeoutError:
        raise unavailable(f"The engine has not ended a step for {STALL_AFTER:g} s; /ready says more") from None
