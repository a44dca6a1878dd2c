"""Matrix products against the machine: GB/s for one row of activations, GOPS for many, as shares of its peaks.

    python benchmarks/kernels.py [--isa avx512] [--format q4_0 ...] [--tokens 1 2 4 8 512] [--json]

One thread, and its processor time, so that other work on the machine disturbs less. Weights for one row lie in memory
larger than the caches (--mib); for two rows and more they are small, so that only arithmetic counts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np

from pellucid import _core
from pellucid.formats import FORMATS


def best(call: Callable[[], object], seconds: float = 0.4) -> float:
    """Least processor time of a call, over at least three calls and `seconds`."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return min(times)


def weights(name: str, rows: int, cols: int) -> tuple[_core.Matrix, float]:
    """A packed matrix of plausible weights, and the GB/s of packing it."""
    rng = np.random.default_rng(0)
    some = FORMATS[name].encode_rows(rng.standard_normal((64, cols), np.float32))
    data = np.tile(some, (rows // 64, 1))
    matrix = _core.Matrix(name, rows, cols)
    start = time.thread_time()
    matrix.pack(data)
    first = time.thread_time() - start
    return matrix, data.nbytes / first / 1e9


def product(matrix: _core.Matrix, tokens: int, isa: str) -> Callable[[], None]:
    x = np.random.default_rng(1).standard_normal((tokens, matrix.cols), np.float32)
    rows = _core.quantize(x, isa) if FORMATS[matrix.format].block > 1 else x.view(np.uint8)
    out = np.empty((tokens, matrix.rows), np.float32)
    packed = matrix.packed
    return lambda: _core.linear(matrix.format, packed, matrix.rows, matrix.cols, rows, out, isa=isa)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", nargs="*", default=_core.isas())
    parser.add_argument("--format", nargs="*", default=[n for n, f in FORMATS.items() if f.native])
    parser.add_argument("--tokens", nargs="*", type=int, default=[1, 2, 4, 8, 512])
    parser.add_argument("--cols", type=int, default=2048)
    parser.add_argument("--mib", type=int, default=256, help="size of the weights read for one row")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    big = weights("q8_0", args.mib * 32 // 64 * 64, 32768)[0].packed
    results: list[dict[str, object]] = []
    for isa in args.isa:
        rounds = 200 if isa == "scalar" else 20_000
        spin = best(lambda isa=isa, rounds=rounds: _core.spin(rounds, isa))
        gops = 2 * _core.spin(rounds, isa) / spin / 1e9
        gbs = big.nbytes / best(lambda isa=isa: _core.read(big, isa)) / 1e9
        if not args.json:
            print(f"\n{isa}: {gops:.0f} int8 GOPS, {gbs:.1f} GB/s", flush=True)
        for name in args.format:
            cells: list[str] = []
            for tokens in args.tokens:
                rows = (args.mib << 20) // FORMATS[name].row_bytes(args.cols) // 64 * 64 if tokens == 1 else 512
                matrix, pack = weights(name, rows, args.cols)
                seconds = best(product(matrix, tokens, isa))
                got = {"gbs": matrix.nbytes / seconds / 1e9, "gops": 2 * rows * args.cols * tokens / seconds / 1e9}
                if tokens == 1:
                    cells.append(f"1: {got['gbs']:5.1f} GB/s ({got['gbs'] / gbs:4.0%})")
                else:
                    cells.append(f"{tokens}: {got['gops']:4.0f} GOPS ({got['gops'] / gops:4.0%})")
                results.append(
                    {"isa": isa, "format": name, "tokens": tokens, "peak_gops": gops, "peak_gbs": gbs, "pack_gbs": pack}
                    | got
                )
            if not args.json:
                print(f"  {name:6} | " + " | ".join(cells), flush=True)
    if args.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
