"""DRY ("don't repeat yourself", by P. E. Weidmann): what would go on with a repeat loses the more, the longer it is.

Law: a repeat is a run of tokens at the end of what there is that also stood there before. The token that followed it
then is the one that would go on. It takes time linear in the window, whatever repeats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pellucid.sampling.words import Breaker

if TYPE_CHECKING:
    from pellucid.sampling.params import SamplingParams

MOST = 64.0
"""dry_base to the power of a repeat's length grows to 2 to this power at most; nothing is drawn long before that."""


def dry(logits: NDArray[np.float32], params: SamplingParams, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Stage dry: less dry_multiplier · dry_base ** (length - dry_allowed_length) for what goes on with a repeat.

    Args:
        logits: one row (vocab,).
        params: with `breakers`.
        tokens: prompt and answer so far.
    """
    if not params.dries:
        return logits
    window = tokens if params.dry_penalty_last_n < 0 else tokens[-params.dry_penalty_last_n :]
    breakers = params.breakers or ()
    limit = min(len(window), unbroken(tokens, breakers))
    lone = {token for breaker in breakers if not breaker.tail for token in breaker.heads}
    logits = logits.copy()
    for token, length in repeats(window, limit).items():
        over = length - params.dry_allowed_length
        if over >= 0 and token not in lone:
            logits[token] -= np.float32(params.dry_multiplier * params.dry_base ** float(min(over, most(params))))
    return logits


def most(params: SamplingParams) -> int:
    """Return the exponent from which on a longer repeat loses no more."""
    return int(min(1e9, MOST / math.log2(params.dry_base))) if params.dry_base > 1.0 else 0


def unbroken(tokens: Sequence[int], breakers: Sequence[Breaker]) -> int:
    """Count the tokens behind the last sequence breaker."""
    for end in range(len(tokens), 0, -1):
        if any(breaker.ends(tokens, end) for breaker in breakers):
            return len(tokens) - end
    return len(tokens)


def repeats(window: Sequence[int], limit: int) -> dict[int, int]:
    """Map each token that stood before the end of `window` to the longest repeat, at most `limit`, it would go on with.

    With the window reversed these lengths are its Z-function: how far each suffix agrees with the whole.
    """
    back = window[::-1]
    agrees = [0] * len(back)
    longest: dict[int, int] = {}
    left = right = 0  # back[left:right] is the stretch, of those that agree with the beginning, that reaches furthest
    for at in range(1, len(back)):
        length = min(right - at, agrees[at - left]) if at < right else 0
        while at + length < len(back) and back[at + length] == back[length]:
            length += 1
        if at + length > right:
            left, right = at, at + length
        agrees[at] = length
        went_on = back[at - 1]
        longest[went_on] = max(longest.get(went_on, 0), min(length, limit))
    return longest
