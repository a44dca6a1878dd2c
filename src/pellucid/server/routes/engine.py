"""What the engine is doing, for those who operate it: the map of the KV cache, and its steps as they come.

Law: only numbers and names of requests leave here, never what was asked or answered. The engine is asked between two
steps; what is slow is done here, on the loop's threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from pellucid.engine.engine import Engine
from pellucid.errors import RequestError
from pellucid.kv.map import KVMap, map_of
from pellucid.server.errors import ErrorBody, unavailable
from pellucid.server.service import STALL_AFTER, Service
from pellucid.server.steps import StepEvents

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


async def asked(service: Service, look: Callable[[Engine], T]) -> T:
    """What the engine answers between two steps. Raises HTTPError (503): it makes none."""
    try:
        async with asyncio.timeout(STALL_AFTER):
            return await asyncio.wrap_future(service.llm.worker.ask(look))
    except TimeoutError:
        raise unavailable(f"The engine has not ended a step for {STALL_AFTER:g} s; /ready says more") from None
