"""The stages that weigh and cut the candidates, and the draw; each defined in NumPy.

Law: candidates are sorted by (x descending, id ascending), x being the logit less the best one, over the temperature
once that has been there. Every cut keeps a run of neighbours in that order, at least one of them with a weight. A stage
that edits logits may stand among the cuts: it edits those that are left. A stage reads what the one before it left, and
nothing else; a random number is that of (seed, choice, position, stage).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pellucid.sampling.mass import F32, U64, WEIGHT_BITS, best, deviation, fraction53, order, share, surprise, weights
from pellucid.sampling.params import GREEDY_BELOW, SamplingParams
from pellucid.sampling.philox import Stage


@dataclass(frozen=True)
class Candidates:
    """Tokens that may be drawn, best first."""

    ids: NDArray[np.int64]
    value: F32
    """Their logits, over the temperature that has been applied."""
    x: F32
    w: U64
    """Weights of x."""
    logit_sigma: float
    """Standard deviation of the logits of the whole row after the edits; 0 if nobody asks."""
    scale: np.float32
    """The temperature that has been applied."""
    vocab: int

    @staticmethod
    def of(row: F32, params: SamplingParams) -> Candidates:
        """Return all tokens of a row of edited logits (vocab,) that are not banned. Raises EngineError as `best`."""
        x = row - best(row)
        ids = order(x)[: int((x > -np.inf).sum())]
        sigma = deviation(x) if params.top_n_sigma > 0 else 0.0
        return Candidates(ids, row[ids], x[ids], weights(x[ids]), sigma, np.float32(1), len(row))

    @property
    def total(self) -> int:
        """Sum of the weights."""
        return int(self.w.sum(dtype=np.uint64))

    def run(self, first: int, end: int) -> Candidates:
        """Return those from `first` to before `end`."""
        span = slice(first, end)
        return replace(self, ids=self.ids[span], value=self.value[span], x=self.x[span], w=self.w[span])

    def edited(self, edit: Callable[[F32], F32]) -> Candidates:
        """Return them as an edit of a row of logits leaves them. Raises EngineError as `best`."""
        row = np.full(self.vocab, -np.inf, np.float32)
        row[self.ids] = self.value
        after = edit(row)
        if after is row:
            return self
        value = after[self.ids]
        x = value - best(value)
        again = np.lexsort((self.ids, -x))
        return replace(self, ids=self.ids[again], value=value[again], x=x[again], w=weights(x[again]))


def temperature(c: Candidates, params: SamplingParams, bits: Callable[[Stage], int]) -> Candidates:
    """Stage temperature: x less the best x that is left, over the temperature, float32."""
    scale = np.float32(params.temperature if params.dynatemp_range == 0 else dynamic(c, params))
    with np.errstate(over="ignore"):
        x = (c.x - c.x[0]) / scale
        value = c.value / scale
    again = np.lexsort((c.ids, -x))
    return replace(c, ids=c.ids[again], value=value[again], x=x[again], w=weights(x[again]), scale=scale)


def dynamic(c: Candidates, params: SamplingParams) -> float:
    """Return the temperature that the entropy of the candidates asks for, within dynatemp_range of the given one.

    low + (high - low) * (entropy / log(candidates with a weight)) ** dynatemp_exponent, in float64.
    """
    low = max(GREEDY_BELOW, params.temperature - params.dynatemp_range)
    high = params.temperature + params.dynatemp_range
    count = int((c.w > 0).sum())
    if count < 2:
        return low
    entropy = math.log(c.total) - WEIGHT_BITS * math.log(2.0) + surprise(c.x[:count], c.w[:count])
    certain = min(1.0, max(0.0, entropy / math.log(count)))
    return low + (high - low) * certain**params.dynatemp_exponent


def top_n_sigma(c: Candidates, params: SamplingParams, bits: Callable[[Stage], int]) -> Candidates:
    """Stage top_n_sigma: those at most so many standard deviations of the row's logits below the best that is left."""
    if params.top_n_sigma <= 0:
        return c
    least = np.float32(float(c.x[0]) - params.top_n_sigma * (c.logit_sigma / float(c.scale)))
    return c.run(0, max(1, int((c.x >= least).sum())))


def top_k(c: Candidates, params: SamplingParams, bits: Callable[[Stage], int]) -> Candidates:
    """Stage top_k: the first k."""
    return c.run(0, params.top_k) if params.top_k > 0 else c


def typical_p(c: Candidates, params: SamplingParams, bits: Callable[[Stage], int]) -> Candidates:
    """Stage typical_p: the fewest that have this share, taken by how near -x is to its mean, the likelier of two first.

    -x differs from a token's surprise by what its mean differs from the entropy. Of equals on the likelier side the
    higher id comes first, so that what is kept is a run.
    """
    if params.typical_p >= 1.0:
        return c
    count = int((c.w > 0).sum())
    x, w = c.x[:count], c.w[:count]
    far = -x.astype(np.float64) - surprise(x, w)
    place = np.arange(count)
    nearest = np.lexsort((np.where(far <= 0, -place, place + 1), np.abs(far)))
    need = max(1, share(c.total, params.typical_p))
    kept = nearest[: int(np.searchsorted(np.cumsum(w[nearest], dtype=np.uint64), np.uint64(need), side="left")) + 1]
    return c.run(int(kept.min()), int(kept.max()) + 1)


def top_p(c: Candidates, params: SamplingParams, bits: Callable[[Stage], int]) -> Candidates:
    """Stage top_p: the fewest likeliest that have this share of the mass."""
    if params.top_p >= 1.0:
        return c
    need = max(1, share(c.total, params.top_p))
    return c.run(0, int(np.searchsorted(np.cumsum(c.w, dtype=np.uint64), np.uint64(need), side="left")) + 1)


def min_p(c: Candidates, params: SamplingParams, bits: Callable[[Stage], int]) -> Candidates:
    """Stage min_p: those whose x is at most log(min_p) below the best that is left, compared in float32."""
    return c.run(0, max(1, int((c.x - c.x[0] >= min_x(params.min_p)).sum()))) if params.min_p > 0 else c


def min_x(min_p: float) -> np.float32:
    """Return log(min_p) as float32, -inf for 0."""
    return np.float32(math.log(min_p)) if min_p > 0 else np.float32(-np.inf)


def xtc(c: Candidates, params: SamplingParams, bits: Callable[[Stage], int]) -> Candidates:
    """Stage xtc: with xtc_probability, all of those that have xtc_threshold of the mass go but the least likely one."""
    if not params.excludes or bits(Stage.XTC) >= fraction53(params.xtc_probability):
        return c
    above = int((c.w >= np.uint64(max(1, share(c.total, params.xtc_threshold)))).sum())
    return c.run(max(0, above - 1), len(c.ids))


CUTS = {
    "temperature": temperature,
    "top_n_sigma": top_n_sigma,
    "top_k": top_k,
    "typical_p": typical_p,
    "top_p": top_p,
    "min_p": min_p,
    "xtc": xtc,
}
"""Stage → its definition, in the order that holds unless `samplers` says another."""


def cuts(
    c: Candidates, params: SamplingParams, bits: Callable[[Stage], int], edit: Callable[[str, F32], F32]
) -> Iterator[tuple[str, Candidates, Candidates]]:
    """Run the stages that params.samplers names: each one's name, what it was given and what it left.

    `edit`: runs a stage that edits logits on a row of them (vocab,), -inf for what is no candidate.
    """
    for name in params.samplers:
        if name in params.settled:
            continue  # it was there before
        before = c
        c = CUTS[name](c, params, bits) if name in CUTS else c.edited(partial(edit, name))
        yield name, before, c


def draw(w: U64, bits: int) -> int:
    """Stage draw: inverse CDF. The first candidate whose sum of weights is above bits / 2**53 of the total."""
    sums = np.cumsum(w, dtype=np.uint64)
    return int(np.searchsorted(sums, np.uint64(bits * int(sums[-1]) >> 53), side="right"))
