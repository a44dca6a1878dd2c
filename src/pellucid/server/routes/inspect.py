"""/inspect: a prompt is replayed, and what was seen of it is read view by view.

Law: only what a client sent itself is looked into: a trace is reached by the id that its POST gave. Traces are few and
bounded (`Traces`); one look runs at a time, on a thread of its own, so that a slow one delays no token but its own.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from secrets import token_hex
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Query, Request
from pydantic import FailFast, Field, model_validator
from starlette.responses import JSONResponse, Response

from pellucid.errors import CapacityError, RequestError
from pellucid.probes import views
from pellucid.probes.attention import rows_of
from pellucid.probes.embedding import neighbours
from pellucid.probes.export import safetensors
from pellucid.probes.replay import budget_bytes
from pellucid.probes.trace import Trace
from pellucid.probes.wire import plain
from pellucid.sampling.params import SamplingParams
from pellucid.server.errors import ErrorBody, HTTPError
from pellucid.server.limits import JSONRoute
from pellucid.server.openai import MAX_MESSAGES, Body, Conversation, Message, TokenId, refuse
from pellucid.server.prompts import chat_prompt, encode_texts
from pellucid.server.service import Service

router = APIRouter(route_class=JSONRoute, tags=["see-through"], responses={"default": {"model": ErrorBody}})
T = TypeVar("T")

MOST_TRACES = 8
MOST_WAITING = 8
MOST_BUDGET = MOST_HELD = 1 << 30
"""Bytes that one look may take, and that all traces together keep."""
TILE = 256
"""Cells of a side of a tile of an attention map."""
Place = Annotated[int, Query(ge=-(1 << 24), le=1 << 24)]
Small = Annotated[int, Query(ge=0, le=4096)]


class Traces:
    """The last traces, by id, and the one thread that looks into them."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Trace] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pellucid-look")
        self._waiting = 0

    def get(self, id: str) -> Trace:
        """A trace. Raises HTTPError (404): it is not there, or not any more."""
        found = self._held.get(id)
        if found is None:
            raise HTTPError(
                f"There is no such trace; the last {MOST_TRACES} are kept. POST /inspect/replay makes one",
                status=404,
                code="trace_not_found",
            )
        self._held.move_to_end(id)
        return found

    def keep(self, trace: Trace) -> str:
        """Keep a trace, and let the one go that was not looked at for longest. Returns its id."""
        id = f"trace-{token_hex(12)}"
        self._held[id] = trace
        while len(self._held) > MOST_TRACES or (len(self._held) > 1 and self.nbytes > MOST_HELD):
            self._held.popitem(last=False)
        return id

    @property
    def nbytes(self) -> int:
        """Memory that the traces keep."""
        return sum(trace.replay.nbytes for trace in self._held.values() if trace.replay is not None)

    async def run(self, work: Callable[[], T]) -> T:
        """Do it after what others asked for. Raises CapacityError (429): too many wait."""
        if self._waiting >= MOST_WAITING:
            raise CapacityError(f"{MOST_WAITING} looks wait already; try again later")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1


class Look(Body):
    """A request of these routes, which nobody but ours has, so that an unknown field is a mistake."""

    strict: bool = True


class ReplayRequest(Look):
    """Body of POST /inspect/replay: a text, a conversation or ids, and how to answer."""

    model: str = Field(default="", max_length=512)
    prompt: str | None = None
    prompt_ids: list[TokenId] = Field(default_factory=list[int], max_length=1 << 20)
    messages: Annotated[list[Message], FailFast()] = Field(default_factory=list[Message], max_length=MAX_MESSAGES)
    max_tokens: int = Field(default=0, ge=0, le=4096)
    """0 looks at the prompt alone."""
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    level: Literal["tokens", "summary", "heads"] = "summary"
    budget: str = Field(default="512MB", max_length=32)
    redact: bool = False
    """Leave texts and ids of tokens out of what is answered."""

    @model_validator(mode="after")
    def _one_of_them(self) -> ReplayRequest:
        if sum((self.prompt is not None, bool(self.messages), bool(self.prompt_ids))) != 1:
            raise refuse("prompt", "prompt: give one of prompt, prompt_ids and messages")
        return self


class InfluenceRequest(Look):
    """Body of POST /inspect/influence."""

    id: str = Field(max_length=64)
    pos: int = -1
    by: Literal["section", "sentence", "word", "token"] = "sentence"


class AblateRequest(Look):
    """Body of POST /inspect/ablate: what is other on the fork."""

    id: str = Field(max_length=64)
    pos: int = -1
    heads: list[list[int]] = Field(default_factory=list[list[int]], max_length=4096)
    """Pairs of a layer and a head."""
    attn: list[int] = Field(default_factory=list[int], max_length=1024)
    """Layers whose attention is scaled."""
    mlp: list[int] = Field(default_factory=list[int], max_length=1024)
    mask: list[int] | None = Field(default=None, min_length=2, max_length=2)
    """First and end of a span that no later token sees."""
    factor: float = Field(default=0.0, ge=-100, le=100)


class CompareRequest(Look):
    """Body of POST /inspect/compare: two traces of the same tokens."""

    id: str = Field(max_length=64)
    other: str = Field(max_length=64)


@router.post("/inspect/replay")
async def replay(body: ReplayRequest, request: Request) -> Response:
    """Answer a prompt, look into it, and keep the trace; everything else is asked for by its id."""
    service, traces = _of(request)
    service.check_model(body.model)
    if budget_bytes(body.budget) > MOST_BUDGET:
        raise RequestError(f"budget: at most {MOST_BUDGET >> 20} MiB are served", param="budget")
    if body.messages:
        ids = await chat_prompt(service, Conversation(messages=body.messages))
    elif body.prompt is not None:
        [ids] = await encode_texts(service, [body.prompt], add_special=True)
    else:
        ids = body.prompt_ids
    params = SamplingParams(
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        seed=body.seed,
        max_tokens=body.max_tokens,
    )
    llm = service.llm
    trace = await traces.run(lambda: llm.inspect(ids, params, level=body.level, budget=body.budget))
    if body.redact:
        trace = replace(trace, pieces=[b""] * len(trace.pieces))
    summary = trace.summary()
    if body.redact:
        summary["tokens"] = [{**token, "id": None} for token in summary["tokens"]]
    return JSONResponse(plain({"id": traces.keep(trace), **summary, "redacted": body.redact}))


@router.get("/inspect/requests/{id}/tokens")
async def tokens(id: str, request: Request) -> Response:
    """Give the tokens and what each was worth, and the norms of what layers wrote."""
    _, traces = _of(request)
    trace = traces.get(id)
    return JSONResponse(views.tokens(trace))


@router.get("/inspect/requests/{id}/logits")
async def logits(
    id: str,
    request: Request,
    pos: Place = -1,
    top: Small = 20,
    temperature: Annotated[float | None, Query()] = None,
    top_k: Annotated[int | None, Query()] = None,
    top_p: Annotated[float | None, Query()] = None,
    min_p: Annotated[float | None, Query()] = None,
    seed: Annotated[int | None, Query()] = None,
) -> Response:
    """Say why the token at `pos` was chosen: the sampling funnel; or what other settings would have chosen there."""
    service, traces = _of(request)
    trace = traces.get(id)
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    params = replace(trace.params, **{name: value for name, value in given.items() if value is not None})
    other = replace(trace, params=params, seed=trace.seed if seed is None else seed)
    return JSONResponse(await traces.run(lambda: views.logits(service.llm, other, pos, min(top, 200))))


@router.get("/inspect/requests/{id}/attribution")
async def attribution(id: str, request: Request, pos: Place = -1) -> Response:
    """Say who wrote the logit of the token at `pos`: each part of the residual stream, through the last norm."""
    _, traces = _of(request)
    trace = traces.get(id)
    return JSONResponse(plain(await traces.run(lambda: trace.attribution(pos))))


@router.get("/inspect/requests/{id}/neurons")
async def neurons(id: str, request: Request, pos: Place = -1, top: Small = 10) -> Response:
    """Give the neurons that fired most where the token at `pos` was foreseen."""
    _, traces = _of(request)
    trace = traces.get(id)
    return JSONResponse(plain(await traces.run(lambda: trace.top_neurons(pos, min(top, 100)))))


@router.get("/inspect/requests/{id}/embed")
async def embed(id: str, request: Request, pos: Place = -1, top: Small = 8) -> Response:
    """Give the vocabulary's nearest vectors to the one of the token at `pos`, and a map (PCA) of all tokens."""
    service, traces = _of(request)
    trace = traces.get(id)
    at = trace.at(pos)

    def look() -> dict[str, Any]:
        return views.embed(service.llm, trace, at, neighbours(service.llm, [trace.ids[at]], min(top, 50)))

    return JSONResponse(await traces.run(look))


@router.get("/inspect/requests/{id}/lens")
async def lens(id: str, request: Request, pos: Place = -1, top: Small = 8) -> Response:
    """Give what each layer would say for the token at `pos`."""
    service, traces = _of(request)
    trace = traces.get(id)
    found = await traces.run(lambda: trace.logit_lens(pos=pos, top_k=min(top, 20)))
    return JSONResponse(views.lens(service.llm, trace, found))


@router.get("/inspect/requests/{id}/attn/heads")
async def heads(id: str, request: Request) -> Response:
    """Give the metrics of every head, (layers, heads) each."""
    _, traces = _of(request)
    trace = traces.get(id)
    return JSONResponse(await traces.run(lambda: views.heads(trace)))


@router.get("/inspect/requests/{id}/attn/row")
async def row(id: str, request: Request, layer: Small = 0, head: Small = 0, pos: Place = -1) -> Response:
    """Give the weights of a head's query at `pos`, one for each token up to it, and the share of the head's sink."""
    _, traces = _of(request)
    trace = traces.get(id)
    at = trace.at(pos)
    weights = (await traces.run(lambda: trace.attention(layer, head, at)))[0, 0]
    sink = max(0.0, 1.0 - float(weights.sum(dtype=np.float64)))
    return JSONResponse(plain({"pos": at, "layer": layer, "head": head, "weights": weights, "sink": sink}))


@router.get("/inspect/requests/{id}/attn/tile", response_class=Response)
async def tile(
    id: str,
    request: Request,
    layer: Small = 0,
    head: Small = 0,
    z: Small = 0,
    x: Small = 0,
    y: Small = 0,
    pool: Literal["max", "mean"] = "max",
) -> Response:
    """Give a tile of a head's map: one byte a cell, rows are queries; a cell of level z stands for 2^z by 2^z weights.

    A weight is cell / 255 · X-Scale. X-Rows and X-Columns tell the tile's size.
    """
    _, traces = _of(request)
    trace = traces.get(id)
    if z > 24:
        raise RequestError("z: at most 24 levels", param="z")
    key = f"{id}/{layer}/{head}/{z}/{x}/{y}/{pool}"
    tag = f'"{hashlib.sha256(key.encode()).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    cells = await traces.run(lambda: _tile(trace, layer, head, z, x, y, pool))
    scale = float(cells.max()) or 1.0
    return Response(
        np.rint(cells / scale * 255).astype(np.uint8).tobytes(),
        media_type="application/octet-stream",
        headers={"etag": tag, "x-scale": repr(scale), "x-rows": str(cells.shape[0]), "x-columns": str(cells.shape[1])},
    )


@router.get("/inspect/requests/{id}/activations", response_class=Response)
async def activations(
    id: str, request: Request, names: Annotated[list[str], Query(min_length=1, max_length=64)], pos: Place | None = None
) -> Response:
    """Give values by name (* fits anything) as a safetensors file; of one position, or of all."""
    _, traces = _of(request)
    trace = traces.get(id)
    rows = None if pos is None else [trace.at(pos)]
    data = await traces.run(lambda: safetensors(trace.activations(names, rows)))
    return Response(data, media_type="application/octet-stream")


@router.post("/inspect/influence")
async def influence(body: InfluenceRequest, request: Request) -> Response:
    """Give what each part of the prompt does for a token, by masking it."""
    _, traces = _of(request)
    trace = traces.get(body.id)
    found = await traces.run(lambda: trace.prompt_influence(body.pos, by=body.by))
    answer = plain(found)
    if not any(trace.pieces):
        for span in answer["spans"]:
            span["text"] = ""
    return JSONResponse(answer)


@router.post("/inspect/ablate")
async def ablate(body: AblateRequest, request: Request) -> Response:
    """Score a token again on a fork in which heads or parts are scaled, or a span is masked."""
    _, traces = _of(request)
    trace = traces.get(body.id)
    return JSONResponse(plain(await traces.run(lambda: _ablate(trace, body))))


@router.post("/inspect/compare")
async def compare(body: CompareRequest, request: Request) -> Response:
    """Compare two traces of the same tokens."""
    _, traces = _of(request)
    one, other = traces.get(body.id), traces.get(body.other)
    if one.ids != other.ids:
        raise RequestError("the two traces are of different tokens", param="other")
    found = await traces.run(lambda: one.compare(other))
    return JSONResponse(plain({"kl": found.kl, "flips": found.flips, "first_divergence": found.first_divergence}))


def _of(request: Request) -> tuple[Service, Traces]:
    return request.app.state.service, request.app.state.traces


def _ablate(trace: Trace, body: AblateRequest) -> dict[str, Any]:
    at = trace.at(body.pos)
    if not at:
        raise RequestError("nothing stands before the first token", param="pos")
    if any(len(pair) != 2 for pair in body.heads):
        raise RequestError("heads: give pairs of a layer and a head", param="heads")
    forked = trace.fork(
        heads=[(pair[0], pair[1]) for pair in body.heads],
        attn=body.attn,
        mlp=body.mlp,
        factor=body.factor,
        mask=None if body.mask is None else (body.mask[0], body.mask[1]),
    )
    found, base = forked.logprob(at), trace.fork().logprob(at)
    return {"pos": at, "logprob": base, "changed": found, "delta": found - base}


def _tile(trace: Trace, layer: int, head: int, z: int, x: int, y: int, pool: str) -> Any:
    run = trace.source()
    n, side = len(trace.ids), 1 << z
    across = -(-n // side)
    first, left = y * TILE, x * TILE
    if first >= across or left >= across:
        raise RequestError(f"the map has {across} cells a side at this level", param="x")
    high, wide = min(TILE, across - first), min(TILE, across - left)
    out = np.zeros((high, wide), np.float32)
    columns = np.arange(left * side, min(n, (left + wide) * side), side) - left * side
    rows = range(first * side, min(n, (first + high) * side))
    for positions, weights in rows_of(run, layer, [head], rows):
        part = np.zeros((len(positions), min(n, (left + wide) * side) - left * side), np.float32)
        seen = weights[0][:, left * side : left * side + part.shape[1]]
        part[:, : seen.shape[1]] = seen
        reduce = np.maximum if pool == "max" else np.add
        cells = reduce.reduceat(part, columns, axis=1)
        for position, cell in zip(positions, cells, strict=True):
            row = int(position) // side - first
            out[row] = np.maximum(out[row], cell) if pool == "max" else out[row] + cell
    return out if pool == "max" else out / side**2
