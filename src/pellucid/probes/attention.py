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

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pellucid import _core
from pellucid.devices.base import Tap
from pellucid.graph.reference import soft_cap
from pellucid.probes.anatomy import AttentionLayer
from pellucid.probes.replay import Part, Replay

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
METRICS = ("self", "previous", "first", "local", "entropy", "distance", "spread", "induction", "sink")
FEW_ROWS = LEAST_ROWS = 64
NO_SPANS = np.empty((0, 2), np.int32)
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
    out = np.zeros((len(heads), len(rows), end), np.float32)
    sinks, previous = replay.sinks(layer.layer), replay.previous
    known: dict[int, F32] = {}
    for i, head in enumerate(heads):
        kv = layer.kv_head(head)
        if raw:
            s = scores(q[:, head], replay.keys(layer.layer, kv, end)[0], rows, layer)
            s[s <= MASKED] = -np.inf
            out[i] = s
            continue
        if kv not in known:
            known = {kv: replay.key_groups(layer.layer, kv, end)}
        sink = None if sinks is None else float(sinks[head])
        _look(layer, q[:, head], rows, known[kv], sink, previous, NO_SPANS, None, out[i])
    return out


def value_norms(replay: Replay, layer: AttentionLayer, head: int, stop: int) -> F32:
    """‖v‖ (stop,) of what a head reads at positions 0 to `stop`, as the cache holds it.

    A weight times it is ‖αv‖, what of a key's value reaches the head (Kobayashi et al. 2020): a sink's is small.
    """
    _, v = replay.keys(layer.layer, layer.kv_head(head), stop)
    return np.sqrt(np.einsum("kd,kd->k", v, v, dtype=np.float64)).astype(np.float32)


def _look(
    layer: AttentionLayer,
    q: F32,
    rows: I32,
    keys: F32,
    sink: float | None,
    previous: F32,
    spans: I32,
    sums: F64 | None,
    weights: F32 | None,
) -> None:
    """The core's `look` at one head."""
    _core.look(
        q, rows, keys, layer.scale, layer.cap, layer.window, sink, previous, spans, sums, weights, ""
    )  # fmt: skip


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


def head_metrics(
    replay: Replay,
    segments: Sequence[tuple[str, int, int]] = (),
    threads: int = 2,
    also: Sequence[Tap | str] = (),
    take: Callable[[Part], None] | None = None,
) -> HeadMetrics:
    """Metrics of every head over all rows, in one replay (more where the budget does not hold all queries).

    Args:
        segments: (name, first, end) spans of tokens whose share is asked for.
        threads: Python threads that share the heads.
        also: what else is looked at on the way; each part goes to `take`.
    """
    layers = replay.anatomy.layers
    count, most = len(layers), max(a.heads for a in layers)
    sums = np.zeros((count, most, len(METRICS) + len(segments)))
    n = len(replay.tokens)
    # As many layers' queries in one pass as the budget holds of LEAST_ROWS rows.
    row_bytes = 4 * max(a.heads * a.d_head for a in layers)
    group = max(1, min(count, replay.spare // 4 // (row_bytes * min(LEAST_ROWS, n))))
    spans = np.array([[a, b] for _, a, b in segments], np.int32).reshape(-1, 2)
    previous = replay.previous
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, count, group):
            some = layers[first : first + group]
            for part in replay.run([*(a.q for a in some), *(also if first == 0 else ())]):
                if take is not None and first == 0:
                    take(part)
                work = [(a, kv) for a in some for kv in range(a.kv_heads)]

                def measure(item: tuple[AttentionLayer, int], part: Part = part) -> None:
                    a, kv = item
                    keys, q, sinks = replay.key_groups(a.layer, kv, part.computed), part.of(a.q), replay.sinks(a.layer)
                    here = np.minimum(spans, len(keys) * 16)
                    for head in range(kv * (a.heads // a.kv_heads), (kv + 1) * (a.heads // a.kv_heads)):
                        sink = None if sinks is None else float(sinks[head])
                        out = sums[a.layer, head]  # of this head alone: no two threads write it
                        _look(a, q[:, head], part.positions, keys, sink, previous, here, out, None)

                list(pool.map(measure, work))
    sums /= n
    values = {name: sums[..., i] for i, name in enumerate(METRICS)}
    # Summed as the mean of the variances; told as a deviation.
    values["spread"] = np.sqrt(np.maximum(values["spread"], 0))
    named = {name: sums[..., len(METRICS) + i] for i, (name, _, _) in enumerate(segments)}
    return HeadMetrics(values, named, layers[0].kv_heads)


def rows_of(
    replay: Replay, layer: int, heads: Sequence[int], positions: Sequence[int], raw: bool = False
) -> Iterator[tuple[I32, F32]]:
    """(positions, weights (heads, rows, keys)) of some heads at some positions, chunk by chunk."""
    found = replay.anatomy.head(layer, max(heads))
    last = max(positions) + 1
    start = min(replay.clean, min(positions))
    # Of few rows all layers' queries are taken: one plan then serves whoever goes from layer to layer.
    taps = [a.q for a in replay.anatomy.layers] if last - start <= FEW_ROWS else [found.q]
    for part in replay.run(taps, positions, start=start, stop=last):
        if len(part.positions):
            yield part.positions, patterns(replay, found, part.of(found.q), part.positions, heads, raw)
