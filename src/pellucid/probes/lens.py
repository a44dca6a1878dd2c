"""Lenses on the residual stream: what each layer would say, what wrote a logit, which parts wrote how much.

Law: vectors are the served ones, read by the served model's own norm and unembedding. A lens on the last layer is the
logits, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pellucid.devices.base import Tap
from pellucid.errors import RequestError
from pellucid.probes.replay import Replay
from pellucid.sampling.params import MAX_LOGPROBS
from pellucid.sampling.sampler import Sampler

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class TokenScores:
    """How the model saw the token at each of some places, given those before it."""

    logprobs: F64
    ranks: NDArray[np.int64]
    """1 for the likeliest."""
    entropies: F64
    """Of the whole distribution, in nats."""
    top: list[list[tuple[int, float]]]
    """The likeliest (id, logprob) at each place."""


def log_softmax(logits: F32) -> F64:
    """Of each row (rows, vocab), in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


def token_scores(replay: Replay, resid: F32, targets: Sequence[int], top_k: int) -> TokenScores:
    """How likely targets[i] is after resid[i], the residual stream behind the last layer; logprobs as they are served.

    Raises EngineError: the logits are not finite.
    """
    found: list[TokenScores] = []
    sampler = Sampler(replay.device.vocab_size)
    most = min(top_k, MAX_LOGPROBS)
    for at, logits in replay.unembed(resid):
        ids = np.asarray(targets[at : at + len(logits)])
        entries = [entry or [] for entry in sampler.score(logits, ids.tolist(), most)]
        own = logits[np.arange(len(ids)), ids][:, None]
        ranks = 1 + (logits > own).sum(axis=1)
        for i, (row, id) in enumerate(zip(logits, ids, strict=True)):
            ranks[i] += int((row[:id] == own[i]).sum())  # of equal ones the lower id comes first
        logprobs = np.array([dict(entry)[int(id)] for entry, id in zip(entries, ids, strict=True)])
        found.append(TokenScores(logprobs, ranks, entropies(logits), [entry[:most] for entry in entries]))
    return join(found)


def join(parts: Sequence[TokenScores]) -> TokenScores:
    """Those of several runs of places, one after the other."""
    none = [np.empty(0)]
    return TokenScores(
        np.concatenate([p.logprobs for p in parts] or none),
        np.concatenate([p.ranks for p in parts] or [np.empty(0, np.int64)]),
        np.concatenate([p.entropies for p in parts] or none),
        [row for p in parts for row in p.top],
    )


def entropies(logits: F32) -> F64:
    """Of softmax(logits) (rows, vocab), in nats."""
    x = logits - logits.max(axis=1, keepdims=True)
    np.maximum(x, np.float32(-80), out=x)  # exp of less is a denormal number, and slow
    e = np.exp(x)
    total = e.sum(axis=1, dtype=np.float64)
    return np.log(total) - np.einsum("rv,rv->r", e, x).astype(np.float64) / total


@dataclass(frozen=True)
class LogitLens:
    """What each layer would say at some positions, if it were the last (nostalgebraist 2020)."""

    layers: tuple[int, ...]
    """0 is the embedding; n is what n layers have left."""
    positions: tuple[int, ...]
    targets: tuple[int, ...]
    """The token that came after each position, or the model's own choice after the last."""
    top: list[list[list[tuple[int, float]]]]
    """[layer][position]: the likeliest (id, logprob)."""
    logprobs: F64
    """(layers, positions): of the target."""
    ranks: NDArray[np.int64]
    """(layers, positions): of the target; the column is its trajectory."""
    entropies: F64

    def decided(self, position: int) -> int:
        """The first of the layers from which the target stays the likeliest; -1: it is not even at the end."""
        ranks = self.ranks[:, self.positions.index(position)]
        late = np.flatnonzero(ranks != 1)
        at = 0 if not len(late) else int(late[-1]) + 1
        return self.layers[at] if at < len(self.layers) else -1

    def at(self, position: int) -> LogitLens:
        """What it says of one of its positions."""
        i = self.positions.index(position)
        one = slice(i, i + 1)
        return LogitLens(
            self.layers,
            self.positions[one],
            self.targets[one],
            [layer[one] for layer in self.top],
            self.logprobs[:, one],
            self.ranks[:, one],
            self.entropies[:, one],
        )


def logit_lens(
    replay: Replay, layers: Sequence[int], positions: Sequence[int], targets: Sequence[int], top_k: int
) -> LogitLens:
    """Read the residual stream of some layers at some positions."""
    names = replay.anatomy.resid()
    for layer in layers:
        if not 0 <= layer < len(names):
            raise RequestError(
                f"layer {layer} is not there; give 0 (the embedding) to {len(names) - 1}", param="layers"
            )
    chosen = [names[layer] for layer in layers]
    found: dict[str, list[F32]] = {name: [] for name in chosen}
    for part in replay.run(chosen, positions, stop=max(positions) + 1):
        for name in chosen:
            found[name].append(part.of(name))
    scores = [token_scores(replay, np.concatenate(found[name]), targets, top_k) for name in chosen]
    return LogitLens(
        tuple(layers),
        tuple(positions),
        tuple(targets),
        [s.top for s in scores],
        np.stack([s.logprobs for s in scores]),
        np.stack([s.ranks for s in scores]),
        np.stack([s.entropies for s in scores]),
    )


@dataclass(frozen=True)
class Attribution:
    """Who wrote the logit of a token: parts of the residual stream, each through the last norm with its scale held."""

    token: int
    logit: float
    """As it was served, before any factor or bound."""
    parts: list[tuple[str, float]]
    """In the order in which they were written: hook_embed, then the attention and the MLP of each layer."""
    heads: F64 | None
    """(layers, heads): the attention's parts by head; None where a norm stands between head and stream."""
    remainder: float
    """What the parts do not account for: rounding of the activations to 8 bits, biases."""


def attribution(replay: Replay, position: int, token: int, against: int | None = None) -> Attribution:
    """Direct logit attribution (Elhage et al. 2021) of a token after a position, or of its logit less another's."""
    device, graph = replay.device, replay.device.graph
    count = len(replay.anatomy.layers)
    outs = [f"blocks.{i}.hook_{what}_out" for i in range(count) for what in ("attn", "mlp")]
    extra = [v.name for v in graph.values() if v.name == "hook_pos_embed"]
    names = ["hook_embed", *extra, *outs]
    zs = [a.z for a in replay.anatomy.layers]
    found: dict[str, F32] = {}
    for part in replay.run([*names, *zs, replay.anatomy.last], [position], stop=position + 1):
        if len(part.positions):
            found = {name: part.of(name)[0].copy() for name in (*names, *zs, replay.anatomy.last)}
    last = found[replay.anatomy.last].astype(np.float64)
    centered, eps, weight, unembed = _end(replay)
    rows = device.matrices[unembed].row(token).astype(np.float64)
    if against is not None:
        rows = rows - device.matrices[unembed].row(against)
    mean = last.mean() if centered else 0.0
    scale = 1.0 / np.sqrt(np.mean((last - mean) ** 2) + eps)
    direction = device.vectors[weight].ravel().astype(np.float64) * rows * scale
    if centered:
        direction = direction - direction.mean()
    parts = [(name, float(found[name].astype(np.float64) @ direction)) for name in names]
    bias = device.vectors.get(weight.removesuffix(".w") + ".b")
    if bias is not None:
        parts.append(("ln_final.b", float(bias.ravel() @ rows)))
    logit = np.zeros(1)
    for _, logits in replay.unembed(found[replay.anatomy.last][None]):
        logit = logits[0, [token]].astype(np.float64) - (logits[0, against] if against is not None else 0)
    plain = any(v.name in ("logits.unscaled", "logits.uncapped") for v in graph.values())
    total = sum(value for _, value in parts)
    return Attribution(
        token,
        total if plain else float(logit[0]),
        parts,
        _by_head(replay, [found[z] for z in zs], direction),
        0.0 if plain else float(logit[0]) - total,
    )


def _end(replay: Replay) -> tuple[bool, float, str, str]:
    """The last norm (whether centered, epsilon, weight) and the unembedding."""
    from pellucid.graph.ops import Linear, Multiply, Normalize, plain

    ops = list(plain(replay.device.graph.ops))
    norm = next(op for op in reversed(ops) if isinstance(op, Normalize))
    weight = next(op for op in reversed(ops) if isinstance(op, Multiply))
    unembed = next(op for op in reversed(ops) if isinstance(op, Linear))
    return norm.centered, norm.eps, weight.weight, unembed.weight


def _by_head(replay: Replay, zs: Sequence[F32], direction: F64) -> F64 | None:
    names = {v.name for v in replay.device.graph.values()}
    if "blocks.0.hook_attn_out.unnormalized" in names or "blocks.0.hook_attn_out.unscaled" in names:
        return None
    out = np.zeros((len(zs), max(len(z) for z in zs)))
    for layer, z in enumerate(zs):
        heads, d = z.shape
        apart = np.zeros((heads, heads, d), np.float32)
        apart[np.arange(heads), np.arange(heads)] = z
        written = replay.device.matrices[f"blocks.{layer}.attn.W_O"].linear(apart.reshape(heads, -1))
        out[layer, :heads] = written.astype(np.float64) @ direction
    return out


@dataclass(frozen=True)
class Norms:
    """Lengths of what each layer adds and of the residual stream, (layers, tokens)."""

    attn: F64
    mlp: F64
    resid: F64
    """(layers + 1, tokens)."""


def norm_taps(replay: Replay) -> list[Tap]:
    """What `norms_of` needs to see."""
    count = len(replay.anatomy.layers)
    names = [*replay.anatomy.resid()]
    names += [f"blocks.{i}.hook_{what}_out" for what in ("attn", "mlp") for i in range(count)]
    return [Tap(name, "stats") for name in names]


@dataclass(frozen=True)
class Neuron:
    """One neuron at one position, and how strongly it fired."""

    layer: int
    neuron: int
    activation: float


def top_neurons(replay: Replay, position: int, count: int) -> list[Neuron]:
    """The neurons of greatest magnitude at a position, over all layers (not of mixtures of experts)."""
    names = {v.name: v for v in replay.device.graph.values()}
    taps = [
        Tap(name, "topk", min(count, names[name].size))
        for i in range(len(replay.anatomy.layers))
        if (name := f"blocks.{i}.mlp.hook_post") in names
    ]
    if not taps:
        raise RequestError("this model's MLPs are mixtures of experts; their neurons are not listed")
    found: list[Neuron] = []
    for part in replay.run(taps, [position], stop=position + 1):
        for tap in taps if len(part.positions) else ():
            values, places = part.of(tap)[0]
            layer = int(tap.name.split(".")[1])
            found += [Neuron(layer, int(n), float(v)) for v, n in zip(values, places, strict=True)]
    return sorted(found, key=lambda n: -abs(n.activation))[:count]
