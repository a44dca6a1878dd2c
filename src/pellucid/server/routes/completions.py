"""POST /v1/completions."""

from __future__ import annotations

import time
from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response

from pellucid.pii.placeholders import Placeholders
from pellucid.server.errors import ErrorBody
from pellucid.server.limits import JSONRoute
from pellucid.server.openai import CompletionRequest
from pellucid.server.prompts import prompt_ids, prompt_text
from pellucid.server.scores import PromptScores
from pellucid.server.service import Service
from pellucid.server.shapes import Completion, CompletionShape
from pellucid.server.stream import Answer

router = APIRouter(route_class=JSONRoute, tags=["OpenAI"])


@router.post("/v1/completions", responses={200: {"model": Completion}, "default": {"model": ErrorBody}})
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue one prompt or many; choices come prompt by prompt."""
    service: Service = request.app.state.service
    service.check_model(body.model)
    service.admit(body.n * len(body.prompt))
    prompts = await prompt_ids(service, body.prompt, add_special=body.add_special_tokens)
    placeholders: Placeholders | None = request.scope.get("placeholders")
    generation = await service.generation(
        f"cmpl-{uuid4().hex}",
        prompts,
        body.sampling(),
        key=request.scope["key"],
        priority=body.priority,
        salt=body.cache_salt,
        began=request.scope["began"],
        placeholders=placeholders,
        shown=body.inspect is not None,
    )
    shape = CompletionShape(
        generation.id,
        int(time.time()),
        service.name,
        body.warnings(),
        tokenizer=service.llm.tokenizer,
        top=generation.params.logprobs,
        mode=generation.params.logprobs_mode or service.llm.config.logprobs_mode,
        options=body.stream_options,
    )
    if body.echo:
        texts = [prompt_text(service.llm, body, i, ids) for i, ids in enumerate(prompts)]
        if placeholders is not None:
            texts = [placeholders.show_text(text) for text in texts]
        for choice in generation.choices:
            prompt = choice.index // body.n
            scores = choice.seq.prompt_logprobs  # the engine fills this very list before the first token
            shape.echo(choice.index, texts[prompt], prompts[prompt], [] if scores is None else scores)
    if body.prompt_logprobs is not None:
        for choice in generation.choices:
            shape.score(choice.index, PromptScores.of(choice.seq, body.prompt_logprobs))
    return Answer(service, generation, shape, stream=body.stream, private=body.stream_options.include_obfuscation)
