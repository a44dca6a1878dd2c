"""The README's table, out of benchmarks/results/peers-*.json.

    python benchmarks/peers/report.py            write it between the markers of README.md
    python benchmarks/peers/report.py --print    show it

Law: nothing is measured or computed here but medians and the choice of the best peer. A cell that does not count is
struck through, with the reason; targets stand beside what was reached.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from cells import best_of, number, percent, ratio_of, reason, share_of
from targets import target_of

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
README = HERE.parents[1] / "README.md"
BEGIN, END = "<!-- peers: written by benchmarks/peers/report.py -->", "<!-- /peers -->"
Result = dict[str, Any]


def table_of(results: list[Result]) -> str:
    """Markdown for results of one instruction set: a row a model and case."""
    lines = [
        "| | Pellucid, tok/s | share of roofline | best peer, tok/s | ratio | other peers, tok/s |",
        "|---|---:|---|---|---|---|",
    ]
    for result in results:
        model, isa = str(result["model"]), result["settings"].get("isa")
        cells = result["cells"]
        lines.append(f"| **{Path(model).stem}** | | | | | |")
        for case in dict.fromkeys(cell["case"] for cell in cells):
            row = [cell for cell in cells if cell["case"] == case]
            ours = [cell for cell in row if "pellucid" in cell]
            if not ours:
                lines.append(f"| {case} | not measured | | | | {'; '.join(map(_other, row))} |")
                continue
            target, best = target_of(model, case, isa), best_of(row)
            rate = median(number(cell["pellucid"]) for cell in ours)
            told = ["none counts", ""] if best is None else [_rate(best), ratio_of(best, target)]
            others = "; ".join(_other(cell) for cell in row if cell is not best)
            lines.append(f"| {case} | {rate:,.1f} | {share_of(ours, target)} | {' | '.join(told)} | {others} |")
    return "\n".join(lines)


def _rate(cell: Result) -> str:
    return f"{cell['peer']} {number(cell['theirs']):,.1f} ({cell['variant']})"


def _other(cell: Result) -> str:
    if "ratio" not in cell:
        return f"{cell['peer']} fails"
    text = f"{cell['peer']} {number(cell['theirs']):,.1f}"
    return text if cell["counts"] else f"~~{text}~~ {reason(cell)}"


def gate_of(result: Result) -> str:
    """One line: how far each engine's perplexity is from float32's, best and worst setting of each."""
    told = [f"Pellucid {percent(result['perplexity']['pellucid_off'])}"]
    for peer, trials in result["trials"].items():
        found = sorted({percent(t["perplexity_off"]) for t in trials.values() if t["perplexity_off"] is not None})
        told.append(f"{peer} {' to '.join(dict.fromkeys((found[0], found[-1])))}" if found else f"{peer} fails")
    return f"- {Path(result['model']).stem}: {', '.join(told)}"


def report(results: list[Result]) -> str:
    """All of it; results of the same instruction set go together."""
    parts: list[str] = []
    for isa in dict.fromkeys(result["settings"].get("isa") for result in results):
        group = [result for result in results if result["settings"].get("isa") == isa]
        first = group[0]
        packages = dict.fromkeys(p.split()[0] for result in group for p in result["packages"].values())
        title = f"{first['processor']}, {first['settings']['threads']} threads, {first['date']}"
        title += f", `PELLUCID_ISA={isa}` and peers built for it" if isa else ""
        parts += [f"{title}; {', '.join(packages)}:", table_of(group)]
        parts += ["Perplexity, against float32's on the same text (a peer counts within 3 %):"]
        parts += ["\n".join(map(gate_of, group))]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, help="default: all of benchmarks/results/peers-*.json")
    parser.add_argument("--print", dest="shown", action="store_true", help="write to stdout, and leave the README")
    args = parser.parse_args()
    files = args.results or list(RESULTS.glob("peers-*.json"))
    if not files:
        parser.error(f"there are no results in {RESULTS}; run benchmarks/peers/peers.py first")
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    results.sort(key=lambda r: (r["settings"].get("isa") or "", _size(r)))
    text = report(results)
    if args.shown:
        print(text)
        return
    readme = README.read_text(encoding="utf-8")
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        parser.error(f"{README} lacks the lines {BEGIN} and {END}")
    README.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def _size(result: Result) -> float:
    """Models in the order of their speed at the first case, the fastest first."""
    return -max((number(cell["pellucid"]) for cell in result["cells"][:1] if "pellucid" in cell), default=0)


if __name__ == "__main__":
    main()
