"""Trace: one request, looked into.

Law: it holds the exact ids and what every token was worth; each lens runs what it needs, when it is asked for, by a
replay of those ids under the budget. A trace that was loaded from a file answers from what was saved, and says so where
it cannot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from pellucid.errors import RequestError
from pellucid.probes import attention, influence, lens
from pellucid.probes.anatomy import PATTERN, SCORES
from pellucid.probes.attention import HeadMetrics
from pellucid.probes.fork import Fork, mask_span, put, scale_heads, scale_part
from pellucid.probes.funnel import Funnel, funnel
from pellucid.probes.influence import Grounding, Influence
from pellucid.probes.lens import Attribution, LogitLens, Neuron, Norms, TokenScores
from pellucid.probes.replay import Part, Replay
from pellucid.sampling.params import SamplingParams

if TYPE_CHECKING:
    from pellucid.sampling.grammar import Matcher

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Level = Literal["tokens", "summary", "heads"]
"""tokens: logprobs, ranks, entropies. summary: and the norms of what layers write. heads: and the metrics of heads."""


@dataclass
class Trace:
    """Made by LLM.inspect."""

    model: str
    ids: list[int]
    """Prompt and answer."""
    prompt_len: int
    pieces: list[bytes]
    """What each token spells."""
    params: SamplingParams
    seed: int
    choice: int
    end_ids: tuple[int, ...]
    scores: TokenScores
    """[i] is of token i + 1, given those to i."""
    live: list[float | None]
    """Logprob of each token of the answer as it was served; None where that was not told."""
    norms: Norms | None = None
    heads: HeadMetrics | None = None
    replay: Replay | None = field(default=None, repr=False)
    matcher: Callable[[], Matcher | None] = field(default=lambda: None, repr=False)
    """Makes what held the answer to its grammar, as it stood at the beginning."""
    events: list[dict[str, Any]] = field(default_factory=lambda: cast("list[dict[str, Any]]", []), repr=False)
    """What the engine did while it was served (probes.recorder)."""
    dropped: int = 0
    """Events that there was no room for."""

    @property
    def delta(self) -> float | None:
        """The badge of trust: the largest |logprob served - logprob replayed|. None: there is no answer to compare."""
        pairs = [
            abs(float(np.float32(self.scores.logprobs[self.prompt_len - 1 + i])) - value)
            for i, value in enumerate(self.live)
            if value is not None
        ]
        return max(pairs, default=None)

    @property
    def texts(self) -> list[str]:
        """What each token spells; bytes that are no whole character show as U+FFFD."""
        return [piece.decode("utf-8", "replace") for piece in self.pieces]

    @property
    def output_ids(self) -> list[int]:
        """The answer."""
        return self.ids[self.prompt_len :]

    def at(self, pos: int) -> int:
        """A place in the sequence; below 0 it counts from the end. Raises RequestError: there is no such token."""
        found = pos + len(self.ids) if pos < 0 else pos
        if not 0 <= found < len(self.ids):
            raise RequestError(f"pos={pos} is not there; the sequence has {len(self.ids)} tokens", param="pos")
        return found

    def surprises(self, count: int = 10) -> list[tuple[int, float]]:
        """The (position, surprisal in nats) of the least expected tokens, most surprising first."""
        order = np.argsort(self.scores.logprobs, kind="stable")[:count]
        return [(int(i) + 1, -float(self.scores.logprobs[i])) for i in order]

    # -- lenses ----------------------------------------------------------------------------------------------------

    def logits(self, pos: int = -1) -> F32:
        """Raw logits (vocab,) from which the token at `pos` was drawn."""
        at, replay = self.at(pos), self.source()
        if not at:
            raise RequestError("nothing stands before the first token, so it has no logits", param="pos")
        last = replay.anatomy.last
        resid = np.concatenate([p.of(last) for p in replay.run([last], [at - 1], stop=at)])
        return next(logits[0].copy() for _, logits in replay.unembed(resid))

    def why(self, pos: int = -1, top: int = 10) -> Funnel:
        """Why this token: the sampling funnel of the token at `pos`."""
        at = self.at(pos)
        return funnel(
            self.logits(at),
            self.params,
            seed=self.seed,
            choice=self.choice,
            tokens=self.ids[:at],
            prompt_len=min(self.prompt_len, at),
            end_ids=self.end_ids,
            chosen=self.ids[at],
            top=top,
            allowed=self.allowed(at),
        )

    def allowed(self, at: int) -> NDArray[np.uint32] | None:
        """A bit for each token that the grammar let through at a place of the answer; None: it held nothing there."""
        matcher = self.matcher() if at >= self.prompt_len else None
        if matcher is None:
            return None
        for token in self.ids[self.prompt_len : at]:
            matcher.accept(token)
        matcher.fill()
        return matcher.mask

    def logit_lens(
        self, layers: Sequence[int] | Literal["all"] = "all", pos: int | Sequence[int] = -1, top_k: int = 8
    ) -> LogitLens:
        """What each layer would say for the tokens at `pos`, if it were the last."""
        replay = self.source()
        chosen = range(len(replay.anatomy.resid())) if layers == "all" else layers
        tokens = [self.at(p) for p in ([pos] if isinstance(pos, int) else pos)]
        if min(tokens) < 1:
            raise RequestError("nothing stands before the first token, so no layer can foresee it", param="pos")
        before = sorted(t - 1 for t in set(tokens))
        return lens.logit_lens(replay, list(chosen), before, [self.ids[p + 1] for p in before], top_k)

    def head_metrics(self, segments: Sequence[tuple[str, int, int]] = ()) -> HeadMetrics:
        """Metrics of every head over the whole sequence (probes.attention says what they mean)."""
        if self.heads is None or segments:
            replay = self.source()
            found = attention.head_metrics(replay, segments, replay.threads)
            if segments:
                return found
            self.heads = found
        return self.heads

    def attention(
        self,
        layer: int,
        heads: int | Sequence[int],
        pos: int | Sequence[int] | None = None,
        *,
        by_value: bool = False,
    ) -> F32:
        """Weights (heads, rows, keys) of heads of a layer, of the queries at `pos`; None: all. 0 where not seen.

        by_value: ‖αv‖ in their place, each weight times the length of the value that it brings.
        """
        replay = self.source()
        chosen = [heads] if isinstance(heads, int) else list(heads)
        rows = (
            list(range(len(self.ids)))
            if pos is None
            else [self.at(p) for p in ([pos] if isinstance(pos, int) else pos)]
        )
        size = 4 * len(chosen) * len(rows) * (max(rows) + 1)
        if size > replay.spare:
            raise RequestError(
                f"{len(rows)} rows of {len(chosen)} heads take {size >> 20} MiB, more than the budget leaves; "
                "ask for fewer rows, or raise the budget",
                param="budget",
            )
        out = np.zeros((len(chosen), len(rows), max(rows) + 1), np.float32)
        done = 0
        for positions, weights in attention.rows_of(replay, layer, chosen, sorted(rows)):
            out[:, done : done + len(positions), : weights.shape[2]] = weights
            done += len(positions)
        if by_value:
            found = replay.anatomy.head(layer, max(chosen))
            for i, head in enumerate(chosen):
                out[i] *= attention.value_norms(replay, found, head, out.shape[2])
        return out

    def attribution(self, pos: int = -1, token: int | None = None, against: int | None = None) -> Attribution:
        """Who wrote the logit of the token at `pos`, or of another one in its place."""
        at = self.at(pos)
        if not at:
            raise RequestError("nothing stands before the first token, so nothing wrote it", param="pos")
        return lens.attribution(self.source(), at - 1, self.ids[at] if token is None else token, against)

    def top_neurons(self, pos: int = -1, count: int = 10) -> list[Neuron]:
        """The neurons that fired most, in any layer, at the position that foresaw the token at `pos`."""
        return lens.top_neurons(self.source(), max(0, self.at(pos) - 1), count)

    def prompt_influence(self, pos: int = -1, by: str = "sentence", within: tuple[int, int] | None = None) -> Influence:
        """How much less likely the token at `pos` is without each part of what stands before it.

        Args:
            by: "section", "sentence", "word" or "token".
            within: tokens (first, end) to cut; None: the prompt, or all before `pos` if that lies in the prompt.
        """
        at = self.at(pos)
        first, end = within or (0, min(at, self.prompt_len))
        return influence.influence(self.source(), at, influence.spans_of(self.pieces, by, first, end))

    def grounding(self, least: float = 0.1) -> Grounding:
        """What the prompt as a whole does for each token of the answer; a lead on hallucination, and no more."""
        return influence.grounding(self.source(), self.prompt_len, least)

    def fork(
        self,
        *,
        heads: Sequence[tuple[int, int]] = (),
        attn: Sequence[int] = (),
        mlp: Sequence[int] = (),
        factor: float = 0.0,
        mask: tuple[int, int] | None = None,
        patch: Sequence[tuple[str, int, F32]] = (),
        force: tuple[int, int] | None = None,
        room: int = 0,
    ) -> Fork:
        """The same tokens where something is other; what was served stays as it is.

        Args:
            heads: (layer, head) pairs that are multiplied by `factor`.
            attn, mlp: layers whose attention, whose MLP is.
            factor: 0 ablates.
            mask: (first, end) of a span that no later token sees.
            patch: (name, position, values of the row) to put in the place of what was computed.
            force: (position, token): the sequence ends there with that token, and goes on by Fork.generate.
            room: tokens that may be generated.
        """
        ids = list(self.ids)
        if force is not None:
            ids = [*ids[: self.at(force[0])], force[1]]
        forked = Fork(self.source(), ids, min(self.prompt_len, len(ids)), room)
        anatomy = forked.run.anatomy
        if mask is not None:
            forked.change(mask_span(forked.run, *mask))
        for layer, head in heads:
            forked.change(scale_heads(anatomy, layer, [head], factor))
        for part, layers in (("attn", attn), ("mlp", mlp)):
            for layer in layers:
                forked.change(scale_part(anatomy, layer, part, factor))
        for name, position, values in patch:
            forked.change(put(anatomy.real(name), self.at(position), values))
        return forked

    def compare(self, other: Trace) -> Comparison:
        """How another model, or format, sees the same tokens."""
        return compare(self, other)

    def activations(self, names: str | list[str], positions: Sequence[int] | None = None) -> dict[str, F32]:
        """Values by name (* fits anything), each (rows, *shape); scores and patterns (heads, rows, keys)."""
        return cached(self.source(), names, positions)

    # -- files -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, names: Sequence[str] = ()) -> Path:
        """Write a folder, or a .zip; names: values that are written, too. probes.export says what is in it."""
        from pellucid.probes.export import save

        return save(self, path, names=names)

    def to_perfetto(self, path: str | Path) -> Path:
        """Write the timeline for https://ui.perfetto.dev."""
        from pellucid.probes.export import perfetto

        Path(path).write_text(json.dumps(perfetto(self)), encoding="utf-8")
        return Path(path)

    def plot(self, view: str, path: str | Path, **options: Any) -> Path:
        """Draw a view to an .svg, .png or .pdf: surprisal, norms, heads, lens, attention (probes.plots)."""
        from pellucid.probes.plots import plot

        return plot(self, view, path, **options)

    def source(self) -> Replay:
        """What deeper looks run on. Raises RequestError: the trace came from a file."""
        if self.replay is None:
            raise RequestError("this trace was loaded from a file, without its model; inspect again to look deeper")
        return self.replay

    def summary(self) -> dict[str, Any]:
        """Plain values, ready for JSON: the tokens and what each was worth."""
        tokens = [
            {
                "pos": i,
                "id": id,
                "text": text,
                "part": "prompt" if i < self.prompt_len else "answer",
                "logprob": float(self.scores.logprobs[i - 1]) if i else None,
                "rank": int(self.scores.ranks[i - 1]) if i else None,
                "entropy": float(self.scores.entropies[i - 1]) if i else None,
            }
            for i, (id, text) in enumerate(zip(self.ids, self.texts, strict=True))
        ]
        return {"model": self.model, "seed": self.seed, "delta": self.delta, "tokens": tokens}


def replayed(replay: Replay, level: Level, top_k: int = 20) -> tuple[TokenScores, Norms | None, HeadMetrics | None]:
    """Scores of every token but the first, the norms, and the metrics of heads, in one forward."""
    last = replay.anatomy.last
    taps = lens.norm_taps(replay) if level != "tokens" else []
    targets = [int(t) for t in replay.tokens[1:]]
    count = len(replay.anatomy.layers)
    width = next(v.size for v in replay.device.graph.values() if v.name == last)
    scores: list[TokenScores] = []
    norms: list[F64] = []

    def take(part: Part) -> None:
        end = min(part.computed, len(targets))
        first = int(part.positions[0])
        if end > first:
            scores.append(lens.token_scores(replay, part.of(last)[: end - first], targets[first:end], top_k))
        norms.append(_lengths(part, taps, width))

    heads = None
    if level == "heads":
        heads = attention.head_metrics(replay, (), replay.threads, [last, *taps], take)
    else:
        for part in replay.run([last, *taps]):
            take(part)
    if not taps:
        return lens.join(scores), None, None
    every = np.concatenate(norms, axis=1)
    lengths = Norms(every[count + 1 : 2 * count + 1], every[2 * count + 1 :], every[: count + 1])
    return lens.join(scores), lengths, heads


def _lengths(part: Part, taps: Sequence[lens.Tap], width: int) -> F64:
    """Norms (taps, rows) from the root mean square that each tap tells."""
    if not taps:
        return np.empty((0, len(part.positions)))
    return np.stack([part.of(tap)[:, 1].astype(np.float64) for tap in taps]) * np.sqrt(width)


def cached(replay: Replay, names: str | list[str] | None, positions: Sequence[int] | None = None) -> dict[str, F32]:
    """Values by name, each (rows, *shape); attention scores and patterns (heads, rows, keys), -inf and 0 if unseen.

    Raises RequestError: no such value, or they are more than the budget holds.
    """
    anatomy = replay.anatomy
    # What lies behind the choice of rows is made again from what they hold, so that all rows have it.
    behind = replay.behind
    asked = anatomy.select("*" if names is None else names)
    wanted = tuple(dict.fromkeys(map(anatomy.real, asked)))
    beside = [n for n in wanted if n.endswith((SCORES, PATTERN))]
    late = [n for n in wanted if n in behind and n not in beside]
    plain = [n for n in wanted if n not in beside and n not in behind]
    layers = {a.layer: a for a in anatomy.layers}
    n = len(replay.tokens)
    rows = np.arange(n, dtype=np.int32) if positions is None else np.unique(np.asarray(positions, np.int32))
    shapes = {v.name: v.shape for v in replay.device.graph.values()}
    size = 4 * len(rows) * sum(int(np.prod(shapes[x])) for x in plain + late)
    size += 4 * sum(layers[_layer(x)].heads for x in beside) * len(rows) * n
    if size > replay.spare:
        raise RequestError(
            f"these values take {-(-size >> 20)} MiB, more than the {replay.spare >> 20} MiB that the budget leaves; "
            "choose fewer names or positions, or raise the budget",
            param="budget",
        )
    out = {x: np.empty((len(rows), *shapes[x]), np.float32) for x in plain + late}
    for x in beside:
        fill = -np.inf if x.endswith(SCORES) else 0.0
        out[x] = np.full((layers[_layer(x)].heads, len(rows), n), fill, np.float32)
    asks = {x: layers[_layer(x)].q for x in beside}
    needed: list[str] = [*plain, *asks.values(), *([anatomy.last] if late else [])]
    taps = list(dict.fromkeys(needed))
    done = 0
    for part in replay.run(taps, rows.tolist()):
        here = slice(done, done + len(part.positions))
        done += len(part.positions)
        if not len(part.positions):
            continue
        for x in plain:
            out[x][here] = part.of(x)
        for x, q in asks.items():
            a = layers[_layer(x)]
            raw = x.endswith(SCORES)
            found = attention.patterns(replay, a, part.of(q), part.positions, range(a.heads), raw)
            out[x][:, here, : found.shape[2]] = found
        if late:
            for at, values in replay.tail_values(part.of(anatomy.last), late):
                for x, rows_of in values.items():
                    out[x][here.start + at : here.start + at + len(rows_of)] = rows_of
    return {x: out[anatomy.real(x)] for x in asked}


def _layer(name: str) -> int:
    return int(name.split(".")[1])


@dataclass(frozen=True)
class Comparison:
    """Two models on the same tokens; [i] is of the prediction of token i + 1."""

    models: tuple[str, str]
    kl: F64
    """KL divergence of the second's distribution from the first's, in nats."""
    flips: list[int]
    """Positions of tokens where the likeliest one differs."""
    logprobs: tuple[F64, F64]

    @property
    def first_divergence(self) -> int | None:
        """Position of the first token at which greedy decoding would part; None: nowhere here."""
        return self.flips[0] if self.flips else None


def compare(one: Trace, other: Trace) -> Comparison:
    """Run the first trace's tokens on both models. Raises RequestError: their vocabularies differ in size."""
    a, b = one.source(), other.source()
    if a.device.vocab_size != b.device.vocab_size:
        raise RequestError(
            f"{one.model} has a vocabulary of {a.device.vocab_size} and {other.model} of {b.device.vocab_size}; "
            "only models of one vocabulary can be compared token by token"
        )
    b = Replay(b.device, one.ids, b.budget) if other.ids != one.ids else b
    targets = one.ids[1:]
    resids = [np.concatenate([p.of(r.anatomy.last) for p in r.run([r.anatomy.last])])[:-1] for r in (a, b)]
    kl, flips, own = np.zeros(len(targets)), list[int](), (np.zeros(len(targets)), np.zeros(len(targets)))
    step = min(a.rows_of(24 * a.device.vocab_size), b.rows_of(24 * b.device.vocab_size))
    for at in range(0, len(targets), step):
        rows = [
            np.concatenate([x.copy() for _, x in r.unembed(resid[at : at + step])])
            for r, resid in zip((a, b), resids, strict=True)
        ]
        p, q = (lens.log_softmax(x) for x in rows)
        kl[at : at + len(p)] = (np.exp(p) * (p - q)).sum(axis=1)
        flips += [at + 1 + int(i) for i in np.flatnonzero(rows[0].argmax(axis=1) != rows[1].argmax(axis=1))]
        for logprobs, out in zip((p, q), own, strict=True):
            out[at : at + len(p)] = logprobs[np.arange(len(p)), targets[at : at + len(p)]]
    return Comparison((one.model, other.model), np.maximum(kl, 0), flips, own)
