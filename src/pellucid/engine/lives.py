"""The lives of the last sequences: where each one's time went, what it waited for, what it computed twice.

Law: the engine's thread writes at its own events, a little at a time, and only where someone may look; others read.
Bounded in number and in bytes, the oldest end first. Tokens are kept to find where prompts differ, and shown by nobody
but the server, which asks whether they may be.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappush, heapreplace
from typing import TYPE_CHECKING, Any

import numpy as np

from pellucid.engine.prefixes import CacheStory, Prefixes
from pellucid.engine.steps import StepRecord, StepRing

if TYPE_CHECKING:
    from pellucid.engine.batch import Work
    from pellucid.engine.engine import Engine
    from pellucid.engine.sequence import Sequence

KEPT = 256
MOST_BYTES = 32 << 20
WORST = 8
"""Gaps between tokens that are kept with the steps that made them."""
HOLDERS = 8
"""Sequences that are named of those that ran when one came."""


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """A long wait for a token."""

    seconds: float
    token: int
    """Place in the answer of the token that came late."""
    steps: tuple[StepRecord, ...] = field(compare=False)
    """What the engine did meanwhile, as far as it is still known."""
    preempted: bool = field(compare=False)


@dataclass(slots=True)
class Life:
    """One sequence, from its arrival."""

    id: str
    tenant: str
    priority: int
    prompt_len: int
    queued_at: float
    """Times are of time.monotonic()."""
    ahead_running: int
    ahead_waiting: int
    holders: tuple[str, ...]
    """Some of those that ran when it came."""
    scheduled_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    waits: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds until it was admitted, by what kept the next in line waiting; "step": for a step that was under way."""
    cache: CacheStory | None = None
    preempted: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """(when, tokens whose K and V were given up)."""
    rows: int = 0
    """Tokens computed."""
    again: int = 0
    """Of these, computed before and given up."""
    reach: int = 0
    """Tokens that were computed at least once, or came from the cache."""
    steps: int = 0
    seconds: float = 0.0
    """Of those steps, all of them whole."""
    mates: int = 0
    """Sequences beside it, over its steps."""
    gaps: array[float] = field(default_factory=lambda: array("f"))
    """Seconds before each token but the first."""
    worst: list[Gap] = field(default_factory=list[Gap])
    tokens: array[int] = field(default_factory=lambda: array("i"))
    """Prompt and, once it has ended, answer."""
    reason: str | None = None
    delivered: int | None = None
    """Tokens that its client had got when it left, or when a stop string was found; None: it got all."""
    why_cut: str = ""
    last_at: float = 0.0
    last_step: int = 0

    @property
    def nbytes(self) -> int:
        """Memory, about."""
        return 2048 + 4 * (len(self.gaps) + len(self.tokens))


@dataclass(slots=True)
class Totals:
    """What was computed for nothing since the start, in tokens."""

    evicted: int = 0
    other_tenant: int = 0
    preempted: int = 0
    not_looked_up: int = 0
    after_disconnect: int = 0
    after_stop: int = 0
    prefill_rows: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0


@dataclass(slots=True)
class NearMiss:
    """Prompts that differ from another at one place and are alike behind it."""

    tenant: str
    diverged_at: int
    requests: int = 0
    tokens: int = 0
    """That would have been cached had the difference stood at the end."""
    example: str = ""
    nearest: str = ""


NEAR = 32
"""Tokens alike behind a difference from which on it is a near miss."""
MOST_NEAR = 256


class Lives:
    """The lives of the sequences of one engine. `get` and `all` may be called from any thread."""

    def __init__(self, engine: Engine, ring: StepRing, kept: int = KEPT, most_bytes: int = MOST_BYTES) -> None:
        self.totals = Totals()
        self.near: OrderedDict[tuple[str, int], NearMiss] = OrderedDict()
        self._engine = engine
        self._ring = ring
        self._kept = kept
        self._most_bytes = most_bytes
        self._live: dict[str, Life] = {}
        self._done: OrderedDict[str, Life] = OrderedDict()
        self._bytes = 0
        self._prefixes = Prefixes(engine.pool.page_size)
        self._blocked: dict[str, float] = {}
        """Seconds since the start that the next in line waited, by cause."""
        self._at_arrival: dict[str, dict[str, float]] = {}
        self._last_step = time.monotonic()
        hub = engine.hub
        self._ends: list[Callable[[], None]] = [
            hub.subscribe(point, take)
            for point, take in (
                ("arrive", self._arrive),
                ("admit", self._admit),
                ("preempt", self._preempt),
                ("step", self._step),
                ("finish", self._finish),
            )
        ]

    def close(self) -> None:
        """Record no more."""
        for end in self._ends:
            end()

    def get(self, id: str) -> Life | None:
        """The life of a sequence, if it is still known."""
        return self._live.get(id) or self._done.get(id)

    def all(self) -> list[Life]:
        """Those that live, and those that ended, in the order in which they ended."""
        return [*tuple(self._done.values()), *tuple(self._live.values())]

    def cut(self, id: str, delivered: int, why: str) -> None:
        """Say, before it is ended, that what a sequence draws from now on is for nobody. From any thread."""
        life = self._live.get(id)
        if life is not None:
            life.delivered, life.why_cut = delivered, why

    def _arrive(self, point: str, frame: dict[str, Any]) -> None:
        seq: Sequence = frame["seq"]
        self._at_arrival[seq.id] = dict(self._blocked)
        if not self._live:
            self._last_step = time.monotonic()
        self._live[seq.id] = Life(
            seq.id,
            seq.tenant,
            seq.priority,
            seq.prompt_len,
            seq.queued_at,
            ahead_running=len(self._engine.scheduler.running),
            ahead_waiting=len(self._engine.scheduler.waiting) - 1,
            holders=tuple(other.id for other in self._engine.scheduler.running[:HOLDERS]),
        )

    def _admit(self, point: str, frame: dict[str, Any]) -> None:
        seq: Sequence = frame["seq"]
        life, before = self._live.get(seq.id), self._at_arrival.pop(seq.id, {})
        if life is None:  # it came before someone looked
            return
        life.scheduled_at = seq.scheduled_at
        life.reach = frame["cached"]
        waits = {why: total - before.get(why, 0.0) for why, total in self._blocked.items()}
        life.waits = {why: seconds for why, seconds in waits.items() if seconds > 0}
        rest = frame["waited"] - sum(life.waits.values())
        if rest > 0.001:
            life.waits["step"] = rest
        prompt = seq.tokens[: seq.prompt_len]
        life.tokens = array("i", prompt)
        story = self._prefixes.story(
            seq.tenant,
            prompt,
            frame["cached"],
            looked_up=seq.reusable > 0 and self._engine.pool.prefix_cache,
        )
        life.cache = story
        totals = self.totals
        totals.evicted += story.evicted
        totals.other_tenant += story.other_tenant
        totals.not_looked_up += story.not_looked_up
        if story.diverged_at is not None and story.same_after >= NEAR and story.new >= NEAR:
            self._near(life, story, story.diverged_at)

    def _near(self, life: Life, story: CacheStory, at: int) -> None:
        miss = self.near.setdefault((life.tenant, at), NearMiss(life.tenant, at))
        self.near.move_to_end((life.tenant, at))
        miss.requests += 1
        miss.tokens += min(story.same_after, story.new)
        miss.example, miss.nearest = life.id, story.nearest or ""
        if len(self.near) > MOST_NEAR:
            self.near.popitem(last=False)

    def _preempt(self, point: str, frame: dict[str, Any]) -> None:
        life = self._live.get(frame["seq"].id)
        if life is not None:
            life.preempted.append((time.monotonic(), frame["computed"]))

    def _step(self, point: str, frame: dict[str, Any]) -> None:
        record: StepRecord = frame["record"]
        now = time.monotonic()
        if record.blocked:
            self._blocked[record.blocked] = self._blocked.get(record.blocked, 0.0) + now - self._last_step
        self._last_step = now
        totals = self.totals
        totals.prefill_rows += record.prefill_rows
        totals.prefill_seconds += record.seconds * record.prefill_rows / record.rows
        totals.decode_tokens += record.decode_rows
        totals.decode_seconds += record.seconds * record.decode_rows / record.rows
        for work in frame["work"]:
            life = self._live.get(work.seq.id) or self._done.get(work.seq.id)
            if life is not None:
                self._work(life, work, record, now)

    def _work(self, life: Life, work: Work, record: StepRecord, now: float) -> None:
        again = max(0, min(work.start + work.rows, life.reach) - work.start)
        life.again += again
        self.totals.preempted += again
        life.rows += work.rows
        life.reach = max(life.reach, work.start + work.rows)
        life.steps += 1
        life.seconds += record.seconds
        life.mates += record.sequences - 1
        if not work.sample:
            return
        if life.first_token_at is None:
            life.first_token_at = now
            if life.reason is None:
                self._prefixes.add(life.id, life.tenant, life.tokens)
        else:
            gap = now - life.last_at
            life.gaps.append(gap)
            if len(life.worst) < WORST or gap > life.worst[0].seconds:
                preempted = bool(life.preempted) and life.preempted[-1][0] > life.last_at
                kept = Gap(gap, len(life.gaps), self._ring.between(life.last_step, record.step), preempted)
                (heappush if len(life.worst) < WORST else heapreplace)(life.worst, kept)
        life.last_at, life.last_step = now, record.step

    def _finish(self, point: str, frame: dict[str, Any]) -> None:
        seq: Sequence = frame["seq"]
        self._at_arrival.pop(seq.id, None)
        life = self._live.pop(seq.id, None)
        if life is None:  # it came before someone looked
            return
        life.reason, life.finished_at = frame["reason"], seq.finished_at
        life.tokens = array("i", seq.tokens)
        self._done[seq.id] = life
        self._bytes += life.nbytes
        while len(self._done) > self._kept or (self._bytes > self._most_bytes and len(self._done) > 1):
            self._bytes -= self._done.popitem(last=False)[1].nbytes
        computed = max(0, seq.computed)
        if computed >= seq.prompt_len:
            known = 0 if life.first_token_at is None else seq.prompt_len
            self._prefixes.add(seq.id, seq.tenant, seq.tokens[:computed], first=known)
        if life.delivered is not None:
            over = max(0, seq.output_len - life.delivered)
            if life.why_cut == "stop":
                self.totals.after_stop += over
            else:
                self.totals.after_disconnect += over


def quantiles(gaps: array[float]) -> dict[str, float | None]:
    """p50, p99 and the longest of some gaps, in seconds."""
    if not gaps:
        return {"p50": None, "p99": None, "max": None}
    found = np.quantile(np.array(gaps.tolist()), [0.5, 0.99, 1.0])
    return dict(zip(("p50", "p99", "max"), (float(v) for v in found), strict=True))
