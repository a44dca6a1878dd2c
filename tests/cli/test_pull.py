"""`pellucid pull`: paths on stdout, the rest on stderr."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakehub import FakeHub, Repo
from pellucid.cli import main
from pellucid.models import store


def pull(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as e:
        main(["pull", *options])
    out, err = capsys.readouterr()
    return e.value.code, out, err


def test_a_model_is_pulled_opened_and_its_path_printed(
    fake_hub: FakeHub, smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_1.gguf": smollm2_path.read_bytes()})
    code, out, err = pull(capsys, "org/m")
    assert code == 0
    path = store.entries()[0].path
    assert out == f"{path}\n"
    assert "pulling org/m:Q4_1" in err
    assert "org/m:Q4_1 is ready: llama, 98 MB, SHA-256 verified" in err
    gets = len([r for r in fake_hub.requests if r[0] == "GET" and "/resolve/" in r[1]])
    code, out, err = pull(capsys, "org/m", "--json", "-q")
    assert json.loads(out)["family"] == "llama"
    assert err == ""
    assert len([r for r in fake_hub.requests if r[0] == "GET" and "/resolve/" in r[1]]) == gets
    code, out, err = pull(capsys, "org/m", "--force", "-q")
    assert code == 0
    assert len([r for r in fake_hub.requests if r[0] == "GET" and "/resolve/" in r[1]]) == gets + 1


def test_a_local_file(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull(capsys, str(smollm2_path))[:2] == (0, f"{smollm2_path}\n")


def test_a_file_that_is_no_model_is_said_and_kept(fake_hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": b"GGUF" + bytes(100)})
    code, out, err = pull(capsys, "org/m")
    assert code == 3
    assert out == ""
    assert "pellucid rm org/m" in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(("name", "code"), [("smolm2", 4), ("org/nothing", 4), ("pypi:-x", 2), ("./nowhere.gguf", 4)])
def test_errors_are_one_line_and_a_code(
    fake_hub: FakeHub, capsys: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    got, out, err = pull(capsys, name)
    assert got == code
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_ctrl_c_leaves_no_model(fake_hub: FakeHub, store_home: Path) -> None:
    fake_hub.repos["org/m"] = Repo({"m-Q4_K_M.gguf": bytes(30_000_000)})
    fake_hub.stall_after = 12_000_000
    process = subprocess.Popen(
        [sys.executable, "-c", "from pellucid.cli import main; main()", "pull", "org/m"],
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not any(n > 10_000_000 for _, n in store.partials()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert store.entries() == []
    assert len(store.partials()) == 1
