"""Where the time of a step goes: by op of the plan and by layer, with the wait for other threads told apart.

Law: the native plan says how long each record ran on each thread and how long that thread then waited; the engine's
side is what lies before and after the native call. A time of the plan is the mean over the threads, so that running
and waiting add up to the walk. What adds up to less than the step is told as unaccounted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from pellucid.bench.session import Span
from pellucid.bench.work import NOTHING, PlanWork, Work
from pellucid.devices.base import Batch
from pellucid.devices.cpu import CpuDevice
from pellucid.devices.lower import Record

_BLOCK = re.compile(r"^blocks\.(\d+)\.")


@dataclass(frozen=True)
class Call:
    """One native call: when it began and ended (time.perf_counter), and the times of its records in nanoseconds."""

    began: float
    ended: float
    times: NDArray[np.int64]


class ProfiledDevice:
    """A Device that runs every step under the profile and keeps what it took."""

    def __init__(self, device: CpuDevice) -> None:
        self._device = device
        self.vocab_size, self.context, self.max_rows = device.vocab_size, device.context, device.max_rows
        self.page_size, self.page_count = device.page_size, device.page_count
        self.pool = device.pool
        self.calls: list[Call] = []

    def memory(self) -> dict[str, int]:
        """Bytes by part."""
        return self._device.memory()

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Compute one step."""
        began = time.perf_counter()
        logits, times = self._device.profile(batch)
        self.calls.append(Call(began, time.perf_counter(), times))
        return logits


@dataclass
class Line:
    """An op of the plan over all layers, or a layer over all ops; times in seconds, over all steps."""

    name: str
    kind: str = ""
    calls: int = 0
    run: float = 0.0
    """Mean over the threads."""
    slowest: float = 0.0
    """Of the slowest thread of each call."""
    wait: float = 0.0
    """At the barrier, mean over the threads."""
    work: Work = NOTHING

    def add(self, times: NDArray[np.int64], work: Work) -> None:
        """Count one call; times (threads, 2) in nanoseconds."""
        self.calls += 1
        self.run += float(times[:, 0].mean()) * 1e-9
        self.slowest += float(times[:, 0].max()) * 1e-9
        self.wait += float(times[:, 1].mean()) * 1e-9
        self.work += work

    @property
    def seconds(self) -> float:
        """Running and waiting."""
        return self.run + self.wait


@dataclass
class Profile:
    """Steps of one case under the profile; times in seconds, over all steps."""

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0
    """All of the steps, by the clock around them."""
    before: float = 0.0
    """The engine's: scheduling, the batch."""
    after: float = 0.0
    """The engine's: sampling, commit."""
    ops: dict[str, Line] = field(default_factory=dict[str, Line])
    layers: dict[str, Line] = field(default_factory=dict[str, Line])

    @property
    def run(self) -> float:
        """Time in ops."""
        return sum(line.run for line in self.ops.values())

    @property
    def wait(self) -> float:
        """Time at barriers."""
        return sum(line.wait for line in self.ops.values())

    @property
    def accounted(self) -> float:
        """Share of the steps' time that is told."""
        return (self.before + self.run + self.wait + self.after) / self.seconds

    def kinds(self) -> dict[str, Line]:
        """The ops added up by kind."""
        kinds: dict[str, Line] = {}
        for line in self.ops.values():
            total = kinds.setdefault(line.kind, Line(line.kind, line.kind))
            total.calls += line.calls
            total.run += line.run
            total.slowest += line.slowest
            total.wait += line.wait
            total.work += line.work
        return kinds

    def as_dict(self) -> dict[str, object]:
        """All of it, for JSON."""

        def told(line: Line) -> dict[str, object]:
            facts: dict[str, object] = asdict(line)
            if line.run:
                facts |= {"bytes_per_second": line.work.nbytes / line.run, "ops_per_second": line.work.ops / line.run}
            return facts

        return {
            "steps": self.steps,
            "rows": self.rows,
            "seconds": self.seconds,
            "before": self.before,
            "run": self.run,
            "wait": self.wait,
            "after": self.after,
            "accounted": self.accounted,
            "kinds": [told(line) for line in self.kinds().values()],
            "ops": [told(line) for line in self.ops.values()],
            "layers": [told(line) for line in self.layers.values()],
        }


def profile_of(work: PlanWork, spans: Sequence[Span], calls: Sequence[Call]) -> Profile:
    """Add up steps and their native calls, one for each step."""
    profile = Profile()
    labels = [(label(r), _layer(r)) for r in work.lowered.records]
    for span, call in zip(spans, calls, strict=True):
        profile.steps += 1
        profile.rows += span.rows.count
        profile.seconds += span.ended - span.began
        profile.before += call.began - span.began
        profile.after += span.ended - call.ended
        for index, record in enumerate(work.lowered.records):
            name, layer = labels[index]
            times, traffic = call.times[:, index], work.traffic(record, span.rows)
            profile.ops.setdefault(name, Line(name, record.kind)).add(times, traffic)
            profile.layers.setdefault(layer, Line(layer)).add(times, traffic)
    return profile


def label(record: Record) -> str:
    """Name of an op without its layer: a linear's weights, else what it makes."""
    if record.parts:
        names = [part.weight for part in record.parts]
    else:
        names = [v.name for v in record.writes()] or [v.name for v in record.reads]
    first, *others = (_BLOCK.sub("", name) for name in names)
    same = first.rpartition(".")[0] + "."
    return " ".join([first, *(o.removeprefix(same) for o in others if not o.endswith(".int8"))])


def _layer(record: Record) -> str:
    """Number of the record's layer, or "" outside of the layers."""
    names = [*(part.weight for part in record.parts), *(v.name for v in record.writes())]
    found = next((m[1] for name in names if (m := _BLOCK.match(name))), "")
    return str(record.layer) if record.layer >= 0 else found
