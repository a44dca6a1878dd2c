"""The chain of sampling stages, each defined in NumPy. native/sample.cpp does the same, fused; a test holds them equal.

Law: the order is penalties, logit_bias, allowed_token_ids, min_tokens, grammar, temperature, top_k, top_p, min_p, draw.
- What edits logits comes before what cuts, so that a banned or favoured token is weighed as such; a bias comes after
  the penalties, so that it means the same number whatever was said before; what masks (allowed_token_ids, min_tokens,
  grammar) comes after it, so that no bias lifts a mask.
- Temperature comes before the cuts, as in vLLM and Hugging Face (llama.cpp's default has it last): top_p and min_p
  then speak of the distribution that is drawn from.
- Every cut keeps a leading part of the candidates sorted by (logit descending, id ascending). top_p reads the mass
  that top_k left, as everywhere. min_p is last, as in Hugging Face and llama.cpp (vLLM has it first): its threshold
  is relative to the best token, which no cut removes, so its own effect is the same in any place, and here it does
  not change what top_p means.

Weights are exp(x) in float32 by a fixed polynomial, times 2**44, as integers. Integer sums are exact: a mass has the
same bits in any order, on any number of lanes or threads, on any device, and the draw compares integers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pellucid.errors import EngineError
from pellucid.sampling.params import SamplingParams
from pellucid.sampling.philox import Stage, bits53

F32 = NDArray[np.float32]
U64 = NDArray[np.uint64]

EDITS = ("penalties", "logit_bias", "allowed_token_ids", "min_tokens", "grammar")
"""The stages that edit logits; `edits` runs them."""
STAGES = (*EDITS, "temperature", "top_k", "top_p", "min_p", "draw")
WEIGHT_BITS = 44
"""A weight of 1 is 2**44: 2**18 tokens still sum below 2**63; each loses less than 2**-44 of the best token."""
WEIGHT_FROM = -32.0
"""Below this x a weight is 0: exp(-32) is under 2**-44."""


@dataclass(frozen=True)
class StageRecord:
    """What one stage did, for those who watch."""

    name: str
    changed: bool
    kept: int
    """Tokens that are left after it (with a weight above nothing, or not banned)."""
    top: list[tuple[int, float]]
    """The first ten candidates after it: (id, logit) before the temperature, (id, probability) from there on."""


@dataclass(frozen=True)
class Trace:
    """How one token was drawn."""

    token: int
    stages: list[StageRecord]
    random: float | None
    """The number in [0, 1) that was used; None: greedy."""


def exp32(x: F32) -> F32:
    """Return exp(x) for x in [-32, 0], float32, by multiplications and additions that are each rounded (no fma).

    The polynomial is that of Cephes' expf; within 2 ulp. exp32(0) is 1.
    """
    f = np.float32
    magic = f(12582912.0)  # 1.5 * 2**23: adding it rounds to a whole number
    n = (x * f(1.44269504088896341) + magic) - magic
    r = (x - n * f(0.693359375)) - n * f(-2.12194440e-4)
    p = f(1.9875691500e-4) * r + f(1.3981999507e-3)
    p = p * r + f(8.3334519073e-3)
    p = p * r + f(4.1665795894e-2)
    p = p * r + f(1.6666665459e-1)
    p = p * r + f(5.0000001201e-1)
    y = (p * (r * r) + r) + f(1.0)
    scale = ((n.astype(np.int32) + 127) << 23).view(np.float32)
    return np.multiply(y, scale, dtype=np.float32)


def weights(x: F32) -> U64:
    """Return floor(exp(x) * 2**44) of x <= 0, and 0 below x = -32."""
    w = exp32(np.maximum(x, np.float32(WEIGHT_FROM))) * np.float32(2.0**WEIGHT_BITS)
    w[x < np.float32(WEIGHT_FROM)] = 0
    return w.astype(np.uint64)


def best(logits: F32) -> np.float32:
    """Return the largest logit. Raises EngineError if one is NaN or +inf, or if none is above -inf."""
    top = logits.max()
    if np.isnan(top) or top == np.inf:
        raise EngineError("the model gave logits that are not finite (NaN or +inf)")
    if top == -np.inf:
        raise EngineError("no token may be drawn: every logit is -inf")
    return top


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
    output = tokens[prompt_len:]
    row = penalize(logits, params, tokens[:prompt_len], output)
    yield "penalties", row
    row = bias(row, params)
    yield "logit_bias", row
    row = only(row, params)
    yield "allowed_token_ids", row
    row = hold(row, params, len(output), end_ids)
    yield "min_tokens", row
    yield "grammar", allow(row, allowed)


def temper(logits: F32, params: SamplingParams) -> F32:
    """Stage temperature: x = (logit - best) / temperature, float32; the best is 0."""
    return (logits - best(logits)) / np.float32(params.temperature)


def order(x: F32) -> NDArray[np.int64]:
    """Return the ids of the candidates, best first, the lower id first among equals."""
    return np.argsort(-x, kind="stable")


def cut_top_k(sorted_x: F32, params: SamplingParams) -> int:
    """Stage top_k: how many leading candidates it keeps."""
    return min(len(sorted_x), params.top_k) if params.top_k > 0 else len(sorted_x)


def cut_top_p(sorted_w: U64, params: SamplingParams) -> int:
    """Stage top_p: how many leading candidates it keeps of those with weights `sorted_w`."""
    if params.top_p >= 1.0:
        return len(sorted_w)
    sums = np.cumsum(sorted_w, dtype=np.uint64)
    need = max(1, fraction53(params.top_p) * int(sums[-1]) >> 53)
    return int(np.searchsorted(sums, np.uint64(need), side="left")) + 1


def cut_min_p(sorted_x: F32, params: SamplingParams) -> int:
    """Stage min_p: how many leading candidates it keeps; x is compared with log(min_p) in float32."""
    return int((sorted_x >= min_x(params.min_p)).sum())


def min_x(min_p: float) -> np.float32:
    """Return log(min_p) as float32, -inf for 0."""
    return np.float32(math.log(min_p)) if min_p > 0 else np.float32(-np.inf)


def fraction53(share: float) -> int:
    """Return a share in [0, 1] as a whole number of 2**-53, rounded down."""
    return int(share * 2.0**53)


def draw(sorted_w: U64, bits: int) -> int:
    """Stage draw: inverse CDF. The first candidate whose sum of weights is above bits / 2**53 of the total."""
    sums = np.cumsum(sorted_w, dtype=np.uint64)
    return int(np.searchsorted(sums, np.uint64(bits * int(sums[-1]) >> 53), side="right"))


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
    for name, after in edits(logits, params, tokens=tokens, prompt_len=prompt_len, end_ids=end_ids, allowed=allowed):
        top = [(int(i), float(after[i])) for i in order(after)[:10]]
        records.append(StageRecord(name, after is not row, int((after > -np.inf).sum()), top))
        row = after
    best(row)
    if params.greedy:
        token = int(row.argmax())
        records.append(StageRecord("draw", True, 1, [(token, 1.0)]))
        return Trace(token, records, None)

    x = temper(row, params)
    ids = order(x)
    sorted_x = x[ids]
    sorted_w = weights(sorted_x)

    def kept(name: str, count: int, changed: bool) -> None:
        w = sorted_w[:count]
        total = float(w.sum())
        top = [(int(i), float(v) / total) for i, v in zip(ids[:10], w[:10], strict=False)]
        records.append(StageRecord(name, changed, int((w > 0).sum()), top))

    count = len(ids)
    kept("temperature", count, params.temperature != 1.0)
    for name, keep in (("top_k", cut_top_k(sorted_x, params)), ("top_p", 0), ("min_p", cut_min_p(sorted_x, params))):
        if name == "top_p":
            keep = cut_top_p(sorted_w[:count], params)
        kept(name, min(count, keep), keep < count)
        count = min(count, keep)
    bits = bits53(seed, choice, len(tokens), Stage.DRAW)
    token = int(ids[draw(sorted_w[:count], bits)])
    records.append(StageRecord("draw", True, 1, [(token, 1.0)]))
    return Trace(token, records, bits * 2.0**-53)


def log_softmax(logits: F32, ids: Sequence[int]) -> F32:
    """Return the natural log of the probability of `ids` in softmax(logits), float32; from exact integer masses."""
    top = best(logits)
    total = int(weights(logits - top).sum())
    norm = math.log(total) - WEIGHT_BITS * math.log(2.0)
    return np.array([float(logits[i]) - float(top) - norm for i in ids], np.float32)
