"""Scheduler: who computes how many tokens in a step, and whose pages they go to.

Law: one token budget, and `computed` catches up with `tokens`. Running sequences that lack one token go first, then
those that lack more, then the waiting: by priority, then who was served least, then arrival. When pages run out the
youngest of the lowest priority gives all of its pages back and waits again with its tokens kept; the oldest can
therefore always go on, and everything ends. While answers run and a time between tokens is asked for, a step has no
more rows than fit into it.
"""

from __future__ import annotations

import time
from bisect import insort

from pellucid.engine.batch import PageTables, Step, Work
from pellucid.engine.pace import Pace
from pellucid.engine.sequence import Sequence
from pellucid.engine.shares import Shares
from pellucid.engine.steps import Blocked
from pellucid.kv.map import Holding
from pellucid.kv.pages import PagePool
from pellucid.probes.hub import Hub

SCORE_FLOATS = 1 << 24
"""Most floats (64 MiB) of logits that a step computes for the logprobs of prompts."""


class Scheduler:
    """Running and waiting sequences over one page pool."""

    def __init__(
        self,
        pool: PagePool,
        tables: PageTables,
        *,
        budget: int,
        max_seqs: int,
        vocab_size: int,
        hub: Hub,
        pace: Pace | None = None,
    ) -> None:
        self.pool = pool
        self.tables = tables
        self.budget = budget
        self.max_seqs = max_seqs
        self.score_rows = max(1, SCORE_FLOATS // vocab_size)
        self.hub = hub
        self.pace = pace
        self.shares = Shares()
        self.running: list[Sequence] = []
        """In order of service; the last is the youngest."""
        self.waiting: list[Sequence] = []
        """In order of service."""
        self.steps = 0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._coming: dict[bytes, Sequence] = {}
        """Pages that a running sequence is about to compute; who wants them waits rather than compute them twice."""
        self._planned: dict[Sequence, Work] = {}
        self._left = 0
        self._score_left = 0

    def add(self, seq: Sequence) -> None:
        """Let `seq`, which is new here, wait for its turn."""
        self.shares.arrive(seq)
        self._wait(seq)

    def _wait(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=key_of)

    def schedule(self) -> Step:
        """Choose the rows of the next step and give them pages. A step without work: nothing can run."""
        self.steps += 1
        step = Step(self.steps)
        planned = self._planned
        planned.clear()
        self._left = self._budget()
        self._score_left = self.score_rows
        preempted = self.preemptions
        behind: list[Sequence] = []
        for seq in tuple(self.running):
            if not seq.running:
                continue
            if len(seq.tokens) - seq.computed == 1:
                self._plan(seq)
            else:
                behind.append(seq)
        for seq in behind:
            if seq.running:
                self._plan(seq)
        if self.waiting:
            step.blocked = self._admit() if self.preemptions == preempted else "pages"
        step.work = list(planned.values())
        if step.work:
            step.width = max(len(work.seq.pages) for work in step.work)
        if self.hub.wants("schedule"):
            self.hub.emit(
                "schedule",
                {
                    "step": step.number,
                    "rows": [(work.seq.id, work.start, work.rows) for work in step.work],
                    "running": len(self.running),
                    "waiting": len(self.waiting),
                    "pages_used": self.pool.used,
                },
            )
        return step

    def _budget(self) -> int:
        """Rows of the next step: fewer than the most if answers wait for a token and a time for it was asked for."""
        if self.pace is None:
            return self.budget
        answers = sum(seq.output_len > 0 for seq in self.running)
        return self.pace.rows(answers, self.budget) if answers else self.budget

    def advance(self, work: Work) -> None:
        """Record that the rows of `work` are computed, and offer the pages they filled to other prompts."""
        seq, pool = work.seq, self.pool
        seq.computed = work.start + work.rows
        self.shares.charge(seq, seq.computed)
        full = seq.computed // pool.page_size
        if full > seq.published and pool.prefix_cache:
            pool.digest_to(seq.digests, seq.tokens, full, seq.root)
            for index in range(seq.published, full):
                digest = seq.digests[index]
                pool.publish(
                    seq.pages[index], digest, seq.tokens[index * pool.page_size : (index + 1) * pool.page_size]
                )
                if self._coming.get(digest) is seq:
                    del self._coming[digest]
            seq.published = full

    def remove(self, seq: Sequence) -> None:
        """Take `seq` out, running or waiting, and give its pages back."""
        if seq.running:
            self._leave(seq)
        else:
            self.waiting.remove(seq)
        self.shares.depart(seq)

    def _plan(self, seq: Sequence) -> None:
        """Give `seq` as many rows as it lacks and the budget and the pages allow, perhaps none."""
        start = seq.computed
        lacking = len(seq.tokens) - start
        rows = min(lacking, self._left)
        if rows <= 0:
            return
        scores = seq.prompt_logprobs
        score_from = score_rows = 0
        if scores is not None and len(scores) < seq.prompt_len:
            score_from = max(start, len(scores) - 1)
            rows = min(rows, score_from + self._score_left - start)
            if rows <= 0:
                return
        rows = self._grow(seq, rows)
        if rows <= 0:
            return
        if scores is not None and len(scores) < seq.prompt_len:
            score_rows = max(0, min(start + rows, seq.prompt_len - 1) - score_from)
            self._score_left -= score_rows
        sample = rows == lacking and len(seq.tokens) < seq.limit
        self._planned[seq] = Work(seq, start, rows, sample, score_from, score_rows)
        self._left -= rows

    def _grow(self, seq: Sequence, rows: int) -> int:
        """Give `seq` pages for `rows` more tokens, from the youngest if need be. Returns the rows that fit."""
        pool = self.pool
        have = len(seq.pages)
        need = pool.pages_for(seq.computed + rows) - have
        if need <= 0:
            return rows
        while need > pool.available:
            victim = self.running[-1]
            if victim is seq:
                need = pool.available
                rows = min(rows, (have + need) * pool.page_size - seq.computed)
                break
            self._preempt(victim)
        if need:
            pages = pool.take(need)
            seq.pages += pages
            self.tables.extend(seq, pages, have)
        return rows

    def _preempt(self, seq: Sequence) -> None:
        """Take all pages of `seq`; it waits again and will compute its tokens, prompt and answer, anew."""
        work = self._planned.pop(seq, None)
        if work is not None:
            self._left += work.rows
            self._score_left += work.score_rows
        if self.hub.wants("preempt"):
            self.hub.emit("preempt", {"seq": seq, "computed": seq.computed})
        self._leave(seq)
        seq.computed = seq.published = 0
        seq.preemptions += 1
        self.preemptions += 1
        self._wait(seq)

    def _leave(self, seq: Sequence) -> None:
        self.running.remove(seq)
        seq.running = False
        for digest in seq.digests[seq.published :]:
            if self._coming.get(digest) is seq:
                del self._coming[digest]
        self.tables.close(seq)
        self.pool.truncate(seq.pages, 0)

    def _admit(self) -> Blocked:
        """Let the waiting run, in their order, as long as there are places, rows and pages for all of their tokens.

        Returns what kept the next one waiting.
        """
        pool = self.pool
        # Pages that the running still need for the tokens they have, and one more each, so that none soon preempts.
        promised = sum(max(0, pool.pages_for(len(s.tokens)) - len(s.pages)) + 1 for s in self.running)
        index = 0
        # Those before `index` wait for a prefix that is being computed.
        while index < len(self.waiting) and self._left > 0 and len(self.running) < self.max_seqs:
            chosen = self.shares.next(self.waiting, index)
            seq = self.waiting[chosen]
            known: list[int] = []
            # One token is computed always, so that there are logits.
            full = (len(seq.tokens) - 1) // pool.page_size
            reusable = min(full, seq.reusable // pool.page_size)
            if pool.prefix_cache:
                pool.digest_to(seq.digests, seq.tokens, full, seq.root)
                known = pool.match(seq.digests, seq.tokens, reusable)
                if len(known) < reusable and seq.digests[len(known)] in self._coming:
                    pool.release(known)
                    self.waiting.insert(index, self.waiting.pop(chosen))
                    index += 1
                    continue
            need = pool.pages_for(len(seq.tokens)) - len(known)
            if self.running and need + promised > pool.available:
                pool.release(known)
                return "pages"
            del self.waiting[chosen]
            self._enter(seq, known, full)
            self._plan(seq)
            promised += max(0, pool.pages_for(len(seq.tokens)) - len(seq.pages)) + 1
        if not self.waiting:
            return ""
        if index == len(self.waiting):
            return "prefix"
        return "seats" if len(self.running) >= self.max_seqs else "rows"

    def _enter(self, seq: Sequence, known: list[int], full: int) -> None:
        pool = self.pool
        seq.pages = known
        seq.published = len(known)
        seq.computed = len(known) * pool.page_size
        seq.running = True
        seq.paid = max(seq.paid, seq.computed)
        self.shares.charge(seq, len(seq.tokens))
        self.tables.open(seq)
        insort(self.running, seq, key=key_of)
        if pool.prefix_cache:
            for digest in seq.digests[len(known) : full]:
                self._coming.setdefault(digest, seq)
            self.prefix_queries += len(seq.tokens)
            self.prefix_hits += seq.computed
        if seq.scheduled_at is None:
            seq.scheduled_at = time.monotonic()
            seq.cached_tokens = min(seq.computed, seq.prompt_len)
            self.prompt_tokens += seq.prompt_len
            if self.hub.wants("admit"):
                waited = seq.scheduled_at - seq.queued_at
                self.hub.emit("admit", {"seq": seq, "cached": seq.cached_tokens, "waited": waited})

    def holdings(self) -> list[Holding]:
        """What each running sequence holds now."""
        return [Holding(seq.id, seq.tenant, len(seq.tokens), seq.computed, tuple(seq.pages)) for seq in self.running]

    def check(self) -> None:
        """Raise EngineError if the pages and the running sequences do not agree."""
        self.pool.check([seq.pages for seq in self.running])


def key_of(seq: Sequence) -> tuple[int, int]:
    """Order of service."""
    return (seq.priority, seq.arrival)
