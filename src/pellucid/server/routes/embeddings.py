"""POST /v1/embeddings."""

from __future__ import annotations

from uuid import uuid4

from fastapi import APIRouter, Request
from starlette.responses import Response

from pellucid.errors import RequestError
from pellucid.sampling.params import SamplingParams
from pellucid.server.embeddings import EmbeddingList, EmbeddingShape
from pellucid.server.errors import ErrorBody
from pellucid.server.limits import JSONRoute
from pellucid.server.openai import EmbeddingRequest
from pellucid.server.prompts import prompt_ids
from pellucid.server.service import Service
from pellucid.server.stream import Whole

router = APIRouter(route_class=JSONRoute, tags=["OpenAI"])


@router.post("/v1/embeddings", responses={200: {"model": EmbeddingList}, "default": {"model": ErrorBody}})
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """Make a vector of each input, of the model's last hidden states."""
    service: Service = request.app.state.service
    service.check_model(body.model)
    service.admit(len(body.input))
    size = service.llm.engine.embedding_size
    if body.dimensions is not None and body.dimensions > size:
        raise RequestError(
            f"dimensions: {body.dimensions} is more than {service.name} has; give at most {size}", param="dimensions"
        )
    prompts = await prompt_ids(service, body.input, add_special=body.add_special_tokens, param="input")
    generation = await service.generation(
        f"embd-{uuid4().hex}",
        prompts,
        SamplingParams(max_tokens=0),
        key=request.scope["key"],
        priority=body.priority,
        salt=body.cache_salt,
        began=request.scope["began"],
        shown=body.inspect is not None,
        pooling=body.pooling,
    )
    shape = EmbeddingShape(
        service.name,
        [choice.seq.pooling for choice in generation.choices if choice.seq.pooling is not None],
        encoding=body.encoding_format,
        dimensions=body.dimensions,
        warnings=body.warnings(),
    )
    return Whole(service, generation, shape)
