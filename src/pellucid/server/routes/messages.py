"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients ask."""

from __future__ import annotations

from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from pellucid.server.anthropic import AnthropicMessage, CountRequest, InputTokens, MessageShape, MessagesRequest
from pellucid.server.calls import expected
from pellucid.server.errors import AnthropicErrorBody
from pellucid.server.limits import JSONRoute
from pellucid.server.prompts import chat_prompt
from pellucid.server.service import Service
from pellucid.server.stream import Answer

router = APIRouter(route_class=JSONRoute, tags=["Anthropic"], responses={"default": {"model": AnthropicErrorBody}})


@router.post("/v1/messages", responses={200: {"model": AnthropicMessage}})
async def messages(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    service.check_model(body.model)
    service.admit(1)
    conversation = body.conversation()
    ids = await chat_prompt(service, conversation)
    params, reads = expected(service.llm, body.sampling(), conversation, ids)
    generation = await service.generation(
        f"msg_{uuid4().hex}",
        [ids],
        params,
        key=request.scope["key"],
        began=request.scope["began"],
        placeholders=request.scope.get("placeholders"),
        shown=body.inspect is not None,
        reads=reads,
    )
    shape = MessageShape(generation.id, service.name, body.warnings(), reads)
    return Answer(service, generation, shape, stream=body.stream, private=body.stream_options.include_obfuscation)


@router.post("/v1/messages/count_tokens", responses={200: {"model": InputTokens}})
async def count_tokens(body: CountRequest, request: Request) -> Response:
    """Count the tokens that a conversation would be asked with."""
    service: Service = request.app.state.service
    service.check_model(body.model)
    return JSONResponse({"input_tokens": len(await chat_prompt(service, body.conversation()))})
