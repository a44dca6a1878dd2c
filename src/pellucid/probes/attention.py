"""Attention beside the kernel: weights of chosen heads and rows from the queries and the keys in the cache.

Law: the fast kernel is never slowed; what it did is computed again, from the very K that it read. Weights of a row add
to 1 with the sink's share, where a head has a sink, which `sunk` is.

What the metrics of a head mean, each the mean over the query rows (Clark et al. 2019; Olsson et al. 2022):
self: weight on the query's own token. previous: on the token before it. first: on the first token, where attention
sinks (Xiao et al. 2023). local: on the last 16 tokens. entropy: in nats. distance, spread: mean and standard deviation
of how far back it looks. induction: on tokens that followed an earlier occurrence of the query's token. sink: what a
learned sink takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pellucid.graph.reference import soft_cap
from pellucid.probes.anatomy import AttentionLayer
from pellucid.probes.replay import Part, Replay

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
LOCAL = 16
METRICS = ("self", "previous", "first", "local", "entropy", "distance", "spread", "induction", "sink")
MASKED = np.float32(-1e30)
"""Score of a key that is not seen: finite, so that it times nothing is nothing."""

FAINT = np.float32(-80)
"""exp of it is nothing beside 1, times it finite, and no denormal number, which would take a hundred times as long."""


def scores(q: F32, k: F32, rows: I32, layer: AttentionLayer, masked: NDArray[np.bool_] | None = None) -> F32:
    """Scaled, bounded scores (rows, keys) of one head; MASKED where a key is not seen.

    Args:
        q: (rows, d_head) queries at positions `rows`, ascending.
        k: (keys, d_head) from position 0.
        masked: (keys,) keys that nobody sees.
    """
    s: F32 = np.matmul(np.multiply(q, layer.scale, dtype=np.float32), k.T, dtype=np.float32)
    if layer.cap:
        s = soft_cap(s, layer.cap)
    keys = np.arange(len(k), dtype=np.int32)
    first = int(rows[0]) + 1
    if first < len(k):
        s[:, first:][keys[None, first:] > rows[:, None]] = MASKED
    if layer.window:
        s[keys[None] <= rows[:, None] - layer.window] = MASKED
    if masked is not None:
        s[:, masked[: len(k)]] = MASKED
    return s


def softmax(s: F32, sink: float | None = None) -> F32:
    """Weights (rows, keys) of scores; what is missing to 1 is the sink's."""
    most = s.max(axis=1, keepdims=True)
    if sink is not None:
        most = np.maximum(most, np.float32(sink))
    e = np.exp(np.maximum(s - most, FAINT))
    e[s - most <= FAINT] = 0
    total = e.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    if sink is not None:
        total = total + np.exp(np.float32(sink) - most)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


def patterns(replay: Replay, layer: AttentionLayer, q: F32, rows: I32, heads: Sequence[int], raw: bool = False) -> F32:
    """Weights (heads, rows, keys) of some heads; keys up to the last row. raw: scores, -inf where not seen."""
    end = int(rows[-1]) + 1
    out = np.empty((len(heads), len(rows), end), np.float32)
    sinks = replay.sinks(layer.layer)
    known: dict[int, F32] = {}
    for i, head in enumerate(heads):
        kv = layer.kv_head(head)
        if kv not in known:
            known = {kv: replay.keys(layer.layer, kv, end)[0]}
        s = scores(q[:, head], known[kv], rows, layer)
        if raw:
            s[s <= MASKED] = -np.inf
            out[i] = s
        else:
            out[i] = softmax(s, None if sinks is None else float(sinks[head]))
    return out


def attend(replay: Replay, layer: AttentionLayer, q: F32, rows: I32, masked: NDArray[np.bool_]) -> F32:
    """z (rows, heads, d_head), as the kernel makes it but for rounding, where nobody sees the masked keys."""
    z = np.empty_like(q)
    end = int(rows[-1]) + 1
    sinks = replay.sinks(layer.layer)
    for kv in range(layer.kv_heads):
        k, v = replay.keys(layer.layer, kv, end)
        for head in range(layer.heads):
            if layer.kv_head(head) == kv:
                s = scores(q[:, head], k, rows, layer, masked)
                z[:, head] = softmax(s, None if sinks is None else float(sinks[head])) @ v
    return z


@dataclass(frozen=True)
class HeadMetrics:
    """One number for each metric, layer and head."""

    values: dict[str, F64]
    """Metric → (layers, heads)."""
    segments: dict[str, F64]
    """Name of a segment → the mean weight (layers, heads) on its tokens."""
    kv_heads: int

    def table(self, sort: str = "entropy", descending: bool = True) -> list[tuple[int, int, dict[str, float]]]:
        """(layer, head, metrics), sorted by one of them."""
        order = np.argsort(self.values[sort], axis=None, kind="stable")
        layers, heads = np.unravel_index(order[::-1] if descending else order, self.values[sort].shape)
        return [
            (int(i), int(h), {name: float(v[i, h]) for name, v in self.values.items()})
            for i, h in zip(layers, heads, strict=True)
        ]


def head_metrics(replay: Replay, segments: Sequence[tuple[str, int, int]] = (), threads: int = 2) -> HeadMetrics:
    """Metrics of every head over all rows, in one replay (more where the budget does not hold all queries).

    Args:
        segments: (name, first, end) spans of tokens whose share is asked for.
        threads: Python threads that share the heads.
    """
    layers = replay.anatomy.layers
    count, most = len(layers), max(a.heads for a in layers)
    sums = np.zeros((count, most, len(METRICS) + len(segments)))
    n = len(replay.tokens)
    # As many layers' queries in one pass as the budget holds.
    row_bytes = 4 * max(a.heads * a.d_head for a in layers)
    group = max(1, min(count, replay.spare // 4 // (row_bytes * min(replay.chunk, n))))
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, count, group):
            some = layers[first : first + group]
            for part in replay.run([a.q for a in some]):
                shared = _Shared.of(replay.tokens, part.positions, part.computed, segments)
                work = [(a, kv) for a in some for kv in range(a.kv_heads)]

                def measured(
                    item: tuple[AttentionLayer, int], part: Part = part, shared: _Shared = shared
                ) -> tuple[AttentionLayer, int, F64]:
                    a, kv = item
                    return a, kv, _of_heads(replay, a, kv, part.of(a.q), part.positions, shared)

                for a, kv, found in pool.map(measured, work):
                    at = kv * (a.heads // a.kv_heads)
                    sums[a.layer, at : at + len(found)] += found
    sums /= n
    values = {name: sums[..., i] for i, name in enumerate(METRICS)}
    # Summed as the mean of the variances; told as a deviation.
    values["spread"] = np.sqrt(np.maximum(values["spread"], 0))
    named = {name: sums[..., len(METRICS) + i] for i, (name, _, _) in enumerate(segments)}
    return HeadMetrics(values, named, layers[0].kv_heads)


@dataclass(frozen=True)
class _Shared:
    """What all heads of a chunk use: which places of a row each metric sums."""

    near: tuple[I32, I32]
    """(row, key) pairs of the last LOCAL keys."""
    following: tuple[NDArray[np.int64], NDArray[np.int64]]
    """(row, key) pairs where the key's predecessor is the query's token."""
    features: F32
    """(keys, 3 + segments): 1, distance from the chunk's middle and its square, whether a key is in a segment."""
    middle: float

    @staticmethod
    def of(tokens: I32, rows: I32, end: int, segments: Sequence[tuple[str, int, int]]) -> _Shared:
        back = rows[:, None] - np.arange(LOCAL, dtype=np.int32)[None]
        seen = back >= 0
        row = np.broadcast_to(np.arange(len(rows), dtype=np.int32)[:, None], back.shape)
        match = np.zeros((len(rows), end), np.bool_)
        match[:, 1:] = tokens[rows][:, None] == tokens[None, : end - 1]
        match &= np.arange(end)[None] <= rows[:, None]
        keys = np.arange(end)
        middle = float(rows.mean())
        columns = [np.ones(end), keys - middle, (keys - middle) ** 2]
        columns += [((keys >= a) & (keys < b)).astype(np.float64) for _, a, b in segments]
        row_at, key_at = np.nonzero(match)
        return _Shared((row[seen], back[seen]), (row_at, key_at), np.stack(columns, axis=1).astype(np.float32), middle)


def _of_heads(replay: Replay, layer: AttentionLayer, kv: int, q: F32, rows: I32, shared: _Shared) -> F64:
    """Sums over the rows of the metrics of the heads that read one KV head."""
    k, _ = replay.keys(layer.layer, kv, len(shared.features))
    sinks = replay.sinks(layer.layer)
    group = layer.heads // layer.kv_heads
    found = np.zeros((group, len(METRICS) + shared.features.shape[1] - 3))
    own = np.arange(len(rows))
    before = rows > 0
    back = (rows - shared.middle).astype(np.float64)
    for i, head in enumerate(range(kv * group, (kv + 1) * group)):
        s = scores(q[:, head], k, rows, layer)
        most = s.max(axis=1, keepdims=True)
        sink = None
        if sinks is not None:
            most = np.maximum(most, sinks[head])
            sink = np.exp(sinks[head] - most[:, 0]).astype(np.float64)
        s -= most
        np.maximum(s, FAINT, out=s)
        e = np.exp(s)
        sums = (e @ shared.features).astype(np.float64)
        total = sums[:, 0] if sink is None else sums[:, 0] + sink
        weighted = np.einsum("rk,rk->r", e, s, dtype=np.float32).astype(np.float64)
        share = 1.0 / total
        mean = sums[:, 1] * share
        # From distances about the middle to distances back from each row; the sink looks nowhere.
        seen = sums[:, 0] * share
        far = back * seen - mean
        square = back**2 * seen - 2 * back * mean + sums[:, 2] * share
        near = np.bincount(shared.near[0], e[shared.near], len(rows)) * share
        after = np.bincount(shared.following[0], e[shared.following], len(rows)) * share
        entropy = np.log(total) - weighted * share
        if sink is not None and sinks is not None:
            entropy -= sink * share * (sinks[head] - most[:, 0])
        numbers = (
            e[own, rows] * share,
            e[own[before], rows[before] - 1] * share[before],
            e[:, 0] * share,
            near,
            entropy,
            far,
            square - far**2,
            after,
            np.zeros(1) if sink is None else sink * share,
        )
        found[i, : len(METRICS)] = [float(x.sum()) for x in numbers]
        found[i, len(METRICS) :] = (sums[:, 3:] * share[:, None]).sum(axis=0)
    return found


def rows_of(
    replay: Replay, layer: int, heads: Sequence[int], positions: Sequence[int], raw: bool = False
) -> Iterator[tuple[I32, F32]]:
    """(positions, weights (heads, rows, keys)) of some heads at some positions, chunk by chunk."""
    found = replay.anatomy.head(layer, max(heads))
    last = max(positions) + 1
    start = min(positions) if replay.clean >= min(positions) else 0
    for part in replay.run([found.q], positions, start=start, stop=last):
        if len(part.positions):
            yield part.positions, patterns(replay, found, part.of(found.q), part.positions, heads, raw)
