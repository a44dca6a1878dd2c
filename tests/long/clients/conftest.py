"""`pellucid serve` as a process of its own, for clients that know nothing of Pellucid but its address (README.md here).

Law: the server is the command on PATH, not code imported here, so that clients may need other versions of packages than
Pellucid does. After each test it has nothing left to do; at the end it stops in order.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

for name in ("HF_HUB_OFFLINE", "LITELLM_LOCAL_MODEL_COST_MAP", "DO_NOT_TRACK"):
    os.environ[name] = "True"
os.environ["NO_PROXY"] = "127.0.0.1"

CLIENTS = {
    "test_instructor.py": "instructor",
    "test_langchain.py": "langchain_openai",
    "test_litellm.py": "litellm",
    "test_lm_eval.py": "lm_eval",
}
collect_ignore = [file for file, package in CLIENTS.items() if find_spec(package) is None]


@dataclass(frozen=True)
class Served:
    """Where a server is, and under which name its model."""

    url: str
    model: str

    @property
    def v1(self) -> str:
        return self.url + "/v1"

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"pellucid:{name}[ {{]", line))


@contextmanager
def serving(model: str, name: str, log: Path) -> Iterator[Served]:
    program = shutil.which("pellucid")
    assert program, "put the environment that has the command `pellucid` on PATH"
    command = [program, "serve", model, "--served-model-name", name, "--port", "0"]
    with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        try:
            yield Served(_address(process, log), name)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert process.returncode == 0, log.read_text()


def _address(process: subprocess.Popen[bytes], log: Path, within: float = 120) -> str:
    end = time.monotonic() + within
    while not (found := re.search(r"http://[\d.]+:\d+", log.read_text())):
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return found[0]


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving("smollm2", "smollm2", tmp_path_factory.mktemp("smollm2") / "log") as served:
        yield served


@pytest.fixture(scope="session")
def qwen(real_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model whose template has tools."""
    with serving(str(real_model("qwen-0.5b")), "qwen", tmp_path_factory.mktemp("qwen") / "log") as served:
        yield served


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in {"smollm2", "qwen"}.intersection(request.fixturenames):
        served: Served = request.getfixturevalue(name)
        end = time.monotonic() + 10
        while served.metric("num_requests_running") + served.metric("num_requests_waiting"):
            assert time.monotonic() < end, "a request still runs after its client has its answer"
            time.sleep(0.05)
