"""A thousand clients killed in the midst of everything (python -m pytest -s tests/long/test_killed_clients.py)."""

from __future__ import annotations

from pathlib import Path

from killedclients import POINTS
from server.test_killed_clients import storm

CLIENTS = 1000


def test_a_thousand_killed_clients_leave_nothing_behind(smollm2_path: Path) -> None:
    ends, counts = storm(smollm2_path, 1_000_000, CLIENTS)
    print("\nkilled:", dict(ends), "\nmeanwhile:", counts)
    assert sum(ends.values()) == CLIENTS and ends.keys() == POINTS.keys()
    assert counts["sequences aborted"] > CLIENTS // 4
