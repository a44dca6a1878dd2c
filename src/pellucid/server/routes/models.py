"""GET /v1/models: what is served."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from typing_extensions import TypedDict

from pellucid.server.errors import ErrorBody
from pellucid.server.service import Service

router = APIRouter(tags=["OpenAI"], responses={"default": {"model": ErrorBody}})


class ModelCard(TypedDict):
    """One model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    """Longest sequence, prompt and answer, in tokens."""


class ModelList(TypedDict):
    """All models."""

    object: Literal["list"]
    data: list[ModelCard]


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """List the served model."""
    return {"object": "list", "data": [_card(request.app.state.service)]}


@router.get("/v1/models/{model:path}")
async def get_model(model: str, request: Request) -> ModelCard:
    """Describe the served model by its name."""
    service: Service = request.app.state.service
    service.check_model(model)
    return _card(service)


def _card(service: Service) -> ModelCard:
    return {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "pellucid",
        "root": service.llm.name,
        "parent": None,
        "max_model_len": service.context,
    }
