"""What each view of a trace is answered: plain values, ready for JSON.

Law: whoever shows a trace asks here, a live server and a report in a file alike, so that both show the same numbers.
A look that is asked for one place runs at that place alone; several are batched by whoever asks for several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pellucid.probes.attention import METRICS
from pellucid.probes.embedding import Neighbours, principal, vectors_of
from pellucid.probes.inspect import piece_of
from pellucid.probes.lens import LogitLens
from pellucid.probes.wire import plain

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.probes.trace import Trace

MOST_POINTS = 512
"""Tokens on either side of a place whose vectors are mapped."""


def tokens(trace: Trace) -> dict[str, Any]:
    """The tokens and what each was worth, the norms of what layers wrote, and what the engine did."""
    return plain({**trace.summary(), "norms": trace.norms, "events": trace.events})


def logits(llm: LLM, trace: Trace, pos: int, top: int) -> dict[str, Any]:
    """Why the token at `pos` was chosen: the sampling funnel, and what its tokens spell."""
    found = trace.why(pos, top=top)
    ids = {token for stage in (found.raw, *(stage.top for stage in found.stages)) for token, _ in stage}
    ids |= {found.token, found.chosen, *(i.token for i in found.cdf), *(token for _, token in found.counterfactuals)}
    return plain({"funnel": found, "replays": found.replays, "texts": texts(llm, trace, ids)})


def lens(llm: LLM, trace: Trace, found: LogitLens) -> dict[str, Any]:
    """What each layer would say at some places, and what the tokens spell."""
    ids = {token for layer in found.top for place in layer for token, _ in place} | set(found.targets)
    return {**plain(found), "texts": texts(llm, trace, ids)}


def embed(llm: LLM, trace: Trace, at: int, found: Neighbours, index: int = 0) -> dict[str, Any]:
    """The token at `at`: its nearest in the vocabulary, which are [index] of `found`, and a map (PCA) of all tokens."""
    kinds = list(dict.fromkeys(trace.ids[max(0, at - MOST_POINTS) : at + MOST_POINTS]))
    near = found.near[index]
    return plain(
        {
            "pos": at,
            "norm": float(np.linalg.norm(found.vectors[index])),
            "near": near,
            "kinds": kinds,
            "places": principal(vectors_of(llm, kinds)),
            "texts": texts(llm, trace, {*kinds, *(token for token, _ in near)}),
        }
    )


def heads(trace: Trace) -> dict[str, Any]:
    """The metrics of every head, (layers, heads) each."""
    found = trace.head_metrics()
    return plain({"metrics": METRICS, "values": found.values, "kv_heads": found.kv_heads})


def texts(llm: LLM, trace: Trace, ids: set[int]) -> dict[int, str]:
    """What tokens spell; nothing where the trace tells no texts."""
    if not any(trace.pieces):
        return {}
    return {token: piece_of(llm, token).decode("utf-8", "replace") for token in ids}
