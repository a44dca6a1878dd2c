"""Which processor each thread of a pinned pool keeps to.

Law: only those this process may run on, and one thread of each core before the second of any.
"""

from __future__ import annotations

import os
from pathlib import Path

from pellucid.errors import ConfigError

TOPOLOGY = Path("/sys/devices/system/cpu")


def own_processors(threads: int, topology: Path = TOPOLOGY) -> list[int]:
    """Return the numbers of as many processors as there are threads.

    Raises ConfigError: there are not so many, or this system pins no threads.
    """
    if not hasattr(os, "sched_getaffinity"):
        raise ConfigError("this system cannot pin threads to processors; leave out --pin", param="pin")
    ours = sorted(os.sched_getaffinity(0))
    if threads > len(ours):
        raise ConfigError(
            f"--pin needs a processor for each of {threads} threads, and this process may run on {len(ours)}; "
            f"give --threads {len(ours)} or leave out --pin",
            param="pin",
        )
    return sorted(ours, key=lambda cpu: (_rank(cpu, ours, topology), cpu))[:threads]


def _rank(cpu: int, ours: list[int], topology: Path) -> int:
    """How many of our processors share the core of this one and come before it."""
    try:
        text = (topology / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:  # not told, as in some containers
        return 0
    siblings: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        siblings.update(range(int(first), int(last or first) + 1))
    return sum(other < cpu for other in siblings.intersection(ours))
