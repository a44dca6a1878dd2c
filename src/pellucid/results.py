"""What a request gives back, in the shape that vLLM's users know.

Law: plain data. A result holds text, ids and numbers; it knows no engine and no tokenizer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float32]

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of the probability that the model gave one token at one place."""

    logprob: float
    rank: int | None = None
    """1 for the likeliest token; None for a token of an answer that was not among those asked for."""
    decoded_token: str | None = None
    """The token's text; bytes that are no whole character show as U+FFFD."""


TokenLogprobs = dict[int, Logprob]
"""At one place: token id → its Logprob. The chosen token comes first, then the likeliest ones."""


@dataclass(slots=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    """Which of the request's `n` answers this is."""
    text: str = ""
    """The answer, cut before a stop string."""
    token_ids: list[int] = field(default_factory=list[int])
    """Every token that was generated, those of a stop string and the end-of-answer token included."""
    cumulative_logprob: float | None = None
    """Sum over `token_ids` of the logprob of each; None where logprobs were not asked for."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry for each of `token_ids`; None where not asked for."""
    finish_reason: FinishReason | None = None
    """Why it ended: stop (end of the answer, stop string, stop id), length, abort, error; None while it runs."""
    stop_reason: int | str | None = None
    """The stop string or the id of `stop_token_ids` that ended it; None for the model's own end of answer."""
    attentions: tuple[tuple[Array, ...], ...] | None = None
    """These four as Hugging Face's generate gives them, where asked for: an entry for each token drawn, the first over
    the whole prompt. Here layer → (1, heads, queries, keys)."""
    hidden_states: tuple[tuple[Array, ...], ...] | None = None
    """n_layers + 1 of (1, queries, d_model): the embedding, what each layer left, the last behind the final norm."""
    scores: tuple[Array, ...] | None = None
    """(1, vocab): logits after every stage before the draw, -inf for what was cut."""
    logits: tuple[Array, ...] | None = None
    """(1, vocab): as the model gave them."""

    @property
    def finished(self) -> bool:
        """Whether the answer has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A prompt with its answers."""

    request_id: str
    prompt: str | None
    """The text of the prompt, a rendered chat included; None where ids were given."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    seed: int
    """The seed that was used: the one given, or the one drawn. With it the same answer comes again."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One entry for each prompt token, None for the first; None where not asked for."""
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values came from the prefix cache."""
    error: str | None = None
    """What went wrong, where an answer ended with finish_reason "error"."""

    @property
    def finished(self) -> bool:
        """Whether all answers have ended."""
        return all(output.finished for output in self.outputs)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next piece of a streamed answer."""

    index: int
    """Which of the `n` answers it belongs to."""
    text: str
    """Text that is now certain: whole characters, and no beginning of a stop string."""
    token_ids: list[int]
    """Tokens generated since the last chunk; their text may come in a later one."""
    logprobs: list[TokenLogprobs] | None
    finish_reason: FinishReason | None
    """Set on the last chunk of an answer."""
    stop_reason: int | str | None
    request: RequestOutput
    """The whole request so far: one object that grows with the stream."""


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """How likely a text is to the model, token by token."""

    token_ids: list[int]
    tokens: list[str]
    """Text of each token."""
    logprobs: list[float | None]
    """Natural logarithm of each token's probability given those before it; None for the first."""
    ranks: list[int | None]
    """Place of each token among all, 1 where it was the likeliest; None for the first."""

    @property
    def logprob(self) -> float:
        """Logprob of the whole text after its first token."""
        return math.fsum(value for value in self.logprobs if value is not None)

    @property
    def perplexity(self) -> float:
        """exp of the mean negative logprob; NaN for fewer than two tokens."""
        count = sum(value is not None for value in self.logprobs)
        if not count:
            return math.nan
        mean = -self.logprob / count
        return math.exp(mean) if mean < 709.0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "token_ids": self.token_ids,
            "tokens": self.tokens,
            "logprobs": self.logprobs,
            "ranks": self.ranks,
            "logprob": self.logprob,
            "perplexity": self.perplexity,
        }
