"""Threads that keep to a core of their own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from devices.models import RandomModel, run_all, spec
from pellucid import _core
from pellucid.devices.affinity import own_processors
from pellucid.errors import ConfigError

OURS = sorted(os.sched_getaffinity(0))


def topology(root: Path, siblings: list[str]) -> Path:
    for cpu, text in enumerate(siblings):
        (root / f"cpu{cpu}/topology").mkdir(parents=True)
        (root / f"cpu{cpu}/topology/thread_siblings_list").write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("siblings", "order"),
    [
        (["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"], [0, 1, 2, 3, 4, 5, 6, 7]),
        (["0-1", "0-1", "2-3", "2-3"], [0, 2, 1, 3]),
        ([], [0, 1, 2]),
    ],
)
def test_each_core_gets_one_thread_before_any_gets_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, siblings: list[str], order: list[int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(order))
    for threads in range(1, len(order) + 1):
        assert own_processors(threads, topology(tmp_path / str(threads), siblings)) == order[:threads]


def test_no_processor_that_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 3})
    assert own_processors(3, topology(tmp_path, ["0-1", "0-1", "2-3", "2-3"])) == [1, 2, 3]
    with pytest.raises(ConfigError, match="for each of 4 threads, and this process may run on 3; give --threads 3"):
        own_processors(4, tmp_path)


def test_a_pool_takes_a_processor_a_thread() -> None:
    with pytest.raises(ValueError, match="for each of its threads"):
        _core.Pool(2, [0])
    with pytest.raises(ValueError, match="one thread at least"):
        _core.Pool(0)


@pytest.mark.skipif(len(OURS) < 2, reason="one processor: nowhere else to be put")
def test_pinned_it_gives_the_same_bits_and_gives_the_caller_back() -> None:
    """The workers keep to their processors; the thread that calls is only lent, and may run anywhere afterwards."""
    model, tokens, tasks = RandomModel(spec(), "q8_0"), list(range(40)), Path("/proc/self/task")
    free = run_all(model.device(threads=2), tokens, [0, 1, 2])
    before = set(tasks.iterdir())
    device = model.device(threads=2, pin=True)
    assert np.array_equal(run_all(device, tokens, [0, 1, 2]), free)
    masks = [os.sched_getaffinity(int(task.name)) for task in set(tasks.iterdir()) - before]
    assert {own_processors(2)[1]} in masks
    assert os.sched_getaffinity(0) == set(OURS)


def test_a_processor_that_was_taken_away_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control group may shrink after we looked."""
    monkeypatch.setattr("pellucid.devices.cpu.own_processors", lambda threads: [1000, 1001])
    model = RandomModel(spec(), "q8_0")
    assert run_all(model.device(threads=2, pin=True), [1, 2, 3], [0]).shape[0] == 3
    assert os.sched_getaffinity(0) == set(OURS)
