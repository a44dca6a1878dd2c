"""The chain of sampling stages, each defined in NumPy. native/sample.cpp does the same, fused; a test holds them equal.

Law: the order is penalties, dry, logit_bias, allowed_token_ids, bad_words, min_tokens, grammar, temperature,
top_n_sigma, top_k, typical_p, top_p, min_p, xtc, draw. `samplers` may say another of those that it names (SAMPLERS):
then penalties and dry come first if nothing else that is named stands before them, else where they stand.
- What edits logits comes before what cuts, so that a banned or favoured token is weighed as such; a bias comes after
  the penalties, so that it means the same number whatever was said before; what masks (allowed_token_ids, bad_words,
  min_tokens, grammar) comes after it, so that no bias lifts a mask.
- Temperature comes before the cuts, as in vLLM and Hugging Face (llama.cpp's default has it last): top_p and min_p
  then speak of the distribution that is drawn from.
- The cuts are in llama.cpp's order. top_p reads the mass that top_k left, as everywhere. min_p is behind it, as in
  Hugging Face and llama.cpp (vLLM has it first): its threshold is relative to the best token, so its own effect is
  the same in either place, and here it does not change what top_p means.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pellucid.sampling.cuts import CUTS, Candidates, cuts, draw
from pellucid.sampling.dry import dry
from pellucid.sampling.mass import F32, WEIGHT_BITS, best, order, weights
from pellucid.sampling.params import EDITORS, SamplingParams
from pellucid.sampling.philox import Stage, bits53

EDITS = (*EDITORS, "logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "grammar")
"""The stages that edit logits; `edits` runs them, unless `samplers` has some behind others."""
STAGES = (*EDITS, *CUTS, "draw")
"""All of them, in the order that holds unless `samplers` says another."""


@dataclass(frozen=True)
class StageRecord:
    """What one stage did, for those who watch."""

    name: str
    changed: bool
    kept: int
    """Tokens that are left after it (with a weight above nothing, or not banned)."""
    top: list[tuple[int, float]]
    """The first ten candidates after it: (id, logit) while `edits` runs, (id, probability) from there on."""


@dataclass(frozen=True)
class Trace:
    """How one token was drawn."""

    token: int
    stages: list[StageRecord]
    random: float | None
    """The number in [0, 1) that was used; None: greedy."""


def penalize(logits: F32, params: SamplingParams, prompt: Iterable[int], output: Iterable[int]) -> F32:
    """Stage penalties. Repetition counts prompt and answer; frequency and presence the answer only, as in vLLM."""
    if not params.penalized:
        return logits
    logits = logits.copy()
    counts = Counter(output)
    ids = np.array(sorted(counts.keys() | set(prompt)), np.int64)
    value = logits[ids]
    repetition = np.float32(params.repetition_penalty)
    value = np.where(value > 0, value / repetition, value * repetition)
    times = np.array([counts[int(id)] for id in ids], np.float32)
    value = value - np.float32(params.frequency_penalty) * times
    logits[ids] = np.where(times > 0, value - np.float32(params.presence_penalty), value)
    return logits


def bias(logits: F32, params: SamplingParams) -> F32:
    """Stage logit_bias."""
    if not params.logit_bias:
        return logits
    logits = logits.copy()
    for id, value in params.logit_bias.items():
        logits[id] += np.float32(value)
    return logits


def only(logits: F32, params: SamplingParams) -> F32:
    """Stage allowed_token_ids."""
    if params.allowed_token_ids is None:
        return logits
    ids = np.array(params.allowed_token_ids, np.int64)
    kept = np.full_like(logits, -np.inf)
    kept[ids] = logits[ids]
    return kept


def ban(logits: F32, params: SamplingParams, output: Sequence[int]) -> F32:
    """Stage bad_words: no token with which the answer would end in one of params.bad_ids."""
    last = [
        sequence[-1]
        for sequence in params.bad_ids or ()
        if sequence[-1] < len(logits) and tuple(output[max(0, len(output) + 1 - len(sequence)) :]) == sequence[:-1]
    ]
    if not last:
        return logits
    logits = logits.copy()
    logits[last] = -np.inf
    return logits


def hold(logits: F32, params: SamplingParams, output_len: int, end_ids: Iterable[int]) -> F32:
    """Stage min_tokens: no id that would end the answer while it is shorter than min_tokens."""
    ends = sorted(end_ids)
    if output_len >= params.min_tokens or not ends:
        return logits
    logits = logits.copy()
    logits[ends] = -np.inf
    return logits


def allow(logits: F32, allowed: NDArray[np.uint32] | None) -> F32:
    """Stage grammar: only tokens whose bit is set (Matcher.mask); None: no grammar."""
    if allowed is None:
        return logits
    bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")[: len(logits)]
    return np.where(bits, logits, np.float32(-np.inf))


def edit(name: str, row: F32, params: SamplingParams, tokens: Sequence[int], prompt_len: int) -> F32:
    """Run one of the stages EDITORS on a row of logits (vocab,); `tokens` are prompt and answer so far."""
    if name == "dry":
        return dry(row, params, tokens)
    first = 0 if params.repeat_last_n < 0 else max(0, len(tokens) - params.repeat_last_n)
    return penalize(row, params, tokens[first:prompt_len], tokens[max(first, prompt_len) :])


def edits(
    logits: F32,
    params: SamplingParams,
    *,
    tokens: Sequence[int],
    prompt_len: int,
    end_ids: Iterable[int],
    allowed: NDArray[np.uint32] | None,
) -> Iterator[tuple[str, F32]]:
    """Run the stages EDITS on one row of logits (vocab,): each one's name, and the row after it.

    A stage that is off gives the very row that it got. Arguments are those of `trace`.
    """
    row = logits
    for name in params.settled:
        row = edit(name, row, params, tokens, prompt_len)
        yield name, row
    row = bias(row, params)
    yield "logit_bias", row
    row = only(row, params)
    yield "allowed_token_ids", row
    row = ban(row, params, tokens[prompt_len:])
    yield "bad_words", row
    row = hold(row, params, len(tokens) - prompt_len, end_ids)
    yield "min_tokens", row
    yield "grammar", allow(row, allowed)


def runs(
    row: F32, params: SamplingParams, *, seed: int, choice: int, tokens: Sequence[int], prompt_len: int
) -> Iterator[tuple[str, Candidates, Candidates]]:
    """Run the stages between the edits and the draw on a row of edited logits: each one's name, and around it.

    Raises EngineError as `best`. Arguments are those of `trace`.
    """

    def bits(stage: Stage) -> int:
        return bits53(seed, choice, len(tokens), stage)

    def late(name: str, row: F32) -> F32:
        return edit(name, row, params, tokens, prompt_len)

    return cuts(Candidates.of(row, params), params, bits, late)


def trace(
    logits: F32,
    params: SamplingParams,
    *,
    seed: int,
    choice: int,
    tokens: Sequence[int],
    prompt_len: int,
    end_ids: Iterable[int],
    allowed: NDArray[np.uint32] | None = None,
) -> Trace:
    """Run the chain on one row of logits (vocab,) and record each stage.

    Args:
        tokens: prompt and answer so far; the token drawn has position len(tokens).
        allowed: what the grammar lets through, as Matcher.mask; None: no grammar.

    Raises: EngineError as `best`.
    """
    best(logits)
    records: list[StageRecord] = []

    row = logits
    top: list[tuple[int, float]] = []
    for name, after in edits(logits, params, tokens=tokens, prompt_len=prompt_len, end_ids=end_ids, allowed=allowed):
        if (
            after is not row or not top
        ):  # to sort a large vocabulary for each stage that is off would be most of the time
            top = [(int(i), float(after[i])) for i in order(after)[:10]]
        records.append(StageRecord(name, after is not row, int((after > -np.inf).sum()), top))
        row = after
    best(row)
    if params.greedy:
        token = int(row.argmax())
        records.append(StageRecord("draw", True, 1, [(token, 1.0)]))
        return Trace(token, records, None)
    left = Candidates.of(row, params)
    for name, before, after in runs(row, params, seed=seed, choice=choice, tokens=tokens, prompt_len=prompt_len):
        left = after
        changed = left.scale != 1 if name == "temperature" else after is not before
        if name in CUTS and name != "temperature":
            changed = len(left.ids) < len(before.ids)
        total = float(left.total)
        top = [(int(i), float(w) / total) for i, w in zip(left.ids[:10], left.w[:10], strict=True)]
        records.append(StageRecord(name, changed, int((left.w > 0).sum()), top))
    drawn = bits53(seed, choice, len(tokens))
    token = int(left.ids[draw(left.w, drawn)])
    records.append(StageRecord("draw", True, 1, [(token, 1.0)]))
    return Trace(token, records, drawn * 2.0**-53)


def log_drawn(
    logits: F32,
    params: SamplingParams,
    *,
    seed: int,
    choice: int,
    tokens: Sequence[int],
    prompt_len: int,
    end_ids: Iterable[int],
    allowed: NDArray[np.uint32] | None = None,
) -> F32:
    """Return the log-probabilities (vocab,) that the draw has after every stage, float32; -inf: cannot be drawn.

    Greedy, they are those of the edited logits. Arguments are those of `trace`.
    """
    *_, (_, row) = edits(logits, params, tokens=tokens, prompt_len=prompt_len, end_ids=end_ids, allowed=allowed)
    if params.greedy:
        return log_softmax(row, range(len(row)))
    ran = list(runs(row, params, seed=seed, choice=choice, tokens=tokens, prompt_len=prompt_len))
    left = ran[-1][2] if ran else Candidates.of(row, params)
    norm = math.log(left.total)
    out = np.full_like(row, -np.inf)
    for id, w in zip(left.ids.tolist(), left.w.tolist(), strict=True):
        if w:
            out[id] = math.log(w) - norm
    return out


def log_softmax(logits: F32, ids: Sequence[int]) -> F32:
    """Return the natural log of the probability of `ids` in softmax(logits), float32; from exact integer masses."""
    top = best(logits)
    total = int(weights(logits - top).sum())
    norm = math.log(total) - WEIGHT_BITS * math.log(2.0)
    return np.array([float(logits[i]) - float(top) - norm for i in ids], np.float32)
