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


@pytest.mark.parametrize("script", ["guarded.py", "guarded_plan.py"])
def test_nothing_is_read_or_written_past_an_array(script: str) -> None:
    done = guarded(str(Path(__file__).with_name(script)))
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    assert done.stdout.split() == ISAS


def test_the_cores_own_memory_ends_at_a_guard_page() -> None:
    done = guarded("-c", PAST_THE_END)
    assert done.stdout.split() == ["inside"] and done.returncode == -signal.SIGSEGV
