"""Sequence: one prompt and the one answer that grows on it.

Law: `computed` is the only progress there is. Tokens before it have their K and V in `pages`; the scheduler lets it
catch up with `tokens`. Prefill, decode, prefix hits and preemption are values of `computed`, not states.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import uuid4

from pellucid.engine.pooling import Pooling, PoolingKind
from pellucid.sampling.params import SamplingParams

if TYPE_CHECKING:
    from pellucid._core import SampleState
    from pellucid.engine.watch import Look, Watch
    from pellucid.sampling.grammar import Matcher

TopLogprobs = list[tuple[int, float]]
"""(id, logprob), best first; the token in question is appended if it is not among the best."""


class Sequence:
    """One prompt and its answer. Owned by the engine's thread from add() to its FinishEvent."""

    __slots__ = (
        "arrival",
        "cached_tokens",
        "choice",
        "computed",
        "digests",
        "end_ids",
        "finish_reason",
        "finished_at",
        "first_token_at",
        "id",
        "limit",
        "matcher",
        "pages",
        "paid",
        "params",
        "pooling",
        "preemptions",
        "priority",
        "prompt_len",
        "prompt_logprobs",
        "prompt_ranks",
        "published",
        "queued_at",
        "root",
        "running",
        "salt",
        "sampler",
        "scheduled_at",
        "seed",
        "seed_given",
        "slot",
        "stop_ids",
        "tenant",
        "tokens",
        "watch",
        "weight",
    )

    def __init__(
        self,
        prompt_ids: Iterable[int],
        params: SamplingParams | None = None,
        *,
        id: str | None = None,
        choice: int = 0,
        priority: int = 0,
        tenant: str = "",
        weight: float = 1.0,
        salt: str = "",
        stop_ids: frozenset[int] = frozenset(),
        seed: int | None = None,
        matcher: Matcher | None = None,
        pooling: PoolingKind | None = None,
    ) -> None:
        """Make a sequence that is ready for Engine.add.

        Args:
            prompt_ids: token ids of the prompt, at least one.
            params: how to sample; None: the defaults.
            id: name, unique in the engine; None: drawn.
            choice: 0..n-1 among the answers to one request; part of the key of its random numbers.
            priority: lower runs earlier; equal ones share by tenant, then come in order of arrival.
            tenant: whose it is: the engine serves tenants alike, counted in tokens, and they share no pages.
            weight: of the tenant; one of 2 gets twice the tokens of one of 1.
            salt: only sequences of the tenant with the same salt share pages.
            stop_ids: the model's own end tokens (Tokenizer.stop_ids).
            matcher: of params.grammar, if there is one; each answer has its own.
            pooling: make an embedding of the prompt; None: none.
            seed: used if params.seed is None; if both are, the engine's configured one, else one that is drawn here.
        """
        self.id = id if id is not None else uuid4().hex
        self.tokens: list[int] = list(prompt_ids)
        """Prompt and answer."""
        self.prompt_len = len(self.tokens)
        self.params = params if params is not None else SamplingParams()
        self.choice = choice
        self.priority = priority
        self.tenant = tenant
        self.weight = weight
        self.salt = salt
        given = self.params.seed if self.params.seed is not None else seed
        self.seed_given = given is not None
        self.seed: int = given if given is not None else secrets.randbits(63)
        """The seed that is used: recorded here so that the answer can be drawn again."""
        self.stop_ids = stop_ids
        ends = frozenset(self.params.stop_token_ids)
        self.end_ids: frozenset[int] = ends if self.params.ignore_eos else ends | stop_ids
        """Every id that ends this answer."""

        self.computed = 0
        """Tokens whose K and V are in the pages."""
        self.pages: list[int] = []
        self.published = 0
        """Leading pages that are offered to the prefix cache."""
        self.digests: list[bytes] = []
        """Hash chain over the full pages of `tokens`, as far as it was needed."""
        self.root = b""
        """Where the chain begins; set by Engine.add."""
        self.cached_tokens = 0
        """Prompt tokens that came from the prefix cache when the sequence was first admitted."""
        self.prompt_logprobs: list[TopLogprobs | None] | None = None
        """One entry a prompt token, the first None; there only if params.prompt_logprobs asks for it."""
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        self.prompt_ranks: list[int | None] = [None]
        """Place of each prompt token among all, 1 for the likeliest; as many as there are `prompt_logprobs`."""

        self.watch: Watch | None = None
        """What somebody wants to see of its values; set before Engine.add."""
        self.pooling: Pooling | None = None if pooling is None else Pooling(pooling, self.prompt_len)
        """What becomes the prompt's embedding."""
        self.limit = 0
        """Length at which the answer ends; set by Engine.add."""
        self.arrival = 0
        self.paid = 0
        """Leading tokens that its tenant has paid for."""
        self.running = False
        self.slot = -1
        self.sampler: SampleState | None = None
        self.matcher = matcher
        """Where the answer stands in its grammar."""
        self.preemptions = 0
        self.finish_reason: str | None = None
        self.queued_at = time.monotonic()
        """Times are of time.monotonic(), in seconds; None until it happened."""
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.finished_at: float | None = None

    @staticmethod
    def fan_out(
        prompt_ids: Iterable[int],
        params: SamplingParams,
        *,
        id: str | None = None,
        priority: int = 0,
        tenant: str = "",
        weight: float = 1.0,
        salt: str = "",
        stop_ids: frozenset[int] = frozenset(),
        seed: int | None = None,
        matcher: Matcher | None = None,
        pooling: PoolingKind | None = None,
    ) -> list[Sequence]:
        """Return the params.n sequences of one request, with one seed; the prefix cache lets them share the prompt.

        Args: as of the constructor; ids are `id` for a single answer, else `id` with "-0", "-1" … appended.
        """
        prompt = list(prompt_ids)
        base = id if id is not None else uuid4().hex
        sequences = [
            Sequence(
                prompt,
                params,
                id=base if params.n == 1 else f"{base}-{choice}",
                choice=choice,
                priority=priority,
                tenant=tenant,
                weight=weight,
                salt=salt,
                stop_ids=stop_ids,
                seed=seed,
                matcher=None if matcher is None else matcher.copy(),
                pooling=pooling,
            )
            for choice in range(params.n)
        ]
        for sequence in sequences:
            sequence.seed = sequences[0].seed
        return sequences

    @property
    def output_ids(self) -> list[int]:
        """Tokens of the answer, the one that ended it included."""
        return self.tokens[self.prompt_len :]

    @property
    def output_len(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def looks(self) -> tuple[Look, ...]:
        """Those who see its values."""
        return tuple(look for look in (self.watch, self.pooling) if look is not None)

    @property
    def reusable(self) -> int:
        """Leading tokens that may come from the prefix cache: whose rows show nothing that is still wanted."""
        if self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len:
            return 0
        return len(self.tokens) if self.pooling is None else self.pooling.next

    @property
    def key(self) -> tuple[int, int]:
        """Order of service: priority, then arrival."""
        return (self.priority, self.arrival)

    @property
    def finished(self) -> bool:
        """True after its FinishEvent was made."""
        return self.finish_reason is not None

    def __repr__(self) -> str:
        return f"Sequence({self.id}, {self.prompt_len}+{self.output_len} tokens, computed={self.computed})"
