"""Measure what SECURITY promises, and write the table in docs/security.md.

    python benchmarks/promises                      every promise, one hundredth of its count
    python benchmarks/promises --share 1            all of it: hours
    python benchmarks/promises raw api --share 0.2  some, a fifth
    python benchmarks/promises --table              only write the table anew

Law: a figure stands beside a promise only if it was measured, with the count that was tried; what was not says so.
Results are kept one by one in benchmarks/results/promises.json, so that long ones need not be run again with others.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "promises.json"
PAGE = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- promises: python benchmarks/promises -->\n", "<!-- /promises -->\n"
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(Path(__file__).parent)]


def table(results: dict[str, dict[str, Any]]) -> str:
    """The promises, each with its figure."""
    from promises import PROMISES

    lines = ["| promise | due | measured | |", "|---|---|---|---|"]
    for name, promise in PROMISES.items():
        result = results.get(name)
        if result is None:
            lines.append(f"| {promise.what} | {promise.due} | not measured | |")
        else:
            kept = "kept" if result["kept"] else "**not kept**"
            lines.append(f"| {promise.what} | {promise.due} | {result['figure']} | {kept} |")
    return "\n".join(lines) + "\n"


def write(results: dict[str, dict[str, Any]]) -> None:
    """Put the table into the page."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + BEGIN + table(results) + END + after)


def main() -> int:
    from promises import PROMISES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *PROMISES], help="which; default: all")
    parser.add_argument("--share", type=float, default=0.01, help="part of each promise's count that is tried")
    parser.add_argument("--table", action="store_true", help="measure nothing, write the table")
    options = parser.parse_args()
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    failed = False
    for name in [] if options.table else options.names or PROMISES:
        promise = PROMISES[name]
        if promise.measure is None:
            continue
        began = time.monotonic()
        try:
            figure, kept = promise.measure(max(1, round(promise.count * options.share)))
        except AssertionError as error:
            traceback.print_exc()
            figure, kept = f"failed: {str(error).partition(chr(10))[0][:160] or 'see its traceback'}", False
        results[name] = {
            "figure": figure,
            "kept": kept,
            "seconds": round(time.monotonic() - began, 1),
            "commit": commit.stdout.strip(),
            "machine": f"{platform.machine()}, {platform.system()}",
        }
        failed |= not kept
        print(f"{name}: {figure} ({'kept' if kept else 'NOT KEPT'}, {results[name]['seconds']} s)", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write(results)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
