"""Nothing reads or writes past its memory: a stray access to a guard page ends the process that makes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernelcases import ISAS

PAST_THE_END = """
import ctypes, numpy as np
from pellucid import _core
matrix = _core.Matrix("f32", 16, 4)
end = matrix.packed.ctypes.data + matrix.nbytes
ctypes.string_at(end - 1, 1)
print("inside", flush=True)
ctypes.string_at(end, 1)
"""


def guarded(*args: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PELLUCID_GUARD_PAGES": "1"}
    return subprocess.run([sys.executable, *args], env=env, capture_output=True, text=True, timeout=120)


def told(script: str, isa: str) -> str:
    """What the script prints at its end. A process holds its guarded arrays, so each set has one of its own."""
    done = guarded(str(Path(__file__).with_name(script)), isa)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    return done.stdout.strip()


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_is_read_or_written_past_an_array(isa: str) -> None:
    assert told("guarded.py", isa) == isa


def test_plans_stay_in_their_memory_and_give_the_same_bits_in_every_set() -> None:
    assert len({told("guarded_plan.py", isa) for isa in ISAS}) == 1


def test_the_cores_own_memory_ends_at_a_guard_page() -> None:
    done = guarded("-c", PAST_THE_END)
    assert done.stdout.split() == ["inside"] and done.returncode == -signal.SIGSEGV
