"""Attention alone, in a process of its own: as a textbook writes it, and as the engine computes it.

Law: both get the same queries, keys and values and give the same rows, causal, in float32. What is timed is attention
(the engine's writing of its cache included), and the peak of memory is what the process grew by, from when it held its
inputs. A process computes one of the two, so that neither leaves the other memory to use again.

    python -m pellucid.bench.heads TASK      a Task in JSON; writes its rows to `out`, prints {"seconds", "peak"}
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pellucid import _core
from pellucid.config import EngineConfig
from pellucid.devices.base import Batch
from pellucid.devices.cpu import CpuDevice
from pellucid.graph.graph import Graph
from pellucid.graph.ops import Attention, Embed, SelectRows, StoreKV, Value

Side = Literal["textbook", "paged"]
Floats = NDArray[np.float32]
STEP = 512
"""Rows of one step of the engine."""


@dataclass(frozen=True)
class HeadShape:
    """Query heads, KV heads, and values of a head."""

    heads: int
    kv_heads: int
    d_head: int


@dataclass(frozen=True)
class Task:
    """What one process does."""

    side: Side
    heads: int
    kv_heads: int
    d_head: int
    tokens: int
    threads: int
    kv: str
    repeat: int
    out: str

    @property
    def scale(self) -> float:
        """Of the scores."""
        return self.d_head**-0.5


def textbook(q: Floats, k: Floats, v: Floats, scale: float) -> Floats:
    """softmax(scale · Q Kᵀ, causal) V of q (tokens, heads, d) over k, v (tokens, kv_heads, d), through a matrix of
    tokens × tokens scores for every head: BLAS products, and the softmax in place."""
    group = q.shape[1] // k.shape[1]
    q = np.ascontiguousarray(q.transpose(1, 0, 2))
    k = np.repeat(k, group, axis=1).transpose(1, 2, 0)
    v = np.ascontiguousarray(np.repeat(v, group, axis=1).transpose(1, 0, 2))
    scores = q @ k
    scores *= np.float32(scale)
    np.copyto(scores, np.float32(-np.inf), where=~np.tri(q.shape[1], dtype=np.bool_))
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return np.ascontiguousarray((scores @ v).transpose(1, 0, 2))


def textbook_bytes(shape: HeadShape, tokens: int) -> int:
    """About what `textbook` takes: the scores and the mask, and copies of its inputs."""
    return tokens * tokens * (4 * shape.heads + 2) + 4 * 4 * tokens * shape.heads * shape.d_head


def inputs(task: Task) -> tuple[Floats, Floats, Floats]:
    """q (tokens, heads, d_head) and k, v (tokens, kv_heads, d_head) at random, the same for both sides."""
    rng = np.random.default_rng(0)

    def rows(heads: int) -> Floats:
        return rng.standard_normal((task.tokens, heads, task.d_head), np.float32)

    return rows(task.heads), rows(task.kv_heads), rows(task.kv_heads)


@dataclass(frozen=True)
class _Shape:
    """A model that is one layer of attention."""

    vocab: int
    context: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    n_layers: int = 1


class PagedAttention:
    """The engine's plan of attention alone: row t of three tables is what token t asks, and is asked for."""

    def __init__(self, task: Task, tables: dict[str, _core.Matrix]) -> None:
        q, k, v = (Value(name, (heads, task.d_head)) for name, heads in _heads(task))
        z, out = Value("z", q.shape), Value("out", q.shape)
        graph = Graph(
            (
                *(Embed(out=value, table=value.name, scale=1.0) for value in (q, k, v)),
                StoreKV(layer=0, k=k, v=v),
                Attention(out=z, q=q, layer=0, kv_heads=task.kv_heads, scale=task.scale, window=0),
                SelectRows(out=out, x=z),
            ),
            out,
        )
        self._size = q.size
        ctx = max(16, task.tokens)
        shape = _Shape(max(q.size, task.tokens), ctx, task.heads, task.kv_heads, task.d_head)
        config = EngineConfig(
            threads=task.threads, ctx=ctx, kv=task.kv, kv_pages=-(-ctx // 16) + 1, max_seqs=1, token_budget=STEP
        )
        self._device = CpuDevice(graph, shape, tables, {}, config)
        self._timed = [r.kind not in ("embed", "select") for r in self._device.lowered.records]
        self._tokens = np.arange(task.tokens, dtype=np.int32)
        self._pages = np.arange(-(-ctx // 16), dtype=np.int32)[None]

    def seconds(self) -> float:
        """Compute all rows, step by step; the time of attention and of writing the cache."""
        total = 0
        for batch in self._steps(wanted=False):
            _, times = self._device.profile(batch)
            total += times.sum(axis=2).mean(axis=0)[self._timed].sum()
        return float(total) * 1e-9

    def rows(self) -> Floats:
        """All rows (tokens, heads · d_head)."""
        found = [self._device.run(batch)[:, : self._size].copy() for batch in self._steps(wanted=True)]
        return np.concatenate(found)

    def _steps(self, *, wanted: bool) -> list[Batch]:
        steps: list[Batch] = []
        for at in range(0, len(self._tokens), STEP):
            rows = self._tokens[at : at + STEP]
            ends = np.array([0, len(rows)], np.int32)
            asked = np.arange(len(rows) if wanted else 0, dtype=np.int32)
            steps.append(Batch(rows, rows, ends, self._pages, asked))
        return steps


def pack(task: Task) -> dict[str, _core.Matrix]:
    """The inputs as tables of the core."""
    tables: dict[str, _core.Matrix] = {}
    for (name, heads), values in zip(_heads(task), inputs(task), strict=True):
        tables[name] = _core.Matrix("f32", task.tokens, heads * task.d_head)
        tables[name].pack(values.reshape(task.tokens, -1).view(np.uint8), 1)
    return tables


def _heads(task: Task) -> tuple[tuple[str, int], ...]:
    return ("q", task.heads), ("k", task.kv_heads), ("v", task.kv_heads)


def run(task: Task) -> tuple[list[float], int]:
    """Do the task: seconds of each repetition, after one that does not count, and the peak in bytes."""
    seconds: list[float] = []
    rows: Callable[[], Floats]
    if task.side == "textbook":
        q, k, v = inputs(task)
        meter = MemoryMeter()
        result = textbook(q, k, v, task.scale)
        for _ in range(task.repeat):
            del result
            began = time.perf_counter()
            result = textbook(q, k, v, task.scale)
            seconds.append(time.perf_counter() - began)
        rows = lambda: result.reshape(task.tokens, -1)  # noqa: E731
    else:
        tables = pack(task)
        meter = MemoryMeter()
        paged = PagedAttention(task, tables)
        seconds = [paged.seconds() for _ in range(task.repeat + 1)][1:]
        rows = paged.rows
    peak = meter.peak()
    np.save(task.out, rows())
    return seconds, peak


class MemoryMeter:
    """How much this process grew at most since the meter was made, in bytes."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):  # without it the peak is bounded from above, by what came before
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._before = _resident("VmRSS")

    def peak(self) -> int:
        """The growth so far."""
        return max(0, _resident("VmHWM") - self._before)


def _resident(field: str) -> int:
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(field):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS, in bytes


if __name__ == "__main__":
    times, grown = run(Task(**json.loads(sys.argv[1])))
    print(json.dumps({"seconds": times, "peak": grown}))
