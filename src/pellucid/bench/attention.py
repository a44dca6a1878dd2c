"""Textbook attention and the engine's side by side, over lengths: peak memory, time, and that they agree.

Law: each measurement is a process of its own (bench.heads), one at a time. A length whose N × N scores do not fit the
free memory is measured for the engine alone, and says so. What has been measured is in the list of rows at any moment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from pellucid.bench.heads import HeadShape, Side, Task, textbook_bytes
from pellucid.config import available_memory
from pellucid.errors import EngineError, RequestError

MOST_TOKENS = 1 << 17
MOST_HEADS = 1 << 10
SHARE = 0.8
"""Share of the free memory that a measurement may take."""


@dataclass(frozen=True)
class Run:
    """One of the two at one length."""

    seconds: tuple[float, ...]
    """Of each repetition."""
    peak: int
    """Bytes beyond the inputs."""

    @property
    def time(self) -> float:
        """The median."""
        return median(self.seconds)

    def as_dict(self) -> dict[str, object]:
        """All of it, for JSON."""
        return {"seconds": self.time, "values": self.seconds, "peak_bytes": self.peak}


@dataclass(frozen=True)
class Row:
    """Both at one length."""

    tokens: int
    paged: Run
    textbook: Run | None
    difference: float | None
    """The largest absolute difference of any value of the results."""
    note: str = ""
    """Why there is no textbook's."""

    def as_dict(self) -> dict[str, object]:
        """All of it, for JSON."""
        facts: dict[str, object] = {"tokens": self.tokens, "pellucid": self.paged.as_dict(), "textbook": None}
        if self.textbook is None:
            return facts | {"note": self.note}
        return facts | {
            "textbook": self.textbook.as_dict(),
            "speed_up": self.textbook.time / self.paged.time,
            "memory_ratio": self.textbook.peak / max(1, self.paged.peak),
            "max_difference": self.difference,
        }


def parse_shape(text: str) -> HeadShape:
    """HEADS,KV_HEADS,D_HEAD. Raises RequestError."""
    try:
        heads, kv_heads, d_head = (int(part) for part in text.split(","))
    except ValueError:
        raise RequestError(f"--shape {text}: give HEADS,KV_HEADS,D_HEAD, such as 9,3,64") from None
    shape = HeadShape(heads, kv_heads, d_head)
    if min(heads, kv_heads, d_head) < 1 or heads > MOST_HEADS or d_head > 512 or heads % kv_heads:
        raise RequestError(
            f"--shape {text}: HEADS (at most {MOST_HEADS}) must be a multiple of KV_HEADS, and D_HEAD lie in 1 to 512"
        )
    return shape


def measure(
    shape: HeadShape,
    lengths: tuple[int, ...],
    rows: list[Row],
    *,
    threads: int,
    kv: str,
    repeat: int,
    say: Callable[[str], None],
) -> None:
    """Append a row for every length; `say` hears what is being done.

    Raises:
        EngineError: the engine's own measurement failed.
    """
    with tempfile.TemporaryDirectory() as folder:

        def one(side: Side, tokens: int) -> Run:
            out = str(Path(folder) / f"{side}.npy")
            return _run(Task(side, shape.heads, shape.kv_heads, shape.d_head, tokens, threads, kv, repeat, out))

        for tokens in lengths:
            say(f"{tokens} tokens: pellucid")
            paged = one("paged", tokens)
            need = textbook_bytes(shape, tokens)
            if need > SHARE * available_memory():
                rows.append(Row(tokens, paged, None, None, f"its scores take {need / 1e9:.1f} GB, more than is free"))
                continue
            say(f"{tokens} tokens: textbook")
            try:
                written = one("textbook", tokens)
            except EngineError as error:
                rows.append(Row(tokens, paged, None, None, error.message))
                continue
            ours, theirs = (np.load(Path(folder) / f"{side}.npy") for side in ("paged", "textbook"))
            rows.append(Row(tokens, paged, written, float(np.abs(ours - theirs).max())))


def _run(task: Task) -> Run:
    """A process for the task. Its libraries use as many threads as the engine."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    path = os.pathsep.join(p for p in sys.path if p)
    env = os.environ | dict.fromkeys(names, str(task.threads)) | {"PYTHONPATH": path}
    command = [sys.executable, "-m", "pellucid.bench.heads", json.dumps(asdict(task))]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise EngineError(f"{task.side} attention over {task.tokens} tokens failed: {last}")
    answer = json.loads(done.stdout)
    return Run(tuple(answer["seconds"]), answer["peak"])
