"""Mutated model files, the long form: 20,000 of them (python -m pytest tests/long)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("kind", ["gguf", "hf"])
@pytest.mark.parametrize("seed", range(2, 12))
def test_mutations(kind: str, seed: int) -> None:
    env = os.environ | {"PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-W", "error", str(TESTS / "mutations.py"), kind, str(seed), "1000"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["bad"] == []
    assert report["slowest"] < 2.0
    assert report["memory"] <= 1.0
