"""Sampler: the chain, fused, for all rows of a step in one native call.

Law: it equals sampling.chain, token for token; what goes wrong in a row is that row's error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pellucid import _core
from pellucid.errors import EngineError
from pellucid.sampling.cuts import CUTS, min_x
from pellucid.sampling.dry import most
from pellucid.sampling.mass import fraction53
from pellucid.sampling.params import EDITORS, GREEDY_BELOW, MAX_LOGPROBS, SamplingParams

OK, NOT_FINITE, ALL_BANNED = 0, 1, 2
"""What the native call says of a row."""
_NUMBERS = {name: number for number, name in enumerate((*CUTS, *EDITORS))}
"""The stages that `samplers` names, as the native chain knows them."""
_PLAIN = ("temperature", "top_k", "top_p", "min_p")
"""Stages that are fused if no other is on, in this order: what most requests ask for."""


@dataclass(frozen=True, slots=True)
class Picks:
    """The tokens of one step. Arrays of top tokens are there only if a row asked for them."""

    tokens: list[int]
    status: list[int]
    own: list[float]
    top_ids: NDArray[np.int32] | None
    top_logprobs: NDArray[np.float32] | None

    def token(self, row: int, *, position: int) -> int:
        """Return the token of a row. Raises EngineError if its logits were unfit."""
        if self.status[row] != OK:
            fault = "NaN or +inf" if self.status[row] == NOT_FINITE else "nothing but -inf"
            raise EngineError(
                f"the logits for position {position} hold {fault}; no token can be drawn, the request has ended"
            )
        return self.tokens[row]

    def logprobs(self, row: int, token: int, wanted: int) -> tuple[float, list[tuple[int, float]]]:
        """Return the logprob of `token` and the `wanted` most likely, the token appended if it is not there."""
        if self.top_ids is None or self.top_logprobs is None:
            raise EngineError("no logprobs were computed in this step")
        return self.own[row], top_list(token, self.own[row], self.top_ids[row], self.top_logprobs[row], wanted)


class Sampler:
    """Draws tokens for one vocabulary; the threads of `pool` share the rows of a step."""

    def __init__(self, vocab_size: int, pool: _core.Pool | None = None) -> None:
        self.vocab_size = vocab_size
        self.pool = pool

    def state(
        self,
        params: SamplingParams,
        seed: int,
        choice: int,
        prompt: Sequence[int],
        end_ids: Iterable[int],
        logprobs_mode: str = "raw_logprobs",
    ) -> _core.SampleState:
        """Return what the native chain needs to know of a sequence; push() is told each token if params.remembers.

        `logprobs_mode`: if params has none.
        """
        penalized, stages = params.penalized, params.stages
        temperature = params.temperature if "temperature" in stages or params.greedy else 1.0
        spread = params.dynatemp_range if "temperature" in stages else 0.0
        processed = params.logprobs is not None and (params.logprobs_mode or logprobs_mode) == "processed_logprobs"
        plain = not (spread or processed) and stages == tuple(name for name in _PLAIN if name in stages)
        return _core.SampleState.make(
            temperature=0.0 if params.greedy else temperature,
            top_k=max(0, params.top_k) if "top_k" in stages else 0,
            top_p=fraction53(params.top_p if "top_p" in stages else 1.0),
            min_x=float(min_x(params.min_p if "min_p" in stages else 0.0)),
            edits=[_NUMBERS[name] for name in params.settled],
            cuts=[_NUMBERS[name] for name in stages],
            plain=plain,
            processed=processed,
            top_n_sigma=params.top_n_sigma,
            typical_p=fraction53(params.typical_p),
            xtc_probability=fraction53(params.xtc_probability),
            xtc_threshold=fraction53(params.xtc_threshold),
            dynatemp_low=max(GREEDY_BELOW, temperature - spread) if spread else temperature,
            dynatemp_high=temperature + spread,
            dynatemp_exponent=params.dynatemp_exponent,
            repetition=params.repetition_penalty,
            presence=params.presence_penalty,
            frequency=params.frequency_penalty,
            dry_multiplier=params.dry_multiplier if params.dries else 0.0,
            dry_base=params.dry_base,
            dry_allowed=params.dry_allowed_length,
            dry_most=most(params),
            dry_window=params.dry_penalty_last_n,
            dry_breakers=[(sorted(b.heads), b.tail) for b in params.breakers or ()] if params.dries else [],
            seed=seed & 0xFFFFFFFFFFFFFFFF,
            choice=choice,
            logprobs=-1 if params.logprobs is None else params.logprobs,
            held_until=len(prompt) + params.min_tokens,
            held_ids=[id for id in end_ids if id < self.vocab_size] if params.min_tokens else [],
            bias_ids=list(params.logit_bias),
            bias_values=list(params.logit_bias.values()),
            only_ids=params.allowed_token_ids or [],
            bad_ids=[ids for ids in params.bad_ids or () if ids[-1] < self.vocab_size],
            penalized=penalized,
            window=params.repeat_last_n,
            prompt=prompt if params.remembers else [],
        )

    def pick(
        self,
        states: Sequence[_core.SampleState],
        logits: NDArray[np.float32],
        rows: Sequence[int],
        positions: Sequence[int],
    ) -> Picks:
        """Draw one token for each state.

        Args:
            logits: (R, vocab).
            rows: row of logits of each state.
            positions: position of the token to be drawn, for each state.
        """
        count = len(states)
        tokens, status = np.empty(count, np.int32), np.empty(count, np.int32)
        own = np.empty(count, np.float32)
        top_ids = top_logprobs = None
        if any(state.logprobs >= 0 for state in states):
            top_ids = np.empty((count, MAX_LOGPROBS), np.int32)
            top_logprobs = np.empty((count, MAX_LOGPROBS), np.float32)
        if count:
            _core.sample_rows(
                states,
                logits,
                np.array(rows, np.int32),
                np.array(positions, np.int64),
                tokens,
                status,
                own,
                top_ids,
                top_logprobs,
                self.pool,
            )
        return Picks(tokens.tolist(), status.tolist(), own.tolist(), top_ids, top_logprobs)

    def score(
        self, logits: NDArray[np.float32], tokens: Sequence[int], wanted: int
    ) -> list[list[tuple[int, float]] | None]:
        """Return, for each row of logits (R, vocab), the `wanted` most likely (id, logprob) and that of tokens[row]."""
        count = len(tokens)
        status, own = np.empty(count, np.int32), np.empty(count, np.float32)
        top_ids = np.empty((count, MAX_LOGPROBS), np.int32)
        top_logprobs = np.empty((count, MAX_LOGPROBS), np.float32)
        _core.score_rows(logits, np.array(tokens, np.int32), wanted, status, own, top_ids, top_logprobs)
        if status.any():
            raise EngineError(
                "the model gave logits that are not finite for a token of the prompt; the request has ended"
            )
        return [
            top_list(token, float(own[row]), top_ids[row], top_logprobs[row], wanted)
            for row, token in enumerate(tokens)
        ]


def ranks(logits: NDArray[np.float32], tokens: Sequence[int]) -> list[int]:
    """Return the place of tokens[row] in each row of logits (R, vocab), by (logit descending, id ascending), from 1."""
    return [
        1 + int(np.count_nonzero(row > row[token])) + int(np.count_nonzero(row[:token] == row[token]))
        for row, token in zip(logits, tokens, strict=True)
    ]


def top_list(
    token: int, own: float, ids: NDArray[np.int32], logprobs: NDArray[np.float32], wanted: int
) -> list[tuple[int, float]]:
    """Return the first `wanted` (id, logprob), and (token, own) after them if the token is not there; -1 is no id."""
    pairs = [
        (id, value) for id, value in zip(ids[:wanted].tolist(), logprobs[:wanted].tolist(), strict=True) if id >= 0
    ]
    if all(id != token for id, _ in pairs):
        pairs.append((token, own))
    return pairs
