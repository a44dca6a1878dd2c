"""Fixtures of the whole suite: the real models, and a hub and a store of the test's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakehub import FakeHub

# A shell ignores SIGINT in what it starts in the background, and every child of the suite would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

REAL_MODELS = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3-270m": "gemma-3-270m.Q4_K_M.gguf",
    "qwen-0.5b": "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    "qwen-1.5b": "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
}


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model, pulled as a user would pull it, into the user's own store."""
    from pellucid.models.pull import resolve

    return resolve("smollm2", progress=False)


@pytest.fixture(scope="session")
def real_model(request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """`real_model("qwen-0.5b")`: path of a real model; the test is skipped on a machine without it."""

    def find(name: str) -> Path:
        folder = Path(os.environ.get("PELLUCID_TEST_MODELS") or Path.home() / ".cache" / "pellucid-models")
        path = folder / REAL_MODELS[name]
        if path.is_file():
            return path
        if name == "smollm2":
            return request.getfixturevalue("smollm2_path")
        pytest.skip(f"{path} is not here")

    return find


@pytest.fixture
def store_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of the test's own."""
    home = tmp_path / "home"
    monkeypatch.setenv("PELLUCID_HOME", str(home))
    return home


@pytest.fixture
def fake_hub(store_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A hub on loopback that HF_ENDPOINT points to, and an empty store."""
    hub = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield hub
    hub.close()
