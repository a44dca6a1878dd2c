"""/inspect/model: the shapes of the served model, and how it tells positions apart."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from pellucid.probes.rotation import rotation
from pellucid.probes.shapes import ModelShapes, shapes
from pellucid.probes.wire import plain
from pellucid.server.errors import ErrorBody
from pellucid.server.service import Service

router = APIRouter(tags=["see-through"], responses={"default": {"model": ErrorBody}})


@router.get("/inspect/model")
async def model(request: Request) -> ModelShapes:
    """Give the shapes of the served model."""
    service: Service = request.app.state.service
    return shapes(service.llm, service.name)


@router.get("/inspect/model/rope")
async def rope(request: Request, layer: Annotated[int, Query(ge=0, le=4096)] = 0) -> Response:
    """Give the angle of each pair of values of a layer's queries and keys, by distance."""
    llm = request.app.state.service.llm
    found: Any = await asyncio.to_thread(rotation, llm.spec, layer, llm.engine.context)
    return JSONResponse(plain(found))
