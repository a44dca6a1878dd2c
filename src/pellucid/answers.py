"""Answer: one request on its way, from the engine's events to a RequestOutput.

Law: text is what the detokenizer releases. A stop string ends the answer here, and the caller then takes the sequence
back from the engine; every other end is the engine's to say.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

from pellucid.engine.events import Event, FinishEvent, TokenEvent
from pellucid.engine.pooling import PoolingKind
from pellucid.engine.sequence import Sequence, TopLogprobs
from pellucid.results import Chunk, CompletionOutput, Logprob, RequestOutput, TokenLogprobs
from pellucid.sampling.grammar import Matcher
from pellucid.sampling.params import SamplingParams
from pellucid.text.detokenize import Detokenizer
from pellucid.text.tokenizer import Tokenizer


class _Choice:
    """One of the n answers to a prompt."""

    def __init__(self, tokenizer: Tokenizer, seq: Sequence, output: CompletionOutput) -> None:
        params = seq.params
        self.seq = seq
        self.output = output
        self.detok = Detokenizer(
            tokenizer,
            prompt_ids=seq.tokens[: seq.prompt_len],
            stop=params.stop,
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
        )
        self.shown_text = 0
        self.shown_tokens = 0
        self.shown_end = False


class Answer:
    """The sequences of one request and the result that they fill.

    Args:
        tokenizer: of the model.
        text: the prompt as text, for the result; None where ids were given.
        ids: the prompt's tokens, at least one.
        params: how to sample.
        seed: used for every choice, whatever `params` says.
        matcher: of params.grammar.
        pooling: make an embedding of the prompt, which its sequence then has; None: none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        text: str | None,
        ids: list[int],
        params: SamplingParams,
        seed: int,
        matcher: Matcher | None = None,
        pooling: PoolingKind | None = None,
    ) -> None:
        params = replace(params, seed=seed)
        self._tokenizer = tokenizer
        self._params = params
        request_id = secrets.token_hex(8)
        self.sequences = Sequence.fan_out(
            ids, params, id=request_id, seed=seed, stop_ids=tokenizer.stop_ids, matcher=matcher, pooling=pooling
        )
        wanted = params.logprobs is not None
        outputs = [
            CompletionOutput(i, cumulative_logprob=0.0 if wanted else None, logprobs=[] if wanted else None)
            for i in range(params.n)
        ]
        self.output = RequestOutput(request_id, text, ids, outputs, seed)
        self._choices = {
            seq.id: _Choice(tokenizer, seq, output) for seq, output in zip(self.sequences, outputs, strict=True)
        }
        self.generated = 0
        """Tokens generated so far, over all choices."""

    def take(self, event: Event) -> bool:
        """Take in one event. Returns whether its sequence has ended."""
        choice = self._choices[event.seq.id]
        if isinstance(event, TokenEvent):
            self._token(choice, event)
        else:
            self._finish(choice, event)
        return choice.output.finished

    def chunks(self) -> Iterator[Chunk]:
        """What is new in each choice since the last call."""
        for choice in self._choices.values():
            out = choice.output
            first = choice.shown_tokens
            if choice.shown_end or (first == len(out.token_ids) and not out.finished):
                continue
            text = out.text[choice.shown_text :]
            choice.shown_text, choice.shown_tokens, choice.shown_end = len(out.text), len(out.token_ids), out.finished
            logprobs = None if out.logprobs is None else out.logprobs[first:]
            yield Chunk(
                out.index, text, out.token_ids[first:], logprobs, out.finish_reason, out.stop_reason, self.output
            )

    def _token(self, choice: _Choice, event: TokenEvent) -> None:
        out, params = choice.output, self._params
        out.token_ids.append(event.token)
        self.generated += 1
        if out.logprobs is not None and out.cumulative_logprob is not None and event.logprob is not None:
            out.cumulative_logprob += event.logprob
            out.logprobs.append(
                self._logprobs(event.token, event.top or [(event.token, event.logprob)], params.logprobs)
            )
        if event.token in choice.seq.end_ids and not params.include_stop_str_in_output:
            return  # the end-of-answer token is no text; FinishEvent follows
        out.text += choice.detok.push(event.token)
        if choice.detok.stopped is not None:
            out.finish_reason, out.stop_reason = "stop", choice.detok.stopped
            self._settle(choice)

    def _finish(self, choice: _Choice, event: FinishEvent) -> None:
        out = choice.output
        out.text += choice.detok.finish()
        out.finish_reason = event.reason
        if choice.detok.stopped is not None:
            out.finish_reason, out.stop_reason = "stop", choice.detok.stopped
        elif event.stop_token in self._params.stop_token_ids:
            out.stop_reason = event.stop_token
        if event.error is not None:
            self.output.error = event.error.message
        self._settle(choice)

    def _settle(self, choice: _Choice) -> None:
        seq = choice.seq
        if seq.choice == 0:
            self.output.num_cached_tokens = seq.cached_tokens
            if self._params.prompt_logprobs is not None:
                self.output.prompt_logprobs = self._prompt_logprobs(seq)

    def _prompt_logprobs(self, seq: Sequence) -> list[TokenLogprobs | None]:
        most = self._params.prompt_logprobs
        return [
            None if entry is None else self._logprobs(token, entry, most, rank)
            for token, entry, rank in zip(
                self.output.prompt_token_ids, seq.prompt_logprobs or [], seq.prompt_ranks, strict=False
            )
        ]

    def _logprobs(self, token: int, top: TopLogprobs, most: int | None, rank: int | None = None) -> TokenLogprobs:
        """The entry of one place; `top` holds the `most` likeliest tokens, and `token` behind them if it is not one.

        rank: of `token`, where it is known.
        """
        found = {
            other: Logprob(value, place if place <= (most or 0) else rank, self._text(other))
            for place, (other, value) in enumerate(top, start=1)
        }
        return {token: found.pop(token), **found}

    def _text(self, token: int) -> str:
        if token >= self._tokenizer.vocab_size:
            return ""  # models have more rows than tokens; the padding rows mean nothing
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")
