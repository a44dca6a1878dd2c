"""Perplexity of the native plan beside Hugging Face's in float32 and llama.cpp's, on the same weights and token ids.

    python benchmarks/perplexity.py [MODEL ...] [--chunks 8] [--threads 2] [--kv q8_0] [--isa avx2] [--json FILE]

The ids, the method and the others' figures are tests/golden/perplexity*. A model is right when it is no further from
the float32 reference than llama.cpp is, or within 0.5 %; otherwise the exit code is 1. The rule is for the whole text:
with --chunks all three are taken over the first chunks only, and nothing is judged.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pellucid.checkpoint import open_checkpoint
from pellucid.config import ISAS, EngineConfig
from pellucid.devices.base import Batch
from pellucid.devices.cpu import CpuDevice
from pellucid.models.decoder import decoder_graph

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
MODELS = Path(os.environ.get("PELLUCID_TEST_MODELS") or Path.home() / ".cache" / "pellucid-models")
CHUNK, FIRST = 512, 256
CLOSE = 0.005
VERDICTS = {True: "yes", False: "NO", None: "-"}


def nll(device: CpuDevice, tokens: NDArray[np.int32]) -> float:
    """Negative log-likelihood of the second half of a chunk of 512 ids, in nats."""
    pages = -(-CHUNK // device.page_size)
    batch = Batch(
        tokens=np.ascontiguousarray(tokens[:-1]),
        positions=np.arange(CHUNK - 1, dtype=np.int32),
        seq_starts=np.array([0, CHUNK - 1], np.int32),
        page_tables=np.arange(pages, dtype=np.int32)[None],
        logit_rows=np.arange(FIRST - 1, CHUNK - 1, dtype=np.int32),
    )
    logits = device.run(batch).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    chosen = np.take_along_axis(logits, tokens[FIRST:, None].astype(np.int64), axis=1)[:, 0]
    return float((np.log(np.exp(logits).sum(axis=1)) - chosen).sum())


def measure(path: Path, chunks: NDArray[np.int32], config: EngineConfig) -> tuple[float, float]:
    """Perplexity over the chunks, and the seconds it took."""
    with open_checkpoint(path) as checkpoint:
        device = CpuDevice.load(checkpoint, decoder_graph(checkpoint.spec), config)
    start = time.monotonic()
    total = sum(nll(device, chunk) for chunk in chunks)
    return perplexity(total, len(chunks)), time.monotonic() - start


def perplexity(total: float, chunks: int) -> float:
    """From the negative log-likelihood over so many chunks."""
    return math.exp(total / (chunks * (CHUNK - FIRST)))


def main() -> int:
    """Print one line for each model."""
    golden = json.loads((GOLDEN / "perplexity.json").read_text(encoding="utf-8"))["models"]
    tokens = np.load(GOLDEN / "perplexity_tokens.npz")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(golden)}; all that are here")
    parser.add_argument("--chunks", type=int, help="only the first so many chunks")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kv", default="f16", choices=("f16", "q8_0"))
    parser.add_argument("--isa", choices=ISAS)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    args = parser.parse_args()
    config = EngineConfig(
        threads=args.threads, ctx=CHUNK, kv=args.kv, kv_pages=CHUNK // 16, token_budget=CHUNK, isa=args.isa
    )
    rows: list[dict[str, object]] = []
    print(f"{'model':<20} {'float32':>9} {'pellucid':>9} {'':>8} {'llama.cpp':>9} {'':>8} {'tokens/s':>9}  right")
    for name in args.models or golden:
        entry, path = golden[name], MODELS / golden[name]["file"]
        if not path.is_file():
            print(f"{name:<20} {path} is not here")
            continue
        chunks = tokens[name][: args.chunks]
        exact, llama = (
            perplexity(sum(entry[e]["nll_of_chunks"][: len(chunks)]), len(chunks)) for e in ("hf", "llama.cpp")
        )
        ours, seconds = measure(path, chunks, config)
        off, llama_off = ours / exact - 1, llama / exact - 1
        right = None if args.chunks else abs(off) <= max(abs(llama_off), CLOSE)
        rate = chunks.size / seconds
        print(
            f"{name:<20} {exact:9.4f} {ours:9.4f} {off:+8.3%} {llama:9.4f} {llama_off:+8.3%} {rate:9.1f}"
            f"  {VERDICTS[right]}",
            flush=True,
        )
        rows.append(
            {
                "model": name,
                "chunks": len(chunks),
                "float32": exact,
                "pellucid": ours,
                "relative": off,
                "llama.cpp": llama,
            }
            | {
                "llama.cpp_relative": llama_off,
                "tokens_per_second": rate,
                "right": right,
                "kv": args.kv,
                "isa": args.isa,
            }
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if any(r["right"] is False for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
