"""Mutated model files: 2,000 of them open or are refused by name; none crashes, hangs or takes too much memory.

The long form is tests/long/test_mutations.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutations import HEAVY

TESTS = Path(__file__).parents[1]


def run(kind: str, what: str, count: int) -> dict[str, object]:
    """Run tests/mutations.py in a process of its own; a crash shows as its exit code."""
    env = os.environ | {"PYTHONPATH": str(TESTS), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(TESTS / "mutations.py"), kind, what, str(count)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60 + count / 10)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def check(report: dict[str, object]) -> None:
    assert report["bad"] == []
    assert report["slowest"] < 2.0  # type: ignore[operator]
    assert report["memory"] <= 1.0  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["gguf", "hf"])
def test_mutations(kind: str) -> None:
    report = run(kind, "1", 1000)
    check(report)
    assert report["outcomes"]["ModelFileError"] > 500  # type: ignore[index]


@pytest.mark.parametrize("name", HEAVY)
def test_files_made_to_cost_memory(name: str) -> None:
    check(run("heavy", name, 1))
