"""What the engine says about a sequence: a token came, or it ended.

Law: every sequence that was added gets exactly one FinishEvent, after all of its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pellucid.engine.sequence import Sequence
from pellucid.errors import PellucidError

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One more token of a sequence. The token that ends an answer (an end or stop id) comes as an event, too."""

    seq: Sequence
    token: int
    logprob: float | None = None
    """Natural log of its probability in the model's own distribution, before any stage of the chain; if asked for."""
    top: list[tuple[int, float]] | None = None
    """The most likely (id, logprob), best first, as many as params.logprobs; the token itself is appended, with the
    very same float, if it is not among them."""


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The end of a sequence. Its pages are already back."""

    seq: Sequence
    reason: FinishReason
    error: PellucidError | None = None
    """Set if the reason is "error"."""
    stop_token: int | None = None
    """The id that ended the answer, if the reason is "stop"."""


Event = TokenEvent | FinishEvent
