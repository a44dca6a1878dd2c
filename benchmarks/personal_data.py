"""What hiding personal data finds of the corpus and costs: python benchmarks/personal_data.py

Recall counts a value as found if no character of it is left. Times are medians over texts of a few KiB: English prose
with one value in a kilobyte, and the corpus itself, which is nearly nothing but values.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

EACH = 1000
REPEAT = 15


def median_ms_per_kib(find: object, text: str) -> float:
    """Milliseconds for a kilobyte."""
    times: list[float] = []
    for _ in range(REPEAT):
        began = time.perf_counter()
        find(text)  # type: ignore[operator]
        times.append(time.perf_counter() - began)
    return sorted(times)[REPEAT // 2] * 1e3 / (len(text.encode()) / 1024)


def main() -> int:
    """Print the table."""
    from pellucid.pii.find import Finder
    from pii.corpus import NOTHING, corpus

    finder = Finder()
    cases = list(corpus(7, EACH))
    missed, asked = Counter[str](), Counter[str]()
    for case in cases:
        at = case.text.index(case.value)
        asked[case.kind] += 1
        missed[case.kind] += not any(f.start <= at and f.end >= at + len(case.value) for f in finder.find(case.text))
    for kind, count in asked.items():
        print(f"{kind:20} {1 - missed[kind] / count:8.2%} of {count}")
    print(f"{'all':20} {1 - missed.total() / asked.total():8.2%} of {asked.total()} (due: 99 %)")
    print(f"{'where none is':20} {sum(len(finder.find(text)) for text in NOTHING):8} found in {len(NOTHING)} texts")
    prose = "".join(
        "The committee met again, on the second day, to look into what had been said of the plan for the year 2031. "
        * 9
        + case.text
        for case in cases[:: EACH * 3]
    )
    print(f"{'prose':20} {median_ms_per_kib(finder.find, prose):8.2f} ms/KiB (due: 1)")
    values = " ".join(case.text for case in cases[::EACH])
    print(f"{'values alone':20} {median_ms_per_kib(finder.find, values):8.2f} ms/KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
