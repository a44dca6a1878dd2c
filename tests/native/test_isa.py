"""The choice of an instruction set: by the CPU, or by PELLUCID_ISA, which must be one that runs here."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from kernelcases import ISAS
from pellucid import _core
from pellucid.errors import ConfigError

SMALL_SIGNAL_STACK = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(8192)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, 8192)), None) == 0
from pellucid import _core
print(_core.cpu_features()["amx_int8"], *_core.isas())
"""


def chosen(value: str | None) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "PELLUCID_ISA"}
    if value is not None:
        env["PELLUCID_ISA"] = value
    code = "from pellucid import _core; print(_core.isa())"
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


def test_the_best_is_the_default() -> None:
    assert chosen(None).stdout.strip() == chosen("").stdout.strip() == ISAS[0]


@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_chooses(isa: str) -> None:
    assert chosen(isa).stdout.strip() == isa


@pytest.mark.parametrize("value", ["sse9", "AVX2", "avx2 "])
def test_an_unknown_set_is_an_error_that_names_what_can_be_used(value: str) -> None:
    done = chosen(value)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0
    assert last.startswith("pellucid.errors.ConfigError: ")
    assert f"PELLUCID_ISA={value} cannot be used" in last
    assert last.endswith(", ".join(ISAS))


def test_a_set_by_name_must_run_here() -> None:
    with pytest.raises(ConfigError, match="sse9"):
        _core.quantize(np.zeros((1, 32), np.float32), isa="sse9")


@pytest.mark.skipif("amx" not in ISAS, reason="no AMX here")
def test_without_the_systems_leave_tiles_are_not_used() -> None:
    """Linux grants no tiles to a process with a signal stack that is too small to save them on."""
    done = subprocess.run([sys.executable, "-c", SMALL_SIGNAL_STACK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", *(isa for isa in ISAS if isa != "amx")]


def test_what_the_cpu_has() -> None:
    features = _core.cpu_features()
    assert all(isinstance(v, bool) for v in features.values())
    assert ISAS[-1] == "scalar"
    if "avx512" in ISAS:
        assert features["avx512vnni"]
    if "amx" in ISAS:
        assert "avx512" in ISAS and features["amx_tile"] and features["amx_int8"]
    if "avx2" in ISAS:
        assert features["avx2"] and features["fma"]
    if "avx2_vnni" in ISAS:
        assert features["avx_vnni"]
