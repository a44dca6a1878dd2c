"""Service: the loaded model and its engine thread, as the routes see them.

Law: all here runs on the asyncio loop, but for the slow half of `prepare`. Whether a request may come in is asked of
`admit`, before any work is done for it; between `start` and `close` it is live.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from pellucid.engine.lives import Lives
from pellucid.engine.steps import StepRing
from pellucid.engine.watchdog import Watchdog
from pellucid.errors import CapacityError, ModelNotFoundError, PellucidError, RequestError
from pellucid.pii.placeholders import Placeholders, texts_of
from pellucid.sampling.params import SamplingParams
from pellucid.sampling.trial import MOST as TRIALS
from pellucid.server.allowance import Allowances, Reserved
from pellucid.server.calls import compiled
from pellucid.server.choices import Generation
from pellucid.server.errors import HTTPError, unavailable
from pellucid.server.keys import ANYONE, Key
from pellucid.server.limits import Limits
from pellucid.server.metrics import Metrics
from pellucid.server.records import Records
from pellucid.server.waste import Wasted

if TYPE_CHECKING:
    from pellucid.engine.pooling import PoolingKind
    from pellucid.engine.worker import Worker
    from pellucid.llm import LLM
    from pellucid.pii.find import Finder
    from pellucid.server.auditlog import AuditLog
    from pellucid.text.read import Reads

T = TypeVar("T")

STALL_AFTER = 5.0
"""Seconds without a step, while there is work, after which the server is not ready."""
INLINE_CHARACTERS = 2048
"""Text up to this long is encoded on the loop; longer text would hold up the others."""


class Service:
    """One model being served."""

    def __init__(
        self,
        name: str | None,
        limits: Limits,
        *,
        inspect: bool = False,
        private_stream: bool = False,
        strict_requests: bool = False,
        pii: Finder | None = None,
        audit_log: AuditLog | None = None,
    ) -> None:
        """Begin without a model; `attach` brings it, and its own name if `name` is None.

        `inspect`: keep records of steps for those who look.
        `private_stream`: every stream leaves as private.py says, not only those that ask for it.
        `strict_requests`: a field that nobody knows is refused in every request, not only in those that ask for it.
        `pii`: of the personal data that the model does not get to see; None: it sees all.
        `audit_log`: where requests are written down.
        """
        self.name = name or ""
        self.private_stream = private_stream
        self.strict_requests = strict_requests
        self.pii = pii
        self.audit_log = audit_log
        self.created = int(time.time())
        self.limits = limits
        self.draining = False
        self.checking = False
        """The server is looked at before it is ready."""
        self.idle = asyncio.Event()
        """Set while no request runs."""
        self.idle.set()
        self.records = Records()
        self.allowances = Allowances()
        self.wasted = Wasted()
        self._steps: StepRing | None = None
        self._lives: Lives | None = None
        self._inspect = inspect
        self._watchdog: Watchdog | None = None
        self._llm: LLM | None = None
        self._metrics: Metrics | None = None
        self._worker: Worker | None = None
        self._live: set[Generation] = set()
        self._reserved: dict[Generation, Reserved] = {}
        self._grammars = ThreadPoolExecutor(max_workers=TRIALS, thread_name_prefix="pellucid-grammar")
        self._texts = ThreadPoolExecutor(max_workers=2, thread_name_prefix="pellucid-text")

    def attach(self, llm: LLM) -> None:
        """Serve this model from now on."""
        self.name = self.name or llm.name
        self._metrics = Metrics(self.name, llm.engine)
        self._worker = llm.worker
        if self._inspect:
            self._steps = StepRing(llm.engine.hub)
            self._lives = Lives(llm.engine, self._steps)
        self._llm = llm
        self._watchdog = Watchdog(llm.worker, after=STALL_AFTER, exit_after=self.limits.exit_on_stall)

    @property
    def loading(self) -> bool:
        """True until there is a model."""
        return self._llm is None

    @property
    def llm(self) -> LLM:
        """The model. Raises HTTPError (503) while it is loading."""
        if self._llm is None:
            raise unavailable("The model is still loading; /ready says when it can answer")
        return self._llm

    @property
    def steps(self) -> StepRing:
        """Records of the last steps. Raises HTTPError (503) while the model is loading."""
        if self._steps is None:
            raise unavailable("The model is still loading, or nothing is recorded here")
        return self._steps

    @property
    def lives(self) -> Lives:
        """What is known of the last sequences. Raises HTTPError (503) while the model is loading."""
        if self._lives is None:
            raise unavailable("The model is still loading, or nothing is recorded here")
        return self._lives

    @property
    def context(self) -> int:
        """Longest sequence in tokens."""
        return self.llm.engine.context

    def fault(self) -> str | None:
        """Say why the server is not ready; None: it is."""
        if self.draining:
            return "shutting down"
        if self._worker is None:
            return "loading"
        if self.checking:
            return "being audited"
        if self.audit_log is not None and (fault := self.audit_log.fault) is not None:
            return fault
        return "the engine is stalled" if self._worker.stalled(STALL_AFTER) else None

    def check_model(self, name: str) -> None:
        """Raise ModelNotFoundError unless `name` is the served model or empty."""
        if name not in ("", self.name):
            shown = name if name.isprintable() else repr(name)
            raise ModelNotFoundError(
                f"The model `{shown[:128]}` does not exist; this server has `{self.name}`", param="model"
            )

    def admit(self, count: int) -> None:
        """Raise unless `count` more sequences can be taken: CapacityError (429), or HTTPError (503)."""
        if self.draining:
            raise self.turned_away(unavailable("The server is shutting down"))
        config = self.llm.config
        running = sum(len(generation.choices) for generation in self._live)
        if running + count > config.max_seqs + config.max_queue:
            raise self.turned_away(
                CapacityError(
                    f"{running} answers run or wait and no more fit; try again later",
                    retry_after=self.llm.engine.retry_after(),
                )
            )

    def turned_away(self, error: PellucidError) -> PellucidError:
        """Count a request that is turned away, and return why."""
        if self._metrics is not None:
            self._metrics.rejected(error.code)
        return error

    def metrics(self) -> bytes:
        """Return the numbers for Prometheus; none before there is a model."""
        return b"" if self._metrics is None else self._metrics.render()

    async def prepare(self, work: Callable[[], T], characters: int) -> T:
        """Run a piece of text processing: short ones here, long ones on a thread of their own.

        `characters`: of the text, or what costs as much.
        """
        if characters <= INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._texts, work)

    async def hide(self, body: Any, scope: MutableMapping[str, Any]) -> Any:
        """Put placeholders for the personal data in a request's body, if the server does; `scope` gets to know them."""
        if self.pii is None:
            return body
        placeholders = scope["placeholders"] = Placeholders(self.pii)
        hidden = await self.prepare(lambda: placeholders.hide(body), sum(map(len, texts_of(body))))
        if self._metrics is not None:
            self._metrics.hidden(placeholders.counts)
        return hidden

    async def generation(
        self,
        id: str,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        key: Key = ANYONE,
        priority: int = 0,
        salt: str = "",
        began: float | None = None,
        shown: bool = False,
        reads: Reads | None = None,
        pooling: PoolingKind | None = None,
        placeholders: Placeholders | None = None,
    ) -> Generation:
        """Make the generation of one admitted request; it is live from `start` to `close`.

        Raises RequestError for a grammar that cannot be compiled, which is found out on a thread, and HTTPError (403)
        for a priority over those of other keys.
        """
        llm, metrics = self.llm, self._metrics
        if metrics is None:
            raise unavailable("The model is still loading")
        if priority < 0 and "admin" not in key.scopes:
            raise HTTPError(
                "priority: one below 0 goes before other clients, which needs the scope admin; give 0 or more",
                status=403,
                code="insufficient_scope",
            )
        if placeholders is not None and (params.logprobs is not None or params.prompt_logprobs is not None):
            raise RequestError(
                "logprobs: tokens would show what this server hides of personal data (--pii); leave them out",
                param="logprobs",
            )
        matcher = None
        if params.unspelled is not None:
            params = await asyncio.get_running_loop().run_in_executor(self._texts, llm.spell, params)
        if params.grammar is not None:
            matcher = await asyncio.get_running_loop().run_in_executor(self._grammars, compiled, llm, params, reads)
        return Generation(
            id,
            prompts,
            params,
            worker=llm.worker,
            tokenizer=llm.tokenizer,
            metrics=metrics,
            key=key,
            priority=priority,
            salt=salt,
            deadline=self.limits.deadline,
            began=began,
            matcher=matcher,
            pooling=pooling,
            lives=self._lives,
            shown=shown,
            reads=reads,
            placeholders=placeholders,
        )

    def start(self, generation: Generation) -> None:
        """Admit a generation and hand it to the engine. Raises as `admit`, and what the engine says of it."""
        self.admit(len(generation.choices))
        try:
            reserved = self.allowances.reserve(generation.key, generation.most_tokens(self.context))
        except CapacityError as error:
            raise self.turned_away(error) from None
        if reserved is not None:
            self._reserved[generation] = reserved
        self._live.add(generation)
        self.idle.clear()
        try:
            generation.start()
        except CapacityError as error:
            raise self.turned_away(error) from None

    def close(self, generation: Generation) -> None:
        """Take a generation out of the engine, whether it ended or not."""
        generation.close()
        reserved = self._reserved.pop(generation, None)
        if reserved is not None:
            self.allowances.settle(reserved, generation.usage()["total_tokens"])
        self._live.discard(generation)
        if not self._live:
            self.idle.set()

    def drain(self) -> None:
        """Take no more requests; those that run go on."""
        self.draining = True
        if self.audit_log is not None:
            self.audit_log.write("drain", running=len(self._live))

    def cancel_all(self) -> None:
        """End what still runs; each client is told."""
        for generation in self._live:
            generation.cancel(unavailable("The server is shutting down; the answer is not complete"))

    def stop(self) -> None:
        """Take no more requests and end those that run; the model stays as it is."""
        self.draining = True
        self.cancel_all()
        if self._watchdog is not None:
            self._watchdog.close()
        if self._steps is not None:
            self._steps.close()
        if self._lives is not None:
            self._lives.close()
        self._texts.shutdown(wait=False, cancel_futures=True)
        self._grammars.shutdown(wait=False, cancel_futures=True)
