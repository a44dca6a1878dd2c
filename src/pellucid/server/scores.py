"""How likely the tokens of a prompt were, as vLLM writes it: `prompt_logprobs`.

Law: pure. The lists are the engine's own and grow while it computes; they are read when the answer is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from pellucid.server.choices import token_bytes

if TYPE_CHECKING:
    from pellucid.engine.sequence import Sequence as EngineSequence
    from pellucid.text.tokenizer import Tokenizer

Top = Sequence[tuple[int, float]]
"""The likeliest (token, logprob) at a place, and the token that stands there."""
Scores = Sequence[Top | None]
"""For each token of a prompt; None for the first."""
LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


class PromptLogprob(TypedDict):
    """Of one token at a place, in the model's own distribution."""

    logprob: float
    rank: int
    """1: the likeliest."""
    decoded_token: str
    """Bytes that are no whole character show as U+FFFD."""


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of a prompt: the token's id → what is known of it, then the likeliest ones; null for the first."""


@dataclass(frozen=True)
class PromptScores:
    """What the engine says of one prompt."""

    tokens: Sequence[int]
    scores: Scores
    ranks: Sequence[int | None]
    """Of each token among all."""
    most: int
    """How many of the likeliest to name."""

    @classmethod
    def of(cls, seq: EngineSequence, most: int) -> PromptScores:
        """Of a sequence whose prompt is to be scored and that the engine has not seen yet."""
        return cls(
            tuple(seq.tokens), [] if seq.prompt_logprobs is None else seq.prompt_logprobs, seq.prompt_ranks, most
        )

    def written(self, tokenizer: Tokenizer) -> PromptLogprobs:
        """Write it for JSON."""

        def entry(token: int, top: Top, rank: int) -> dict[str, PromptLogprob]:
            logprobs = dict(top)
            ranks = {token: rank} | {other: place for place, (other, _) in enumerate(top[: self.most], start=1)}
            return {
                str(other): {
                    "logprob": max(logprobs[other], LOWEST),
                    "rank": ranks[other],
                    "decoded_token": token_bytes(tokenizer, other).decode("utf-8", "replace"),
                }
                for other in ranks
            }

        return [
            None if top is None or rank is None else entry(token, top, rank)
            for token, top, rank in zip(self.tokens, self.scores, self.ranks, strict=True)
        ]
