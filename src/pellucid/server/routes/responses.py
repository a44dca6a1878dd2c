"""POST /v1/responses, as OpenAI's clients ask; nothing is stored."""

from __future__ import annotations

import time
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response

from pellucid.server.calls import expected
from pellucid.server.errors import ErrorBody
from pellucid.server.limits import JSONRoute
from pellucid.server.prompts import chat_prompt
from pellucid.server.responses import ResponseShape, ResponsesRequest
from pellucid.server.service import Service
from pellucid.server.stream import Answer

router = APIRouter(route_class=JSONRoute, tags=["OpenAI"])


@router.post("/v1/responses", responses={"default": {"model": ErrorBody}})
async def responses(body: ResponsesRequest, request: Request) -> Response:
    """Answer a text or a conversation."""
    service: Service = request.app.state.service
    service.check_model(body.model)
    service.admit(1)
    conversation = body.conversation()
    ids = await chat_prompt(service, conversation)
    params, reads = expected(service.llm, body.sampling(), conversation, ids)
    generation = await service.generation(
        f"resp_{uuid4().hex}",
        [ids],
        params,
        key=request.scope["key"],
        began=request.scope["began"],
        placeholders=request.scope.get("placeholders"),
        shown=body.inspect is not None,
        reads=reads,
    )
    shape = ResponseShape(generation.id, int(time.time()), service.name, body, reads)
    return Answer(service, generation, shape, stream=body.stream, private=body.stream_options.include_obfuscation)
