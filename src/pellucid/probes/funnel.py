"""The sampling funnel: why this token, stage by stage.

Law: the stages are those of sampling.chain, on the very logits; the token at the end is the one that was drawn, and
`replays` says whether it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pellucid.sampling import chain
from pellucid.sampling.params import SamplingParams

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class FunnelStage:
    """One stage."""

    name: str
    changed: bool
    kept: int
    """Tokens left."""
    removed: int
    """Tokens that it took away."""
    mass_removed: float
    """Their share of the probability that there was before it."""
    cut: tuple[int, float] | None
    """The last token that a cut kept, with its probability; None: nothing was cut."""
    top: list[tuple[int, float]]
    """The likeliest (id, probability) after it."""


@dataclass(frozen=True)
class Interval:
    """A token's place on the cumulative distribution that was drawn from."""

    token: int
    low: float
    high: float


@dataclass(frozen=True)
class Funnel:
    """How one token was chosen."""

    position: int
    token: int
    """What the chain gives."""
    chosen: int
    """What was served at this place."""
    raw: list[tuple[int, float]]
    """The likeliest (id, probability) of the model's own distribution."""
    chosen_probability: float
    chosen_rank: int
    stages: list[FunnelStage]
    random: float | None
    """The number in [0, 1) that was drawn; None: greedy."""
    cdf: list[Interval]
    """The likeliest candidates, and the chosen one, in the order in which they were drawn from."""
    counterfactuals: list[tuple[str, int]]
    """What would have been chosen otherwise, by the same random number."""

    @property
    def replays(self) -> bool:
        """Whether the chain gives the token that was served."""
        return self.token == self.chosen


def funnel(
    logits: F32,
    params: SamplingParams,
    *,
    seed: int,
    choice: int,
    tokens: Sequence[int],
    prompt_len: int,
    end_ids: Iterable[int],
    chosen: int,
    top: int = 10,
    allowed: NDArray[np.uint32] | None = None,
) -> Funnel:
    """Run the chain on one row of logits (vocab,) as it was run, and tell what each stage did.

    Args:
        tokens: prompt and answer up to here; the token drawn has position len(tokens).
        chosen: the token that stands there.
        allowed: what the grammar lets through, as Matcher.mask; None: no grammar.
    """
    ends = tuple(end_ids)

    def drawn(given: SamplingParams) -> chain.Trace:
        return chain.trace(
            logits,
            given,
            seed=seed,
            choice=choice,
            tokens=tokens,
            prompt_len=prompt_len,
            end_ids=ends,
            allowed=allowed if given.grammar is not None else None,
        )

    trace = drawn(params)
    raw = _probabilities(logits)
    order = chain.order(logits)
    rows = dict(chain.edits(logits, params, tokens=tokens, prompt_len=prompt_len, end_ids=ends, allowed=allowed))
    edited = list(rows.values())[-1]
    # The distribution that the cuts read: a leading part of it stays after each.
    x = edited if params.greedy else chain.temper(edited, params)
    mass = _probabilities(x)
    ids = chain.order(x)
    sums = np.cumsum(mass[ids])
    stages: list[FunnelStage] = []
    before, row = len(logits), logits
    for record in trace.stages:
        kept, share = before, 0.0
        cut: tuple[int, float] | None = None
        if record.name in rows:
            after = rows[record.name]
            kept = int((after > -np.inf).sum())
            share = float(_probabilities(row)[(after == -np.inf) & (row > -np.inf)].sum()) if record.changed else 0.0
            row = after
        elif record.name == "draw":
            kept = 1
        elif record.changed and record.name != "temperature":
            kept = min(record.kept, before)
            share = float(1.0 - sums[kept - 1] / sums[before - 1])
            cut = (int(ids[kept - 1]), float(mass[ids[kept - 1]] / sums[before - 1]))
        shown = _shown(record, top, row)
        stages.append(FunnelStage(record.name, record.changed, kept, before - kept, share, cut, shown))
        before = kept
    left = stages[-2].kept if not params.greedy and len(stages) > 1 else 1
    return Funnel(
        len(tokens),
        trace.token,
        chosen,
        [(int(i), float(raw[i])) for i in order[:top]],
        float(raw[chosen]),
        1 + int(np.flatnonzero(order == chosen)[0]),
        stages,
        trace.random,
        [] if params.greedy else _cdf(ids[:left], mass, chosen, top),
        _otherwise(drawn, params),
    )


def processed(
    logits: F32,
    params: SamplingParams,
    tokens: Sequence[int],
    prompt_len: int,
    end_ids: Iterable[int],
    allowed: NDArray[np.uint32] | None = None,
) -> F32:
    """Logits as Hugging Face's `scores`: after every stage before the draw; -inf for tokens that were cut."""
    *_, (_, edited) = chain.edits(
        logits, params, tokens=tokens, prompt_len=prompt_len, end_ids=end_ids, allowed=allowed
    )
    if params.greedy:
        return edited
    x = chain.temper(edited, params)
    ids = chain.order(x)
    sorted_x = x[ids]
    kept = chain.cut_top_k(sorted_x, params)
    kept = min(kept, chain.cut_top_p(chain.weights(sorted_x[:kept]), params), chain.cut_min_p(sorted_x, params))
    out = np.full_like(x, -np.inf)
    out[ids[:kept]] = (edited / np.float32(params.temperature))[ids[:kept]]
    return out


def _probabilities(logits: F32) -> NDArray[np.float64]:
    x = np.exp(logits.astype(np.float64) - float(logits.max()))
    return x / x.sum()


def _shown(record: chain.StageRecord, top: int, row: F32) -> list[tuple[int, float]]:
    """The likeliest after a stage, as probabilities, also where the chain tells logits."""
    if record.name not in chain.EDITS:
        return record.top[:top]
    now = _probabilities(row)
    return [(i, float(now[i])) for i, _ in record.top[:top]]


def _cdf(ids: NDArray[np.int64], mass: NDArray[np.float64], chosen: int, top: int) -> list[Interval]:
    share = mass[ids] / mass[ids].sum()
    high = np.cumsum(share)
    places = list(range(min(top, len(ids))))
    own = np.flatnonzero(ids == chosen)
    if len(own) and int(own[0]) not in places:
        places.append(int(own[0]))
    return [Interval(int(ids[i]), float(high[i] - share[i]), float(high[i])) for i in places]


def _otherwise(drawn: Callable[[SamplingParams], chain.Trace], params: SamplingParams) -> list[tuple[str, int]]:
    cases: list[tuple[str, SamplingParams]] = [("greedy", replace(params, temperature=0.0))]
    if not params.greedy:
        cases += [(f"temperature {t:g}", replace(params, temperature=t)) for t in (0.5, 1.0, 1.5)]
        if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
            cases.append(("no cuts", replace(params, top_k=0, top_p=1.0, min_p=0.0)))
    if params.penalized:
        plain = replace(params, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
        cases.append(("no penalties", plain))
    if params.logit_bias:
        cases.append(("no bias", replace(params, logit_bias={})))
    if params.allowed_token_ids is not None:
        cases.append(("all tokens allowed", replace(params, allowed_token_ids=None)))
    if params.grammar is not None:
        cases.append(("no grammar", replace(params, grammar=None)))
    return [(name, drawn(case).token) for name, case in cases if case != params]
