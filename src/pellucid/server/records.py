"""What is known of each request: who asked by which way, what it took, how it ended. No text.

Law: a record is begun when a generation is answered and closed when it is over, however it ends; after that nothing of
the generation is held by it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import Scope

if TYPE_CHECKING:
    from pellucid.server.choices import Generation
    from pellucid.text.read import ParserEvent

KEPT = 256


@dataclass(frozen=True, slots=True)
class Ended:
    """How one choice ended."""

    seq_id: str
    tokens: int
    finish_reason: str
    stop_reason: int | str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """Parameters of a request that say how much it wanted, and of what kind."""

    prompts: int
    n: int
    max_tokens: int | None
    """None: as far as the context goes."""
    priority: int
    salted: bool
    logprobs: int | None
    prompt_logprobs: int | None
    grammar: str | None
    """Its kind."""
    pooling: str | None

    @staticmethod
    def of(generation: Generation) -> Asked:
        """Take them down."""
        params, first = generation.params, generation.choices[0].seq
        return Asked(
            prompts=len(generation.prompts),
            n=params.n,
            max_tokens=params.max_tokens,
            priority=first.priority,
            salted=bool(first.salt),
            logprobs=params.logprobs,
            prompt_logprobs=params.prompt_logprobs,
            grammar=None if params.grammar is None else params.grammar.kind,
            pooling=None if first.pooling is None else first.pooling.kind,
        )


@dataclass(slots=True)
class Record:
    """One request for an answer."""

    id: str
    request_id: str
    route: str
    stream: bool
    shown: bool
    """The client lets its text be seen."""
    began: float
    """time.monotonic() when the request came."""
    received: float
    """The same, in seconds of the epoch."""
    prompt_tokens: int
    asked: Asked
    seq_ids: tuple[str, ...]
    tools: tuple[str, ...] = ()
    """Names of the functions that the model was shown."""
    events: list[ParserEvent] = field(default_factory=list["ParserEvent"])
    answer_tokens: int = 0
    cached_tokens: int = 0
    first_token_at: float | None = None
    finished_at: float | None = None
    """When the engine had done its part."""
    closed_at: float | None = None
    """When the answer was sent, or its client had left."""
    choices: tuple[Ended, ...] = ()

    @staticmethod
    def of(generation: Generation, scope: Scope, *, stream: bool) -> Record:
        """Begin a record."""
        reads = generation.reads
        return Record(
            id=generation.id,
            request_id=scope["request_id"],
            route=scope["path"],
            stream=stream,
            shown=generation.shown,
            began=generation.began,
            received=time.time() - (time.monotonic() - generation.began),
            prompt_tokens=sum(map(len, generation.prompts)),
            asked=Asked.of(generation),
            seq_ids=tuple(choice.seq.id for choice in generation.choices),
            tools=() if reads is None else tuple(str(tool["name"]) for tool in reads.tools),
            events=[] if reads is None else reads.events,
        )

    def close(self, generation: Generation) -> None:
        """Take down how it ended."""
        usage = generation.usage()
        self.answer_tokens = usage["completion_tokens"]
        self.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
        seqs = [choice.seq for choice in generation.choices]
        self.first_token_at = min((s.first_token_at for s in seqs if s.first_token_at is not None), default=None)
        self.finished_at = max((s.finished_at for s in seqs if s.finished_at is not None), default=None)
        self.closed_at = time.monotonic()
        self.choices = tuple(
            Ended(choice.seq.id, choice.generated, choice.finish_reason, choice.stop_reason)
            for choice in generation.choices
        )

    @property
    def finish_reason(self) -> str:
        """How its choices ended, each way once; "" while they run."""
        return ",".join(dict.fromkeys(choice.finish_reason for choice in self.choices))


class Records:
    """The last records, by id."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._held: OrderedDict[str, Record] = OrderedDict()

    def add(self, record: Record) -> None:
        """Keep one more; the oldest goes where there is no room."""
        self._held[record.id] = record
        while len(self._held) > self._kept:
            self._held.popitem(last=False)

    def get(self, id: str) -> Record | None:
        """By the id of the answer, or by that of the request."""
        found = self._held.get(id)
        return found or next((record for record in self._held.values() if record.request_id == id), None)

    def newest(self) -> list[Record]:
        """All, the last first."""
        return list(reversed(self._held.values()))
