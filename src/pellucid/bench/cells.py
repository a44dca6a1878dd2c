"""What is measured, and what came of it.

Law: a cell keeps every repetition; medians, spread and shares are computed from these when they are asked for. A share
is the median rate over the rate of the roofline at the median of the peaks that were measured between repetitions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Literal

from pellucid.bench.peaks import Peaks
from pellucid.bench.profile import Profile
from pellucid.bench.work import NOTHING, Work

Kind = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Case:
    """One thing to measure."""

    kind: Kind
    threads: int
    kv: str
    tokens: int
    """Of the prompt, or decoded by each stream."""
    depth: int = 0
    """Tokens of context that each stream has when it begins."""
    streams: int = 1

    def __str__(self) -> str:
        if self.kind == "prefill":
            what = f"prefill {self.tokens}"
        else:
            what = f"decode {self.tokens}, {self.streams} streams, depth {self.depth}"
        return f"{what}, {self.threads} threads, kv {self.kv}"


@dataclass(frozen=True)
class Settings:
    """All that is to be measured: every prompt size, and every depth with every number of streams, for every number
    of threads and every format of the KV cache."""

    prompts: tuple[int, ...] = (512,)
    depths: tuple[int, ...] = (0,)
    streams: tuple[int, ...] = (1, 16)
    threads: tuple[int, ...] = (1,)
    kv: tuple[str, ...] = ("f16",)
    generate: int = 128
    """Tokens that each stream decodes in one repetition."""
    repeat: int = 5
    warmup: int = 1
    ctx: int | None = None
    """Longest sequence in tokens; None: as long as the cases take."""
    pin: bool = False
    """Keep each thread on a core of its own."""

    def cases(self, threads: int, kv: str) -> list[Case]:
        """The cases of one device."""
        prefill = [Case("prefill", threads, kv, n) for n in self.prompts]
        decode = [Case("decode", threads, kv, self.generate, d, s) for d in self.depths for s in self.streams]
        return prefill + decode


@dataclass
class Cell:
    """A case and its repetitions."""

    case: Case
    work: Work = NOTHING
    """The demand of one repetition (bench.work)."""
    seconds: list[float] = field(default_factory=list[float])
    """Of each repetition."""
    peaks: list[Peaks] = field(default_factory=list[Peaks])
    """Measured before each repetition."""
    profile: Profile | None = None

    @property
    def total(self) -> int:
        """Tokens of one repetition, all streams together."""
        return self.case.tokens * self.case.streams

    @property
    def rates(self) -> list[float]:
        """Tokens a second of each repetition."""
        return [self.total / s for s in self.seconds]

    @property
    def rate(self) -> float:
        """The median rate."""
        return median(self.rates)

    @property
    def spread(self) -> float:
        """Half the distance of the fastest and the slowest repetition, as a share of the median."""
        return (max(self.rates) - min(self.rates)) / 2 / self.rate

    @property
    def peak(self) -> Peaks:
        """The median of the peaks."""
        return Peaks.median(self.peaks)

    @property
    def roofline(self) -> float:
        """Tokens a second at the peaks."""
        return self.total / self.work.seconds(self.peak)

    @property
    def share(self) -> float:
        """The median rate as a share of the roofline."""
        return self.rate / self.roofline

    def as_dict(self) -> dict[str, object]:
        """All of it, for JSON."""
        peak = self.peak
        return {
            **asdict(self.case),
            "repeat": len(self.seconds),
            "tokens_per_second": {
                "median": self.rate,
                "low": min(self.rates),
                "high": max(self.rates),
                "spread": self.spread,
                "values": self.rates,
            },
            "work": {"bytes": self.work.nbytes, "ops": self.work.ops},
            "peaks": {
                "bytes_per_second": peak.bandwidth,
                "int8_ops_per_second": peak.int8,
                "tile_ops_per_second": peak.tiles,
            },
            "roofline": {"tokens_per_second": self.roofline, "bound": self.work.bound(peak)},
            "share": self.share,
            **({} if self.profile is None else {"profile": self.profile.as_dict()}),
        }
