"""What a server's /metrics says, and what two readings of it say about the time between them.

Law: counters give rates, histograms give quantiles of what happened between the readings; nothing is kept on the
server for it. A value that the server does not state is None, never 0.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from pellucid.cli.remote import Remote, reason
from pellucid.errors import UnreachableError

PREFIX = "pellucid:"
QUANTILES = (0.5, 0.95, 0.99)
LATENCIES = {
    "first_token": "time_to_first_token_seconds",
    "inter_token": "inter_token_latency_seconds",
    "request": "e2e_request_latency_seconds",
    "queue": "request_queue_time_seconds",
}
"""What top calls a latency → the histogram's name."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Reading:
    """All samples of one moment."""

    at: float
    """time.monotonic() when they were read."""
    samples: Mapping[str, Mapping[Labels, float]]
    ready: bool = True
    why: str = ""
    """What keeps the server from being ready."""

    def total(self, name: str) -> float | None:
        """Sum over all labels; None: there is no such metric."""
        found = self.samples.get(name)
        return None if found is None else sum(found.values())

    def by(self, name: str, label: str) -> dict[str, float]:
        """Label's value → sum."""
        sums: dict[str, float] = {}
        for labels, value in self.samples.get(name, {}).items():
            key = dict(labels).get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums

    def labels(self, name: str) -> dict[str, str]:
        """The labels of the only sample of an info metric."""
        for labels in self.samples.get(name, {}):
            return dict(labels)
        return {}


class Source(Remote):
    """A server whose metrics are read."""

    def read(self) -> Reading:
        """Ask now.

        Raises:
            UnreachableError: nobody answers, or it is another server that does.
            ConfigError: the key is missing or wrong.
        """
        metrics, ready = self.get("/metrics"), self.get("/ready")
        if metrics.status_code != 200:
            raise UnreachableError(f"{self.url}/metrics answers HTTP {metrics.status_code}; is it a Pellucid server?")
        why = "" if ready.status_code == 200 else reason(ready)[0].removeprefix("Not ready: ")
        samples = parse(metrics.text, self.url)
        return Reading(time.monotonic(), samples, ready.status_code == 200, why)


def parse(text: str, where: str) -> dict[str, dict[Labels, float]]:
    """Sample name → labels → value. Raises UnreachableError for text that is not Prometheus's."""
    samples: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                samples.setdefault(sample.name, {})[labels] = sample.value
    except ValueError as error:
        raise UnreachableError(f"{where}/metrics is not in Prometheus's format: {error}") from None
    return samples


@dataclass(frozen=True)
class Figures:
    """The state now, and rates and quantiles since the reading before. Times in seconds, memory in bytes."""

    ready: bool
    why: str
    model: str | None
    version: str | None
    isa: str | None
    threads: int | None
    uptime: float | None
    running: float | None
    waiting: float | None
    kv_usage: float | None
    """Share of the pages, 0 to 1."""
    kv_pages: int | None
    kv_format: str | None
    tokens_per_second: float | None
    """Generated."""
    prompt_tokens_per_second: float | None
    steps_per_second: float | None
    tokens_per_step: float | None
    cache_hit_rate: float | None
    """Share of the prompt tokens that were found in the prefix cache."""
    preemptions: float | None
    """Since the server started."""
    finished: dict[str, float]
    """Since the server started, by reason."""
    rejected: dict[str, float]
    """Since the server started, by code."""
    latency: dict[str, list[float | None]]
    """Name of LATENCIES → its QUANTILES over the last `seconds`."""
    seconds: float
    cpu: float | None
    """Cores in use."""
    memory: float | None
    """Resident bytes of the process."""
    parts: dict[str, float]
    """Bytes the engine holds, by part."""
    bandwidth: float | None
    """Bytes of weights passed over in a second: steps times the weights."""


def figures(before: Reading, now: Reading, earlier: Reading | None = None) -> Figures:
    """What `now` says, rates since `before`, and latencies since `earlier` (None: since `before` too)."""
    earlier = earlier or before
    seconds = max(1e-9, now.at - before.at)

    def change(name: str) -> float | None:
        new, old = now.total(name), before.total(name)
        # A server that was restarted begins at 0 again.
        return None if new is None or old is None else new if new < old else new - old

    def rate(name: str) -> float | None:
        grown = change(name)
        return None if grown is None else grown / seconds

    def ratio(part: str, whole: str) -> float | None:
        a, b = change(part), change(whole)
        return None if a is None or not b else a / b

    info, cache = now.labels(PREFIX + "server_info"), now.labels(PREFIX + "cache_config_info")
    steps = rate(PREFIX + "engine_steps_total")
    parts = now.by(PREFIX + "memory_bytes", "part")
    started = now.total("process_start_time_seconds")
    threads, pages = info.get("threads", ""), cache.get("num_gpu_blocks", "")
    return Figures(
        ready=now.ready,
        why=now.why,
        model=info.get("model_name"),
        version=info.get("version"),
        isa=info.get("isa"),
        threads=int(threads) if threads.isdigit() else None,
        uptime=None if started is None else max(0.0, time.time() - started),
        running=now.total(PREFIX + "num_requests_running"),
        waiting=now.total(PREFIX + "num_requests_waiting"),
        kv_usage=now.total(PREFIX + "kv_cache_usage_perc"),
        kv_pages=int(pages) if pages.isdigit() else None,
        kv_format=cache.get("cache_dtype"),
        tokens_per_second=rate(PREFIX + "generation_tokens_total"),
        prompt_tokens_per_second=rate(PREFIX + "prompt_tokens_total"),
        steps_per_second=steps,
        tokens_per_step=ratio(PREFIX + "engine_step_tokens_total", PREFIX + "engine_steps_total"),
        cache_hit_rate=ratio(PREFIX + "prefix_cache_hits_total", PREFIX + "prefix_cache_queries_total"),
        preemptions=now.total(PREFIX + "num_preemptions_total"),
        finished=now.by(PREFIX + "request_success_total", "finished_reason"),
        rejected=now.by(PREFIX + "admission_rejections_total", "code"),
        latency={name: _quantiles(earlier, now, PREFIX + metric) for name, metric in LATENCIES.items()},
        seconds=now.at - earlier.at,
        cpu=rate("process_cpu_seconds_total"),
        memory=now.total("process_resident_memory_bytes"),
        parts=parts,
        bandwidth=None if steps is None or "weights" not in parts else steps * parts["weights"],
    )


def _quantiles(before: Reading, now: Reading, name: str) -> list[float | None]:
    """QUANTILES of what a histogram gained, by linear interpolation inside a bucket."""
    old = _buckets(before, name)
    gained = [(edge, count - old.get(edge, 0.0)) for edge, count in sorted(_buckets(now, name).items())]
    if any(count < 0 for _, count in gained):  # restarted
        gained = sorted(_buckets(now, name).items())
    total = gained[-1][1] if gained else 0.0
    return [quantile(gained, q) if total > 0 else None for q in QUANTILES]


def _buckets(reading: Reading, name: str) -> dict[float, float]:
    """Upper edge → how many lie at or below it."""
    return {float(edge): count for edge, count in reading.by(name + "_bucket", "le").items() if edge}


def quantile(cumulative: list[tuple[float, float]], q: float) -> float:
    """Quantile `q` of a histogram of (upper edge, count at or below), as Prometheus's histogram_quantile has it."""
    rank = q * cumulative[-1][1]
    low_edge, low_count = 0.0, 0.0
    for edge, count in cumulative:
        if count >= rank and count > low_count:
            if math.isinf(edge):
                return low_edge
            return low_edge + (edge - low_edge) * (rank - low_count) / (count - low_count)
        low_edge, low_count = edge, count
    return low_edge
