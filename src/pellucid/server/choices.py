"""One request on its way: from parameters to sequences, from events to the text of each choice.

Law: a `Generation` is one request; its choices number its prompts × n, prompt by prompt. Text leaves only through a
Detokenizer. Every token that was generated is counted, and a logprob leaves with the text of its token, so nothing of
a stop string shows. Personal data comes back last (pii/placeholders.py). However a Generation ends, `close` leaves no
sequence of it in the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from pellucid.engine.events import Event, TokenEvent
from pellucid.engine.sequence import Sequence as EngineSequence
from pellucid.errors import EngineError, PellucidError
from pellucid.pii.placeholders import Placeholders, Reveal
from pellucid.sampling.params import SamplingParams
from pellucid.server.errors import HTTPError, unavailable
from pellucid.server.keys import ANYONE, Key
from pellucid.text.detokenize import Detokenizer

if TYPE_CHECKING:
    from pellucid.engine.lives import Lives
    from pellucid.engine.pooling import PoolingKind
    from pellucid.engine.worker import Worker
    from pellucid.sampling.grammar import Matcher
    from pellucid.server.metrics import Metrics
    from pellucid.text.read import Reads
    from pellucid.text.tokenizer import Tokenizer


class CachedTokens(TypedDict):
    """Part of `Usage`."""

    cached_tokens: int


class Usage(TypedDict):
    """Tokens of one request: each prompt counted once, the answers of all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


@dataclass(slots=True)
class Piece:
    """What a choice has to say since the last piece: text that is certain, or its end, or both."""

    choice: int
    text: str = ""
    tokens: list[TokenEvent] = field(default_factory=list[TokenEvent])
    """The tokens whose text has come out, if logprobs were asked for."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, later: Piece) -> None:
        """Take in the piece that follows."""
        self.text += later.text
        self.tokens += later.tokens
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason


class Choice:
    """One answer that grows."""

    def __init__(
        self,
        index: int,
        seq: EngineSequence,
        tokenizer: Tokenizer,
        marks: Mapping[int, str] | None = None,
        placeholders: Placeholders | None = None,
    ) -> None:
        """`marks`: the control tokens that show in the text, each as one character."""
        params = seq.params
        self.index = index
        self.seq = seq
        self.generated = 0
        self.done = False
        self.finish_reason = ""
        self.stop_reason: int | str | None = None
        self.last_token_at: float | None = None
        self._tokenizer = tokenizer
        self._show_end = params.include_stop_str_in_output
        self._wants_tokens = params.logprobs is not None
        self._text = Detokenizer(
            tokenizer,
            prompt_ids=seq.tokens[: seq.prompt_len],
            stop=params.stop,
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
            marks=marks,
        )
        self._held: list[tuple[int, TokenEvent]] = []
        """Tokens whose text is not out yet, each with the place in the answer at which its text begins."""
        self._length = self._shown = 0
        self._reveal = None if placeholders is None else Reveal(placeholders)

    def take(self, event: Event) -> Piece | None:
        """Return what the event brings out, if anything. Raises the error that an event carries."""
        piece = self._taken(event)
        if piece is None or self._reveal is None:
            return piece
        piece.text = self._reveal.push(piece.text)
        if piece.finish_reason is not None:
            piece.text += self._reveal.finish()
        return piece if piece.text or piece.finish_reason is not None else None

    def _taken(self, event: Event) -> Piece | None:
        if isinstance(event, TokenEvent):
            return self._token(event)
        if event.reason == "error":
            self.done = True
            raise event.error or EngineError("the engine ended this request without a reason; please report this")
        if event.reason == "abort":
            raise unavailable("The server is shutting down; the answer is not complete")
        text = self._text.finish()
        if self._text.stopped is not None:
            return self._end(text, "stop", self._text.stopped)
        stop_reason = event.stop_token if event.stop_token in self.seq.params.stop_token_ids else None
        return self._end(text, event.reason, stop_reason)

    def _token(self, event: TokenEvent) -> Piece | None:
        self.generated += 1
        shown = self._show_end or event.token not in self.seq.end_ids
        if self._wants_tokens:
            self._held.append((self._length, event))
            if shown:
                self._length += characters(token_bytes(self._tokenizer, event.token))
        if not shown:
            return None
        text = self._text.push(event.token)
        if self._text.stopped is not None:
            return self._end(text, "stop", self._text.stopped)
        self._shown += len(text)
        return Piece(self.index, text, self._released(self._shown)) if text else None

    def _end(self, text: str, reason: str, stop_reason: int | str | None) -> Piece:
        self.done = True
        cut = self._shown + len(text) if self._text.stopped is not None else None
        return Piece(self.index, text, self._released(cut), reason, stop_reason)

    def _released(self, length: int | None) -> list[TokenEvent]:
        """Give out the held tokens that begin before `length` characters; all for None."""
        count = 0
        while count < len(self._held) and (length is None or self._held[count][0] < length):
            count += 1
        tokens = [event for _, event in self._held[:count]]
        del self._held[:count]
        return tokens


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Return what a token adds to a text; nothing for the rows by which a model exceeds its vocabulary."""
    return tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""


def characters(data: bytes) -> int:
    """Count the characters that begin in a piece of UTF-8."""
    return sum(byte & 0xC0 != 0x80 for byte in data)


class Generation:
    """One request and all of its choices."""

    def __init__(
        self,
        id: str,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        worker: Worker,
        tokenizer: Tokenizer,
        metrics: Metrics,
        key: Key = ANYONE,
        priority: int = 0,
        salt: str = "",
        deadline: float = 0.0,
        began: float | None = None,
        matcher: Matcher | None = None,
        pooling: PoolingKind | None = None,
        lives: Lives | None = None,
        shown: bool = False,
        reads: Reads | None = None,
        placeholders: Placeholders | None = None,
    ) -> None:
        """Make the sequences; `start` submits them.

        Args:
            id: name of the request; its sequences are named after it.
            prompts: token ids of each prompt.
            params: the same for all; params.n choices for each prompt.
            worker: the engine's thread.
            tokenizer: turns tokens back to text.
            metrics: is told of tokens and ends.
            key: whose request it is; the tenant in the engine comes from it.
            priority: lower runs earlier.
            salt: parts the prefix cache further, within the tenant.
            deadline: seconds that the whole may take; 0: no limit.
            matcher: of params.grammar.
            pooling: make embeddings of the prompts; None: none.
            placeholders: of the personal data in the prompts, which answers get back.
            began: when the request came, of time.monotonic(); None: now.
        """
        self.id = id
        self.key = key
        self.shown = shown
        self.reads = reads
        self.params = params
        self.prompts = prompts
        self._worker = worker
        self._metrics = metrics
        self._lives = lives
        self.began = time.monotonic() if began is None else began
        self._deadline = deadline
        sequences = [
            seq
            for i, prompt in enumerate(prompts)
            for seq in EngineSequence.fan_out(
                prompt,
                params,
                id=f"{id}-{i}",
                priority=priority,
                tenant=key.tenant,
                weight=key.weight,
                salt=salt,
                stop_ids=tokenizer.stop_ids,
                matcher=matcher,
                pooling=pooling,
            )
        ]
        marks = None if reads is None else reads.marks.shown
        self.choices = [Choice(i, seq, tokenizer, marks, placeholders) for i, seq in enumerate(sequences)]
        self._of: dict[str, Choice] = {choice.seq.id: choice for choice in self.choices}
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self._cancelled: PellucidError | None = None
        self._submitted = 0

    def start(self) -> None:
        """Submit every sequence. Raises CapacityError and what else the worker says; `close` undoes the rest."""
        loop = asyncio.get_running_loop()
        for choice in self.choices:
            self._worker.submit(choice.seq, self._publish, loop)
            self._submitted += 1

    def _publish(self, events: list[Event]) -> None:
        self._events += events
        self._news.set()

    async def steps(self) -> AsyncIterator[list[Piece]]:
        """Yield what came out since the last time, until every choice has ended. Raises the error that ended one."""
        deadline = asyncio.get_running_loop().time() + self._deadline if self._deadline else None
        while not all(choice.done for choice in self.choices):
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                raise HTTPError(
                    f"The answer was not complete within {self._deadline:g} s, the server's limit for a request",
                    status=408,
                    code="deadline_exceeded",
                    type="server_error",
                ) from None
            if self._cancelled is not None:
                raise self._cancelled
            self._news.clear()
            events, self._events = self._events, []
            pieces = self._pieces(events)
            if pieces:
                yield pieces

    def _pieces(self, events: list[Event]) -> list[Piece]:
        pieces: dict[int, Piece] = {}
        now = time.monotonic()
        for event in events:
            choice = self._of[event.seq.id]
            if choice.done:
                continue
            if isinstance(event, TokenEvent):
                self._metrics.token(choice, self.began, now)
            try:
                piece = choice.take(event)
            except PellucidError:
                choice.finish_reason = "error"
                self._metrics.finished(choice, "error", self.began, now)
                raise
            if piece is None:
                continue
            if piece.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = piece.finish_reason, piece.stop_reason
                self._metrics.finished(choice, piece.finish_reason, self.began, now)
                if isinstance(event, TokenEvent):  # a stop string, of which the engine knows nothing
                    self._cut(choice, "stop")
            if choice.index in pieces:
                pieces[choice.index].add(piece)
            else:
                pieces[choice.index] = piece
        return list(pieces.values())

    def cancel(self, error: PellucidError) -> None:
        """Have `steps` raise an error."""
        self._cancelled = error
        self._news.set()

    def close(self) -> None:
        """Take whatever still runs out of the engine."""
        for choice in self.choices[: self._submitted]:
            if not choice.done:
                choice.done = True
                choice.finish_reason = "abort"
                self._cut(choice, "disconnect")
                self._metrics.finished(choice, "abort", self.began, time.monotonic())

    def _cut(self, choice: Choice, why: str) -> None:
        """End a sequence; what it has drawn since is for nobody."""
        if self._lives is not None:
            self._lives.cut(choice.seq.id, choice.generated, why)
        self._worker.abort(choice.seq.id)

    def most_tokens(self, context: int) -> int:
        """Tokens of the prompts and of the longest answers there may be; a sequence has `context` at most."""
        wanted, n = self.params.max_tokens, self.params.n
        return sum(len(ids) + n * (context - len(ids) if wanted is None else wanted) for ids in self.prompts)

    def usage(self) -> Usage:
        """Return the tokens so far."""
        prompt = sum(len(ids) for ids in self.prompts)
        answer = sum(choice.generated for choice in self.choices)
        cached = sum(choice.seq.cached_tokens for choice in self.choices[:: self.params.n])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
