"""Attention alone against the machine: GFLOPS of a prompt, GB/s of decoding, as shares of its peaks in the same run.

    python benchmarks/attention.py [--isa avx512] [--shape smollm2 ...] [--kv f16 q8_0] [--threads 2] [--json]

A plan of attention ops over random keys and values, one op a layer; the products counted are those of keys that a
query sees, the bytes those of the cache that it reads. The float32 peak is a quarter of the int8 peak, for vpdpbusd and
vfmadd on 512 bits issue at one rate; without AVX-512 no share of it is shown.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import numpy as np

from pellucid import _core
from pellucid.bench.peaks import PeakMeter
from pellucid.kv.store import KVGeometry

PAGE = 16
BLOCK = 512
"""Rows of a step of a prompt."""
LAYERS = 30
"""Layers of decoding, as of a model: each reads its own cache. Small caches may stay in a large third-level cache."""


@dataclass(frozen=True)
class Shape:
    """Heads of a model's attention."""

    heads: int
    kv_heads: int
    d_head: int
    window: int = 0


SHAPES = {
    "smollm2": Shape(9, 3, 64),
    "qwen-0.5b": Shape(14, 2, 64),
    "qwen-1.5b": Shape(12, 2, 128),
    "gemma-270m": Shape(4, 1, 256, 512),
}


class Bench:
    """A plan whose first op fills queries, keys and values, and whose last is attention over `layers` layers."""

    def __init__(self, shape: Shape, kv: str, context: int, layers: int, threads: int, isa: str) -> None:
        self.shape, self.layers, self.context = shape, layers, context
        self.pool = _core.Pool(threads)
        pages = -(-context // PAGE)
        self.kv = _core.KvStore(kv, layers, pages, PAGE, shape.kv_heads, shape.d_head)
        self.table = np.random.default_rng(0).permutation(pages).astype(np.int32)[None]
        self.bytes_per_key = KVGeometry(kv, 1, PAGE, shape.kv_heads, shape.d_head).bytes_per_page / PAGE
        self.fill, self.attend = self._plan(True, isa), self._plan(False, isa)
        for start in range(0, context, BLOCK):
            self._run(self.fill, start, min(BLOCK, context - start))

    def _plan(self, filling: bool, isa: str) -> _core.Plan:
        s = self.shape
        sizes = [4 * s.d_head * n for n in (s.heads, s.kv_heads, s.kv_heads, s.heads)]
        plan = _core.Plan(self.pool, self.kv, isa, s.heads, 64, self.context, BLOCK, sum(sizes))
        slots = [plan.slot(sum(sizes[:i]), size) for i, size in enumerate(sizes)]
        for slot, size in zip(slots[:3], sizes, strict=False):
            values = np.random.default_rng(slot).standard_normal((64, size // 4), np.float32)
            matrix = _core.Matrix("f32", 64, size // 4)
            matrix.pack(values.view(np.uint8))
            plan.embed(slot, matrix, 1.0, False)
        for layer in range(self.layers):
            if filling:
                plan.store_kv(slots[1], slots[2], layer)
            else:
                plan.attention(slots[3], slots[0], layer, s.heads, s.d_head**-0.5, 0.0, s.window)
        return plan

    def _run(self, plan: _core.Plan, start: int, rows: int) -> float:
        """Seconds a layer of the attention of `rows` rows from position `start`."""
        times = np.empty((self.pool.threads, 3 + self.layers, 2), np.int64)
        tokens = np.random.default_rng(start).integers(0, 64, rows).astype(np.int32)
        plan.profile(
            tokens,
            np.arange(start, start + rows, dtype=np.int32),
            np.array([0, rows], np.int32),
            self.table,
            np.empty(0, np.int32),
            np.empty((0, 64), np.float32),
            times,
        )
        return float(np.median(times[0, 3:].sum(axis=1))) / 1e9

    def _seen(self, start: int, rows: int) -> int:
        last = np.arange(start, start + rows) + 1
        return int((np.minimum(last, self.shape.window) if self.shape.window else last).sum())

    def prompt(self, length: int) -> float:
        """GFLOPS of a prompt of `length` tokens, computed BLOCK rows a step."""
        seconds, products = 0.0, 0
        for start in range(0, length, BLOCK):
            rows = min(BLOCK, length - start)
            seconds += min(self._run(self.attend, start, rows) for _ in range(2))
            products += self._seen(start, rows)
        return 4 * products * self.shape.heads * self.shape.d_head / seconds / 1e9

    def decode(self, depth: int) -> float:
        """GB/s of one row that sees `depth` keys."""
        seconds = min(self._run(self.attend, depth - 1, 1) for _ in range(5))
        return self._seen(depth - 1, 1) * self.bytes_per_key / seconds / 1e9


def peaks(threads: int) -> tuple[float, float]:
    """float32 GFLOPS (NaN where unknown) and GB/s of the machine."""
    with PeakMeter(threads) as meter:
        found = meter.measure(5)
    return (found.int8 / 4e9 if _core.isa() in ("avx512", "amx") else float("nan")), found.bandwidth / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default=_core.isa())
    parser.add_argument("--shape", nargs="*", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--kv", nargs="*", default=["f16", "q8_0"])
    parser.add_argument("--prompt", nargs="*", type=int, default=[512, 2048, 4096, 8192])
    parser.add_argument("--depth", nargs="*", type=int, default=[4096, 16384])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    gflops, gbs = peaks(args.threads)
    if not args.json:
        print(f"{args.isa}, {args.threads} threads: {gflops:.0f} float32 GFLOPS, {gbs:.1f} GB/s")
    results: list[dict[str, object]] = []
    for name in args.shape:
        for kv in args.kv:
            got: dict[str, object] = {"shape": name, "kv": kv, "isa": args.isa, "gflops": gflops, "gbs": gbs}
            cells: list[str] = []
            if args.prompt:
                bench = Bench(SHAPES[name], kv, max(args.prompt), 1, args.threads, args.isa)
                for length in args.prompt:
                    got[f"prompt {length}"] = rate = bench.prompt(length)
                    cells.append(f"{length}: {rate:4.0f} GFLOPS ({rate / gflops:4.0%})")
            for depth in args.depth:
                bench = Bench(SHAPES[name], kv, depth, LAYERS, args.threads, args.isa)
                got[f"decode {depth}"] = rate = bench.decode(depth)
                cells.append(f"at {depth}: {rate:4.1f} GB/s ({rate / gbs:4.0%})")
            results.append(got)
            if not args.json:
                print(f"  {name:10} {kv:4} | " + " | ".join(cells), flush=True)
    if args.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
