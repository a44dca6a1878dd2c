"""POST /tokenize and /detokenize, GET /tokenizer_info: the model's tokenizer, in vLLM's shapes.

Law: a text has the ids that the engine would be asked with, so control tokens spelled in it are text. One alone, with
add_special_tokens off, is asked after by name: so clients learn the ids of the tokens that /tokenizer_info spells.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from fastapi import APIRouter, Request
from pydantic import FailFast, Field, model_validator
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from pellucid.errors import RequestError
from pellucid.server.errors import ErrorBody
from pellucid.server.limits import JSONRoute
from pellucid.server.openai import MAX_MESSAGES, Conversation, Message, TokenId, refuse
from pellucid.server.openai import Request as Asked
from pellucid.server.prompts import chat_prompt, encode_texts
from pellucid.server.service import Service
from pellucid.server.shapes import spelling

router = APIRouter(route_class=JSONRoute, tags=["tokenizer"], responses={"default": {"model": ErrorBody}})

MAX_IDS = 1 << 20


class TokenizeRequest(Conversation, Asked):
    """Body of POST /tokenize: a text, or a conversation that the model's chat template writes."""

    model: str = Field(default="", max_length=512)
    prompt: str | None = None
    messages: Annotated[list[Message], FailFast()] = Field(default_factory=list[Message], max_length=MAX_MESSAGES)
    add_special_tokens: bool = True
    """Of a text: put the model's BOS before it. A template writes its own. If false, a control token's spelling alone
    gives its id."""
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (not self.messages):
            raise refuse("prompt", "prompt: give either prompt or messages")
        return self


class Tokens(TypedDict):
    """Answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: NotRequired[list[str]]
    warnings: NotRequired[list[str]]


class DetokenizeRequest(Asked):
    """Body of POST /detokenize."""

    model: str = Field(default="", max_length=512)
    tokens: list[TokenId] = Field(max_length=MAX_IDS)


class Text(TypedDict):
    """Answer of POST /detokenize."""

    prompt: str
    warnings: NotRequired[list[str]]


@router.post("/tokenize", responses={200: {"model": Tokens}})
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Give the ids that the model would be asked with."""
    service: Service = request.app.state.service
    service.check_model(body.model)
    added = service.llm.tokenizer.added.values()
    if body.prompt is None:
        ids = await chat_prompt(service, body)
    elif not body.add_special_tokens and (named := [t.id for t in added if t.control and t.text == body.prompt]):
        ids = named[:1]
    else:
        [ids] = await encode_texts(service, [body.prompt], add_special=body.add_special_tokens)
    answer: Tokens = {"count": len(ids), "max_model_len": service.context, "tokens": ids}
    if body.return_token_strs:
        answer["token_strs"] = [spelling(service.llm.tokenizer, token) for token in ids]
    if warnings := body.warnings():
        answer["warnings"] = warnings
    return JSONResponse(answer)


@router.post("/detokenize", responses={200: {"model": Text}})
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """Give the text of ids, control tokens spelled out."""
    service: Service = request.app.state.service
    service.check_model(body.model)
    tokenizer = service.llm.tokenizer
    if body.tokens and max(body.tokens) >= tokenizer.vocab_size:
        raise RequestError(f"tokens has an id outside 0..{tokenizer.vocab_size - 1}", param="tokens")
    text = await service.prepare(lambda: tokenizer.decode(body.tokens, skip_special=False), len(body.tokens))
    answer: Text = {"prompt": text}
    if warnings := body.warnings():
        answer["warnings"] = warnings
    return JSONResponse(answer)


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> dict[str, Any]:
    """Describe the tokenizer with the names of Hugging Face's tokenizer_config.json."""
    service: Service = request.app.state.service
    llm = service.llm
    tokenizer = llm.tokenizer
    return {
        "tokenizer_class": type(tokenizer).__name__,
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": service.context,
        "add_bos_token": tokenizer.bos_id is not None and tokenizer.bos_id in tokenizer.prefix,
        **{name: llm.template.variables.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")},
        "added_tokens_decoder": {
            str(token.id): {"content": token.text, "special": token.control} for token in tokenizer.added.values()
        },
        "chat_template": llm.template.source,
    }
