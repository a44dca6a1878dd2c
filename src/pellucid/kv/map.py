"""The map of the pages: which page belongs to whom, in the order of the pages.

Law: a view is copied between two steps, so all of it is of one moment and its counts are the allocator's. What is drawn
from it is made by whoever reads, not by the engine's thread. No token and no text is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["free", "cached", "held"]

MOST_RUNS = 4096
"""Runs of one map; the pages behind them are counted and left out."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one sequence holds."""

    id: str
    tenant: str
    tokens: int
    """Prompt and answer so far."""
    computed: int
    """Of these, how many have their K and V in the pages."""
    pages: tuple[int, ...]
    """In the order of the sequence."""


@dataclass(frozen=True, slots=True)
class View:
    """The pool as it was at one moment; see PagePool.view."""

    at: float
    """time.monotonic()."""
    page_size: int
    free: int
    cached: int
    used: int
    evictions: int
    refs: list[int]
    digests: list[bytes | None]
    since: list[float]
    """When each page was last taken, or kept by the cache alone."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring pages that are alike."""

    page: int
    """The first."""
    count: int
    state: State
    request: int | None
    """Place in KVMap.requests of the first sequence that holds them."""
    refs: int
    """Sequences that hold them."""
    age: float | None
    """Seconds since the oldest was taken (held), or since its last holder went (cached)."""
    prefix: str | None
    """Eight hex digits of the digest of all tokens up to the last page; None: it is not full, or not offered."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A sequence on the map."""

    id: str
    tenant: str
    tokens: int
    computed: int
    pages: int
    shared: int
    """Of these, pages that others hold, too."""


@dataclass(frozen=True, slots=True)
class KVMap:
    """All pages."""

    page_count: int
    page_size: int
    """Tokens of a page."""
    free: int
    cached: int
    held: int
    shared: int
    """Held by more than one sequence."""
    evictions: int
    """Cached pages that were given to others since the start."""
    requests: list[Holder]
    runs: list[Run]
    left_out: int
    """Pages behind the last run."""


def map_of(view: View, holdings: Sequence[Holding], most: int = MOST_RUNS) -> KVMap:
    """Draw the map of a view, at most `most` runs of it."""
    owner: dict[int, int] = {}
    for index, holding in enumerate(holdings):
        for page in holding.pages:
            owner.setdefault(page, index)
    count = len(view.refs)
    runs: list[Run] = []
    first = 0
    while first < count and len(runs) < most:
        kind = _kind(view, owner, first)
        end = first + 1
        while end < count and _kind(view, owner, end) == kind:
            end += 1
        state, request, refs, _ = kind
        digest = view.digests[end - 1]
        runs.append(
            Run(
                first,
                end - first,
                state,
                request,
                refs,
                None if state == "free" else round(view.at - min(view.since[first:end]), 3),
                None if digest is None else digest.hex()[:8],
            )
        )
        first = end
    return KVMap(
        page_count=count,
        page_size=view.page_size,
        free=view.free,
        cached=view.cached,
        held=view.used,
        shared=sum(refs > 1 for refs in view.refs),
        evictions=view.evictions,
        requests=[
            Holder(h.id, h.tenant, h.tokens, h.computed, len(h.pages), sum(view.refs[page] > 1 for page in h.pages))
            for h in holdings
        ],
        runs=runs,
        left_out=count - first,
    )


def _kind(view: View, owner: dict[int, int], page: int) -> tuple[State, int | None, int, float]:
    """What neighbours must have in common; cached pages of one sequence were let go at one time."""
    refs = view.refs[page]
    if refs:
        return "held", owner.get(page), refs, 0.0
    return ("free", None, 0, 0.0) if view.digests[page] is None else ("cached", None, 0, view.since[page])
