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
from pellucid.sampling.cuts import CUTS, Candidates
from pellucid.sampling.mass import order
from pellucid.sampling.params import EDITORS, SAMPLERS, SamplingParams

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
    ranked = order(logits)
    rows = dict(chain.edits(logits, params, tokens=tokens, prompt_len=prompt_len, end_ids=ends, allowed=allowed))
    edited = list(rows.values())[-1]
    ran = {} if params.greedy else _cuts(edited, params, seed, choice, tokens, prompt_len)
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
        elif record.changed and record.name in CUTS and record.name != "temperature":
            given, left = ran[record.name]
            kept = min(record.kept, before)
            share = (given.total - left.total) / given.total
            # Where the likeliest went, the cut is at the other end.
            at = kept - 1 if left.ids[0] == given.ids[0] else 0
            cut = (int(left.ids[at]), int(left.w[at]) / given.total)
        shown = _probable(record, top, row) if record.name in rows else record.top[:top]
        stages.append(FunnelStage(record.name, record.changed, kept, before - kept, share, cut, shown))
        before = kept
    return Funnel(
        len(tokens),
        trace.token,
        chosen,
        [(int(i), float(raw[i])) for i in ranked[:top]],
        float(raw[chosen]),
        1 + int(np.flatnonzero(ranked == chosen)[0]),
        stages,
        trace.random,
        [] if params.greedy else _cdf(_last(edited, ran, params), chosen, top),
        _otherwise(drawn, params),
    )


def processed(
    logits: F32,
    params: SamplingParams,
    tokens: Sequence[int],
    prompt_len: int,
    end_ids: Iterable[int],
    allowed: NDArray[np.uint32] | None = None,
    *,
    seed: int,
    choice: int = 0,
) -> F32:
    """Logits as Hugging Face's `scores`: after every stage before the draw; -inf for tokens that were cut."""
    *_, (_, edited) = chain.edits(
        logits, params, tokens=tokens, prompt_len=prompt_len, end_ids=end_ids, allowed=allowed
    )
    if params.greedy:
        return edited
    left = _last(edited, _cuts(edited, params, seed, choice, tokens, prompt_len), params)
    out = np.full_like(edited, -np.inf)
    out[left.ids] = left.value
    return out


def _cuts(
    edited: F32, params: SamplingParams, seed: int, choice: int, tokens: Sequence[int], prompt_len: int
) -> dict[str, tuple[Candidates, Candidates]]:
    """What each stage between the edits and the draw was given and what it left."""
    ran = chain.runs(edited, params, seed=seed, choice=choice, tokens=tokens, prompt_len=prompt_len)
    return {name: (given, left) for name, given, left in ran}


def _last(edited: F32, ran: dict[str, tuple[Candidates, Candidates]], params: SamplingParams) -> Candidates:
    """What the draw was given."""
    return list(ran.values())[-1][1] if ran else Candidates.of(edited, params)


def _probabilities(logits: F32) -> NDArray[np.float64]:
    x = np.exp(logits.astype(np.float64) - float(logits.max()))
    return x / x.sum()


def _probable(record: chain.StageRecord, top: int, row: F32) -> list[tuple[int, float]]:
    """The likeliest after a stage of which the chain tells logits."""
    now = _probabilities(row)
    return [(i, float(now[i])) for i, _ in record.top[:top]]


def _cdf(left: Candidates, chosen: int, top: int) -> list[Interval]:
    share = left.w.astype(np.float64) / left.total
    high = np.cumsum(share)
    places = list(range(min(top, int((left.w > 0).sum()))))
    own = np.flatnonzero(left.ids == chosen)
    if len(own) and int(own[0]) not in places:
        places.append(int(own[0]))
    return [Interval(int(left.ids[i]), float(high[i] - share[i]), float(high[i])) for i in places]


def _otherwise(drawn: Callable[[SamplingParams], chain.Trace], params: SamplingParams) -> list[tuple[str, int]]:
    cases: list[tuple[str, SamplingParams]] = [("greedy", replace(params, temperature=0.0))]
    if not params.greedy:
        cases += [(f"temperature {t:g}", replace(params, temperature=t)) for t in (0.5, 1.0, 1.5)]
        if set(params.stages) - {"temperature", *EDITORS}:
            no_cuts = replace(
                params, top_k=0, top_p=1.0, min_p=0.0, top_n_sigma=0.0, typical_p=1.0, xtc_probability=0.0
            )
            cases.append(("no cuts", no_cuts))
        if params.dynatemp_range:
            cases.append(("fixed temperature", replace(params, dynatemp_range=0.0)))
        if params.samplers != SAMPLERS:
            cases.append(("usual order", replace(params, samplers=SAMPLERS)))
    if params.penalized:
        plain = replace(params, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
        cases.append(("no penalties", plain))
    if params.dries:
        cases.append(("no dry", replace(params, dry_multiplier=0.0)))
    if params.logit_bias:
        cases.append(("no bias", replace(params, logit_bias={})))
    if params.allowed_token_ids is not None:
        cases.append(("all tokens allowed", replace(params, allowed_token_ids=None)))
    if params.bad_words:
        cases.append(("no bad words", replace(params, bad_words=(), bad_ids=())))
    if params.grammar is not None:
        cases.append(("no grammar", replace(params, grammar=None)))
    return [(name, drawn(case).token) for name, case in cases if case != params]
