"""What `pellucid plan` predicts beside the peak memory of a process that uses all of it.

Law: one fresh process plans and another loads the model with a server's modules, fills every page of the KV cache and
runs steps as wide as they may be; its peak is what the system saw (VmHWM; Linux only). Prints a table and, with --json,
writes the numbers; exit code 1 if a prediction is further off than --within.

    python benchmarks/plan.py smollm2 gemma3-270m --ctx 512 --ctx 4096
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

SEQS = 64


def used(model: str, ctx: int, pages: int) -> int:
    """Load, fill and step in this process; return the most bytes that were ever resident."""
    from pellucid.llm import LLM
    from pellucid.sampling.params import SamplingParams

    import_module("pellucid.server.app")
    answer = 4
    with LLM(model, ctx=ctx, kv_pages=pages, progress=False) as llm:
        length = min(ctx, pages * 16 // SEQS) - answer
        prompts = [[(7 * i + 31 * k) % 1000 + 300 for i in range(length)] for k in range(SEQS)]
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True), progress=False)
    status = Path("/proc/self/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    if peak is None:
        raise SystemExit("this system does not tell the peak memory of a process")
    return int(peak[1]) * 1024


def child(*args: str) -> Any:
    """What a fresh interpreter prints, as JSON."""
    done = subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def compare(model: str, ctx: int) -> dict[str, Any]:
    """Predict and measure one model at one context."""
    pages = max(2 * SEQS, ctx // 16)
    code = "from pellucid.cli import main; main()"
    options = ["--ctx", str(ctx), "--kv-pages", str(pages), "--max-seqs", str(SEQS), "--json"]
    planned = child("-c", code, "plan", model, *options)
    measured = child(__file__, model, "--ctx", str(ctx), "--use", str(pages))
    return {
        "model": Path(model).name,
        "ctx": ctx,
        "kv_pages": pages,
        "lines": planned["lines"],
        "planned": planned["total"],
        "measured": measured,
        "error": planned["total"] / measured - 1,
    }


def main() -> None:
    """Compare each model at each context."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["smollm2"], help="names or paths")
    parser.add_argument("--ctx", type=int, action="append", help="may be repeated; default: 512 and 4096")
    parser.add_argument("--within", type=float, default=0.05, help="largest error that passes; default: 0.05")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    parser.add_argument("--use", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.use is not None:
        print(used(args.models[0], args.ctx[0], args.use))
        return
    results: list[dict[str, Any]] = []
    print(f"{'model':<44} {'ctx':>6} {'planned MB':>11} {'measured MB':>12} {'error':>7}")
    for model in args.models:
        for ctx in args.ctx or [512, 4096]:
            r = compare(model, ctx)
            results.append(r)
            sizes = f"{r['planned'] / 1e6:>11.1f} {r['measured'] / 1e6:>12.1f}"
            print(f"{r['model']:<44} {ctx:>6} {sizes} {r['error']:>+7.1%}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(any(abs(r["error"]) > args.within for r in results))


if __name__ == "__main__":
    main()
