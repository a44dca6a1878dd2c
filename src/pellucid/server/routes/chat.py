"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response

from pellucid.server.calls import expected
from pellucid.server.errors import ErrorBody
from pellucid.server.limits import JSONRoute
from pellucid.server.openai import ChatRequest
from pellucid.server.prompts import chat_prompt
from pellucid.server.scores import PromptScores
from pellucid.server.service import Service
from pellucid.server.shapes import ChatCompletion, ChatShape
from pellucid.server.stream import Answer

router = APIRouter(route_class=JSONRoute, tags=["OpenAI"])


@router.post("/v1/chat/completions", responses={200: {"model": ChatCompletion}, "default": {"model": ErrorBody}})
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    service.check_model(body.model)
    service.admit(body.n)
    ids = await chat_prompt(service, body)
    params, reads = expected(service.llm, body.sampling(), body, ids)
    generation = await service.generation(
        f"chatcmpl-{uuid4().hex}",
        [ids],
        params,
        key=request.scope["key"],
        priority=body.priority,
        salt=body.cache_salt,
        began=request.scope["began"],
        placeholders=request.scope.get("placeholders"),
        shown=body.inspect is not None,
        reads=reads,
    )
    shape = ChatShape(
        generation.id,
        int(time.time()),
        service.name,
        body.warnings(),
        tokenizer=service.llm.tokenizer,
        top=generation.params.logprobs,
        mode=generation.params.logprobs_mode or service.llm.config.logprobs_mode,
        options=body.stream_options,
        reads=reads,
        scores=None
        if body.prompt_logprobs is None
        else PromptScores.of(generation.choices[0].seq, body.prompt_logprobs),
    )
    return Answer(service, generation, shape, stream=body.stream, private=body.stream_options.include_obfuscation)
