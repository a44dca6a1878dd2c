"""What looking costs: nobody, a summary, a replay with all heads, one row at 8k, a long prompt under a budget.

    python benchmarks/lens.py [--model smollm2] [--large qwen-1.5b.gguf] [--json FILE]

Each figure stands beside its bound. Times are medians of interleaved runs, so that a machine whose speed wanders does
not favour one side; memory is the growth of this process's peak, by resetting it (Linux).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from pellucid import LLM, SamplingParams
from pellucid.devices.base import Batch
from pellucid.devices.cpu import CpuDevice
from pellucid.engine.watch import summary_taps
from pellucid.probes.attention import head_metrics, rows_of
from pellucid.probes.inspect import replay_of
from pellucid.probes.replay import Replay

TEXT = "The rain had stopped by the time the train came in, and platform {} was bright with water. "


def took(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def step_of(position: int, pages: int) -> Batch:
    one = np.ones(1, np.int32)
    table = np.arange(pages, dtype=np.int32)[None]
    return Batch(one, one * position, np.array([0, 1], np.int32), table, one * 0)


def watching(device: CpuDevice) -> dict[str, float]:
    """Times of a decoding step: the plan alone twice (what noise is), and with the taps of a summary."""
    small = device.with_config(replace(device.config, kv_pages=16, token_budget=64))
    step, row = step_of(100, 16), np.zeros(1, np.int32)
    names = [value.name for value in device.graph.values()]
    plan = small.plan(summary_taps(names))
    kinds: dict[str, Callable[[], object]] = {
        "plain": lambda: small.run(step),
        "again": lambda: small.run(step),
        "summary": lambda: plan.run(step, row),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(120):
        for kind, run in kinds.items():
            times[kind].append(took(run))
    found = {kind: median(values) for kind, values in times.items()}
    return {
        "step_ms": found["plain"] * 1e3,
        "unwatched_over_plain": found["again"] / found["plain"],
        "summary_over_plain": found["summary"] / found["plain"],
    }


def ids_of(llm: LLM, count: int) -> list[int]:
    text = "".join(TEXT.format(i) for i in range(count // 12))
    ids = llm.tokenizer.encode(text)
    return (ids * (count // len(ids) + 1))[:count]


def replaying(llm: LLM, count: int) -> dict[str, float]:
    """A replay with the metrics of all heads, beside a plain prefill of the same tokens."""
    ids = ids_of(llm, count)
    prefills, metrics = [], []
    for i in range(2):
        alone = [(ids[0] + 1 + i) % llm.device.vocab_size, *ids[1:]]  # none that the prefix cache knows
        prefills.append(took(lambda ids=alone: llm.generate([ids], SamplingParams(max_tokens=1), progress=False)))
        run = replay_of(llm, alone)
        metrics.append(took(lambda run=run: head_metrics(run, threads=llm.config.threads or 1)))
    return {
        "tokens": count,
        "prefill_s": min(prefills),
        "replay_with_heads_s": min(metrics),
        "over_prefill": min(metrics) / min(prefills),
    }


def one_row(llm: LLM, count: int) -> dict[str, float]:
    """The row of the last of so many tokens, of one head, once their keys are there."""
    run = Replay(llm.device, ids_of(llm, count), 1 << 30)  # type: ignore[arg-type]
    for _ in run.run([]):
        pass
    layers = len(run.anatomy.layers)
    times = [took(lambda i=i: list(rows_of(run, i % layers, [0], [count - 1]))) for i in range(12)]
    return {"tokens": count, "row_ms": median(times) * 1e3}


def peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM")


def under_budget(model: str, count: int, budget: int, threads: int | None) -> dict[str, float]:
    """How much the peak grows while a long prompt is inspected, after the model was loaded and has run."""
    with LLM(model, threads=threads, ctx=count + 16, max_seqs=1, progress=False) as llm:
        ids = ids_of(llm, count)
        llm.generate([ids[:16]], SamplingParams(max_tokens=1), progress=False)
        Path("/proc/self/clear_refs").write_text("5")
        before = peak()
        began = time.perf_counter()
        trace = llm.inspect(ids, SamplingParams(max_tokens=0), level="heads", budget=budget)
        trace.why(-1)
        trace.logit_lens(pos=-1)
        trace.attribution(-1)
        trace.attention(0, [0], range(-64, 0))
        return {
            "tokens": count,
            "budget_mb": budget / 1e6,
            "grew_mb": (peak() - before) / 1e6,
            "seconds": time.perf_counter() - began,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--large")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", choices=("watch", "replay", "row", "budget"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {}

    def tell(name: str, values: dict[str, float]) -> None:
        found[name] = values
        print(f"{name}: " + ", ".join(f"{k} {v:.4g}" for k, v in values.items()), flush=True)

    with LLM(args.model, threads=args.threads, ctx=8192, max_seqs=1, progress=False) as llm:
        if args.only in (None, "watch"):
            tell("watching (bounds 1.005 and 1.05)", watching(llm.device))  # type: ignore[arg-type]
        if args.only in (None, "replay"):
            tell("all heads (bound 3)", replaying(llm, 2048))
        if args.only in (None, "row"):
            tell("a row (bound 50 ms)", one_row(llm, 8192))
    if args.large and args.only in (None, "budget"):
        tell("a long prompt (bound 512 MB)", under_budget(args.large, 4096, 512 * 10**6, args.threads))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
