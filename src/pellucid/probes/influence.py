"""Prompt influence: how much less likely a token is where nothing may look at a part of the prompt.

Law: causal, by masking keys on a fork; no gradient, and attention weights play no part. The first token is never
masked, for it is where heads that look for nothing look. `noise` is what the fork's own rounding does: smaller changes
mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.errors import RequestError
from pellucid.probes.fork import mask_span
from pellucid.probes.lens import log_softmax
from pellucid.probes.replay import Replay

CUTS = {
    "section": re.compile(rb"(?s).+?(?:\n\s*\n\s*|\Z)"),
    "sentence": re.compile(rb"(?s).+?(?:[.!?]+[\"')\]]*(?=\s|\Z)|\n+|\Z)"),
    "word": re.compile(rb"(?s)\s*\S+|\s+"),
}


@dataclass(frozen=True)
class Span:
    """Tokens first to end of the prompt."""

    first: int
    end: int
    text: str


@dataclass(frozen=True)
class Influence:
    """What each span does for one token."""

    position: int
    token: int
    logprob: float
    """With the whole prompt."""
    spans: list[Span]
    changes: list[float]
    """Logprob without a span, less the logprob with it: below 0 where the span made the token likelier."""
    noise: float


def spans_of(pieces: Sequence[bytes], by: str, first: int, end: int) -> list[Span]:
    """Cut tokens first to end into spans: by "section", "sentence", "word" or "token". A token belongs to the span in
    which it begins. Raises RequestError for another word."""
    if by == "token":
        return [Span(i, i + 1, pieces[i].decode("utf-8", "replace")) for i in range(first, end)]
    if by not in CUTS:
        raise RequestError(f"by={by!r} is no way to cut; choose {', '.join(CUTS)} or token", param="by")
    starts = np.cumsum([0, *(len(p) for p in pieces[first:end])])
    whole = b"".join(pieces[first:end])
    out: list[Span] = []
    at = first
    for found in CUTS[by].finditer(whole):
        stop = first + int(np.searchsorted(starts[:-1], found.end(), side="left"))
        if stop > at:
            out.append(Span(at, stop, b"".join(pieces[at:stop]).decode("utf-8", "replace")))
            at = stop
    if at < end:
        out.append(Span(at, end, b"".join(pieces[at:end]).decode("utf-8", "replace")))
    return out


def logprobs_after(replay: Replay, positions: Sequence[int], targets: Sequence[int], **run: object) -> list[float]:
    """Logprob of targets[i] after positions[i], as a run leaves it; `run` goes to Replay.run."""
    last = replay.anatomy.last
    out: list[float] = []
    for part in replay.run([last], positions, **run):  # type: ignore[arg-type]
        resid = part.of(last)
        done = len(out)
        for at, logits in replay.unembed(resid):
            out += [float(log_softmax(row)[targets[done + at + i]]) for i, row in enumerate(logits)]
    return out


def influence(replay: Replay, position: int, spans: Sequence[Span]) -> Influence:
    """What masking each span does to the logprob of the token at `position`."""
    if not 0 < position < len(replay.tokens):
        raise RequestError(f"there is no token at {position} with others before it", param="pos")
    target = int(replay.tokens[position])
    before = position - 1
    spans = [s for s in spans if s.first < position]
    if replay.clean < position:
        for _ in replay.run([], stop=position):
            pass
    (base,) = logprobs_after(replay, [before], [target], start=before, stop=position)

    def masked(first: int, end: int, nothing: bool = False) -> float:
        end = min(end, before)
        if first >= end:
            return base
        hooks = mask_span(replay, first, end, nothing=nothing)
        (found,) = logprobs_after(replay, [before], [target], hooks=hooks, start=end, stop=position)
        return found

    # Last spans first: a fork leaves what lies before its span's end as it was.
    order = sorted(range(len(spans)), key=lambda i: -spans[i].end)
    changes = [0.0] * len(spans)
    for i in order:
        changes[i] = masked(max(1, spans[i].first), spans[i].end) - base
    noise = abs(masked(1, 2, nothing=True) - base) if before > 2 else 0.0
    return Influence(position, target, base, list(spans), changes, noise)


@dataclass(frozen=True)
class Grounding:
    """What the prompt as a whole does for each token of the answer."""

    first: int
    changes: list[float]
    """Logprob without the prompt, less with it, of each token of the answer."""
    free: list[tuple[int, int]]
    """Spans of positions that the prompt did not make likelier: a lead on what the model says from itself, no more."""


def grounding(replay: Replay, prompt_len: int, least: float = 0.1) -> Grounding:
    """Mask the prompt but its first token, and score the answer again."""
    n = len(replay.tokens)
    if prompt_len >= n:
        raise RequestError("there is no answer; give --max-tokens", param="max_tokens")
    if prompt_len < 2:
        raise RequestError("the prompt is a single token, which is never masked", param="prompt")
    positions = list(range(prompt_len - 1, n - 1))
    targets = [int(t) for t in replay.tokens[prompt_len:]]
    base = logprobs_after(replay, positions, targets, stop=n - 1)
    hooks = mask_span(replay, 1, prompt_len - 1) if prompt_len > 2 else {}
    found = logprobs_after(replay, positions, targets, hooks=hooks, start=prompt_len - 1, stop=n - 1)
    changes = [a - b for a, b in zip(found, base, strict=True)]
    free: list[tuple[int, int]] = []
    for i, change in enumerate(changes):
        if change > -least:
            at = prompt_len + i
            if free and free[-1][1] == at:
                free[-1] = (free[-1][0], at + 1)
            else:
                free.append((at, at + 1))
    return Grounding(prompt_len, changes, free)
