"""Engine: add sequences, step, read events.

Law: one step is five lines (schedule, batch, run, pick, commit). What goes wrong with one sequence ends that sequence
with a typed error; what goes wrong in the device ends the sequences of that step; nothing ends the engine. Not
thread-safe: one thread owns it (engine.worker), or a program that has no other.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence as Row
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pellucid._core import SampleState
from pellucid.config import EngineConfig
from pellucid.devices.base import Device, Watchable
from pellucid.engine.batch import PageTables, Step, Work, batch_of
from pellucid.engine.events import Event, FinishEvent, FinishReason, TokenEvent
from pellucid.engine.pace import Pace
from pellucid.engine.scheduler import Scheduler
from pellucid.engine.sequence import Sequence
from pellucid.engine.steps import StepParts, StepRecord
from pellucid.engine.watch import run_watched
from pellucid.errors import CapacityError, ContextLengthError, EngineError, PellucidError, RequestError
from pellucid.kv.pages import PagePool
from pellucid.probes.hub import Hub
from pellucid.sampling import chain
from pellucid.sampling.grammar import Masks
from pellucid.sampling.sampler import Picks, Sampler, ranks

log = logging.getLogger("pellucid.engine")


@dataclass(frozen=True)
class EngineStats:
    """Counts at one moment; what is not marked "now" only grows."""

    running: int
    """Sequences that have pages, now."""
    waiting: int
    """Sequences that wait for pages or a place, now."""
    pages_total: int
    pages_used: int
    """Pages held by sequences, now."""
    pages_cached: int
    """Pages that only the prefix cache keeps, now."""
    prefix_queries: int
    """Tokens looked up in the prefix cache."""
    prefix_hits: int
    """Tokens found there."""
    preemptions: int
    prompt_tokens: int
    """Tokens of the prompts that were admitted."""
    generated_tokens: int
    steps: int
    step_rows: int
    """Rows over all steps."""
    step_sizes: tuple[int, ...]
    """Steps that computed something: entry k counts those of more than 2^(k-1) and at most 2^k rows."""
    finished: dict[str, int]
    """Sequences that ended, by reason."""


class Engine:
    """Continuous batching over one device."""

    def __init__(self, device: Device, *, config: EngineConfig, hub: Hub | None = None) -> None:
        self.device = device
        self.config = config
        self.hub = hub if hub is not None else Hub()
        self.context = min(device.context, config.ctx or device.context)
        """Longest sequence, prompt and answer, in tokens."""
        self.pool = PagePool(
            device.page_count, device.page_size, prefix_cache=config.prefix_cache, content=f"{config.model} {config.kv}"
        )
        self.tables = PageTables(config.max_seqs, self.pool.pages_for(self.context))
        self.scheduler = Scheduler(
            self.pool,
            self.tables,
            budget=min(config.token_budget, device.max_rows),
            max_seqs=config.max_seqs,
            vocab_size=device.vocab_size,
            hub=self.hub,
            pace=None if config.max_itl_ms is None else Pace(config.max_itl_ms / 1000),
        )
        self.sampler = Sampler(device.vocab_size, device.pool)
        self._masks = Masks()
        self.current: Step | None = None
        """The step that was begun last."""
        self._seqs: dict[str, Sequence] = {}
        self._events: list[Event] = []
        self._watched = 0
        """Sequences that somebody looks at, or that pool their hidden states."""
        self._ends: deque[float] = deque(maxlen=64)
        """When the last sequences ended, of time.monotonic()."""
        self._arrivals = 0
        self._generated = 0
        self._step_rows = 0
        self._step_sizes = [0] * 17
        self._finished: dict[str, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}

    @property
    def busy(self) -> bool:
        """True if step() has something to do or to tell."""
        return bool(self._seqs or self._events)

    @property
    def embedding_size(self) -> int:
        """Numbers of an embedding. Raises RequestError: the device shows no hidden states."""
        if not isinstance(self.device, Watchable):
            raise RequestError("this device shows no hidden states, so it makes no embeddings", param="input")
        return self.device.d_model

    @property
    def room(self) -> int:
        """Sequences that add() takes before it refuses for want of room."""
        return max(0, self.config.max_seqs + self.config.max_queue - len(self._seqs))

    @property
    def stats(self) -> EngineStats:
        """Counts at this moment. May be read from any thread; the numbers are then nearly of one moment."""
        pool, scheduler = self.pool, self.scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            pages_total=pool.page_count,
            pages_used=pool.used,
            pages_cached=pool.cached,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            preemptions=scheduler.preemptions,
            prompt_tokens=scheduler.prompt_tokens,
            generated_tokens=self._generated,
            steps=scheduler.steps,
            step_rows=self._step_rows,
            step_sizes=tuple(self._step_sizes),
            finished=dict(self._finished),
        )

    def check(self, seq: Sequence) -> None:
        """Raise if `seq` can never be served. Reads only what never changes: any thread may call it.

        Raises:
            ContextLengthError: prompt and answer do not fit the context.
            CapacityError: they do not fit the whole KV cache.
            RequestError: the prompt is empty, an id is not in the vocabulary, or there are no embeddings to be had.
        """
        prompt, wanted, vocab = seq.prompt_len, seq.params.max_tokens, self.device.vocab_size
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token", param="prompt")
        if min(seq.tokens) < 0 or max(seq.tokens) >= vocab:
            raise RequestError(f"the prompt has a token id outside 0..{vocab - 1}", param="prompt")
        if seq.pooling is not None:
            _ = self.embedding_size
        answer = wanted if wanted is not None else max(1, self.context - prompt)
        if prompt + answer > self.context:
            raise ContextLengthError(
                f"This model's maximum context length is {self.context} tokens. However, you requested "
                f"{prompt + answer} tokens ({prompt} in the prompt, {answer} in the completion). "
                "Please reduce the length of the prompt or of the completion.",
                param="prompt" if prompt >= self.context else "max_tokens",
            )
        # The last token of an answer is drawn and never computed.
        pages = self.pool.pages_for(prompt + max(0, answer - 1))
        if pages > self.pool.page_count:
            raise CapacityError(
                f"the KV cache has {self.pool.page_count} pages of {self.pool.page_size} tokens and this request needs "
                f"{pages}; shorten it, or start with more kv_pages"
            )
        allowed = seq.params.allowed_token_ids or ()
        for name, ids in (
            ("logit_bias", seq.params.logit_bias),
            ("allowed_token_ids", allowed),
            ("stop_token_ids", seq.params.stop_token_ids),
        ):
            for id in ids:
                if id >= vocab:
                    raise RequestError(f"{name} has token id {id}, which is outside 0..{vocab - 1}", param=name)
        if name := seq.params.unspelled:
            raise RequestError(f"{name} are text, and the engine knows tokens only; LLM.spell finds them", param=name)
        if allowed and {(id,) for id in allowed} <= set(seq.params.bad_ids or ()):
            raise RequestError("allowed_token_ids are all bad_words; allow another", param="allowed_token_ids")
        if seq.params.min_tokens and allowed and seq.end_ids.issuperset(allowed):
            raise RequestError(
                "allowed_token_ids are all ends of an answer, which min_tokens keeps from being drawn; allow another",
                param="allowed_token_ids",
            )

    def add(self, seq: Sequence) -> None:
        """Let `seq` wait for its turn. Raises as `check`, and CapacityError if the queue is full."""
        self.check(seq)
        if seq.id in self._seqs:
            raise RequestError(f"there is already a sequence {seq.id!r}; ids must be unique", param="id")
        if not self.room:
            raise CapacityError(
                f"{len(self._seqs)} sequences run or wait, and no more may "
                f"(max_seqs={self.config.max_seqs}, max_queue={self.config.max_queue}); try again later",
                retry_after=self.retry_after(),
            )
        params = seq.params
        if not seq.seed_given and self.config.seed is not None:
            seq.seed = self.config.seed
        answer = params.max_tokens if params.max_tokens is not None else self.context - seq.prompt_len
        seq.limit = seq.prompt_len + answer
        seq.root = self.pool.root(seq.tenant, seq.salt)
        seq.sampler = self.sampler.state(
            params, seq.seed, seq.choice, seq.tokens, seq.end_ids, self.config.logprobs_mode
        )
        seq.arrival = self._arrivals
        self._arrivals += 1
        self._seqs[seq.id] = seq
        self._watched += bool(seq.looks)
        self.scheduler.add(seq)
        if self.hub.wants("arrive"):
            self.hub.emit("arrive", {"seq": seq})

    def retry_after(self) -> float:
        """Seconds until half of those who wait will have had their turn, as sequences lately ended: 1 to 60.

        From any thread.
        """
        ends = tuple(self._ends)
        if len(ends) < 2:
            return 1.0
        each = (time.monotonic() - ends[0]) / len(ends)
        return min(60.0, max(1.0, each * len(self.scheduler.waiting) / 2))

    def abort(self, seq_id: str) -> None:
        """End a sequence now; its FinishEvent comes with the next step. An id that is not here is no error."""
        seq = self._seqs.get(seq_id)
        if seq is not None:
            self._finish(seq, "abort")

    def abort_all(self) -> None:
        """End every sequence now."""
        for seq in tuple(self._seqs.values()):
            self._finish(seq, "abort")

    def step(self) -> list[Event]:
        """Compute one step and return what happened, in order, since the last."""
        self._step()
        events, self._events = self._events, []
        return events

    def _step(self) -> None:
        began, preempted = time.perf_counter(), self.scheduler.preemptions
        try:
            step = self.scheduler.schedule()
        except Exception as error:
            log.exception("the scheduler failed; every sequence is ended")
            self._fail(list(self._seqs.values()), error)
            return
        if not step.work:
            return
        self.current = step
        scheduled = time.perf_counter()
        try:
            batch = batch_of(step, self.tables)
            ready = time.perf_counter()
            masks = self._masks.start([w.seq.matcher for w in step.work if w.sample and w.seq.matcher is not None])
            try:
                logits = run_watched(self.device, step, batch) if self._watched else self.device.run(batch)
            finally:  # no matcher is filled after its step, whatever became of the step
                if masks is not None:
                    masks.result()
            ran = time.perf_counter()
            picks = self._pick(step, logits)
        except Exception as error:
            log.exception("step %d failed; its %d sequences are ended", step.number, len(step.work))
            self._fail([work.seq for work in step.work], error)
            return
        picked = time.perf_counter()
        if self.scheduler.pace is not None:
            self.scheduler.pace.measured(len(batch.tokens), picked - scheduled)
        self._step_rows += len(batch.tokens)
        self._step_sizes[(len(batch.tokens) - 1).bit_length()] += 1
        self._commit(step, picks, logits)
        if self.hub.wants("step"):
            ended = time.perf_counter()
            parts = StepParts(scheduled - began, ready - scheduled, ran - ready, picked - ran, ended - picked)
            preemptions = self.scheduler.preemptions - preempted
            self.hub.emit("step", {"record": self._record(step, ended - began, parts, preemptions), "work": step.work})

    def _record(self, step: Step, seconds: float, parts: StepParts, preemptions: int) -> StepRecord:
        rows = step.rows
        decode = sum(work.rows == 1 and work.start >= work.seq.prompt_len for work in step.work)
        largest = max(step.work, key=lambda work: work.rows)
        return StepRecord(
            step=step.number,
            at=time.time() - seconds,
            seconds=seconds,
            parts=parts,
            rows=rows,
            prefill_rows=rows - decode,
            decode_rows=decode,
            tokens=sum(work.sample for work in step.work),
            sequences=len(step.work),
            largest=largest.seq.id,
            largest_rows=largest.rows,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            blocked=step.blocked,
            pages_used=self.pool.used,
            preemptions=preemptions,
        )

    def _pick(self, step: Step, logits: NDArray[np.float32]) -> Picks:
        """Draw a token for each work that samples, in the order of step.work."""
        row = 0
        rows: list[int] = []
        states: list[SampleState] = []
        positions: list[int] = []
        for work in step.work:
            row += work.score_rows
            if work.sample and work.seq.sampler is not None:
                rows.append(row)
                if work.seq.matcher is not None:
                    work.seq.sampler.allow(work.seq.matcher.mask)
                states.append(work.seq.sampler)
                positions.append(work.start + work.rows)
                row += 1
        return self.sampler.pick(states, logits, rows, positions)

    def _commit(self, step: Step, picks: Picks, logits: NDArray[np.float32]) -> None:
        row = pick = 0
        for work in step.work:
            first, chosen = row, pick
            row += work.score_rows + work.sample
            pick += work.sample
            try:
                self.scheduler.advance(work)
                if work.seq.pooling is not None:
                    work.seq.pooling.check()
                if work.score_rows:
                    self._score(work, logits[first : first + work.score_rows])
                if work.sample:
                    self._token(work.seq, picks, chosen, logits, row - 1)
                elif work.seq.computed >= work.seq.limit:
                    self._finish(work.seq, "length")
            except Exception as error:
                if not isinstance(error, PellucidError):
                    log.exception("sequence %s failed and is ended", work.seq.id)
                self._fail([work.seq], error)

    def _token(self, seq: Sequence, picks: Picks, index: int, logits: NDArray[np.float32], row: int) -> None:
        """Append the token that was drawn, tell it, and end the sequence if it ends it."""
        if seq.matcher is not None:
            seq.matcher.check()
        token = picks.token(index, position=len(seq.tokens))
        if self.hub.wants("sample"):
            self._trace(seq, token, logits[row])
        seq.tokens.append(token)
        if seq.params.remembers and seq.sampler is not None:
            seq.sampler.push(token)
        self._generated += 1
        if seq.first_token_at is None:
            seq.first_token_at = time.monotonic()
        if seq.params.logprobs is None:
            self._events.append(TokenEvent(seq, token))
        else:
            logprob, top = picks.logprobs(index, token, seq.params.logprobs)
            self._events.append(TokenEvent(seq, token, logprob, top))
        if token in seq.end_ids and seq.output_len >= seq.params.min_tokens:
            self._finish(seq, "stop", stop_token=token)
        elif seq.matcher is not None and seq.matcher.accept(token):
            self._finish(seq, "stop")
        elif len(seq.tokens) >= seq.limit:
            self._finish(seq, "length")

    def _trace(self, seq: Sequence, token: int, logits: NDArray[np.float32]) -> None:
        """Tell how the token was drawn, stage by stage, by the NumPy chain."""
        trace = chain.trace(
            logits,
            seq.params,
            seed=seq.seed,
            choice=seq.choice,
            tokens=seq.tokens,
            prompt_len=seq.prompt_len,
            end_ids=seq.end_ids,
            allowed=None if seq.matcher is None else seq.matcher.mask,
        )
        if trace.token != token:
            log.error(
                "the traced chain drew %d and the native one %d at %d of %s",
                trace.token,
                token,
                len(seq.tokens),
                seq.id,
            )
        self.hub.emit("sample", {"seq": seq, "position": len(seq.tokens), "trace": trace})

    def _score(self, work: Work, logits: NDArray[np.float32]) -> None:
        """Append the logprobs and ranks of the prompt tokens that follow the rows of `logits`."""
        seq, first = work.seq, work.score_from + 1
        scores, wanted = seq.prompt_logprobs, seq.params.prompt_logprobs
        if scores is not None and wanted is not None:
            tokens = seq.tokens[first : first + work.score_rows]
            scores += self.sampler.score(logits, tokens, wanted)
            seq.prompt_ranks += ranks(logits, tokens)

    def _finish(
        self, seq: Sequence, reason: FinishReason, error: PellucidError | None = None, stop_token: int | None = None
    ) -> None:
        del self._seqs[seq.id]
        self._watched -= bool(seq.looks)
        self.scheduler.remove(seq)
        seq.sampler = None
        seq.finish_reason = reason
        seq.finished_at = time.monotonic()
        self._finished[reason] += 1
        self._ends.append(seq.finished_at)
        self._events.append(FinishEvent(seq, reason, error, stop_token))
        if self.hub.wants("finish"):
            self.hub.emit("finish", {"seq": seq, "reason": reason})

    def _fail(self, seqs: Row[Sequence], error: Exception) -> None:
        """End `seqs` with `error`."""
        for seq in seqs:
            if seq.id in self._seqs:
                self._finish(seq, "error", typed(error))


def typed(error: Exception) -> PellucidError:
    """Return `error` as one of ours: an EngineError that names it, unless it is typed already."""
    if isinstance(error, PellucidError):
        return error
    result = EngineError(f"the engine failed ({type(error).__name__}: {error}); the request has ended")
    result.__cause__ = error
    return result
