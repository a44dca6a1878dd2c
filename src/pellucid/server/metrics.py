"""Numbers for Prometheus, under vLLM's names with the prefix `pellucid:`, so that dashboards carry over.

Law: what the engine counts is read when someone asks; only what has a distribution is recorded as it happens, on the
asyncio side. No label holds anything that a client sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pellucid import __version__
from pellucid._core import isa

if TYPE_CHECKING:
    from pellucid.engine.engine import Engine
    from pellucid.server.choices import Choice

PREFIX = "pellucid:"
_FAST = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)
_SLOW = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 600.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Metrics:
    """The numbers of one server."""

    def __init__(self, model: str, engine: Engine) -> None:
        """Begin to count, for a model of that name; `engine` is asked for its own counts when someone reads."""
        self._registry = CollectorRegistry()
        self._model = model

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(PREFIX + name, text, ["model_name"], buckets=buckets, registry=self._registry)
            return family.labels(model)

        self._first_token = histogram(
            "time_to_first_token_seconds", "From the request to the first token of an answer.", _SLOW
        )
        self._between = histogram("inter_token_latency_seconds", "Between two tokens of an answer.", _FAST)
        self._whole = histogram("e2e_request_latency_seconds", "From the request to the end of an answer.", _SLOW)
        self._queue = histogram("request_queue_time_seconds", "From the request to the first step.", _SLOW)
        self._prefill = histogram("request_prefill_time_seconds", "From the first step to the first token.", _SLOW)
        self._decode = histogram("request_decode_time_seconds", "From the first token to the end.", _SLOW)
        self._prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._answer = histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self._ended = Counter(
            PREFIX + "request_success",
            "Answers that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._rejected = Counter(
            PREFIX + "admission_rejections",
            "Requests that were turned away, by the code of the error.",
            ["model_name", "code"],
            registry=self._registry,
        )
        self._hidden = Counter(
            PREFIX + "pii_hidden",
            "Values of personal data in requests for which a placeholder stood, by kind.",
            ["model_name", "kind"],
            registry=self._registry,
        )
        for reason in ("stop", "length", "abort", "error"):
            self._ended.labels(model, reason)
        self._registry.register(_EngineCounts(engine, model))
        ProcessCollector(registry=self._registry)  # CPU time, memory, start, open files; Linux only

    def token(self, choice: Choice, started: float, now: float) -> None:
        """Record that a token of a choice came; times are of time.monotonic()."""
        if choice.last_token_at is None:
            self._first_token.observe(now - started)
        else:
            self._between.observe(now - choice.last_token_at)
        choice.last_token_at = now

    def finished(self, choice: Choice, reason: str, started: float, now: float) -> None:
        """Record that a choice ended."""
        seq = choice.seq
        self._ended.labels(self._model, reason).inc()
        self._whole.observe(now - started)
        self._prompt.observe(seq.prompt_len)
        self._answer.observe(choice.generated)
        if seq.scheduled_at is not None:
            self._queue.observe(max(0.0, seq.scheduled_at - seq.queued_at))
            if seq.first_token_at is not None:
                self._prefill.observe(max(0.0, seq.first_token_at - seq.scheduled_at))
                self._decode.observe(max(0.0, now - seq.first_token_at))

    def rejected(self, code: str) -> None:
        """Record that a request was turned away."""
        self._rejected.labels(self._model, code).inc()

    def hidden(self, counts: Mapping[str, int]) -> None:
        """Record how many values of each kind of personal data a request held."""
        for kind, count in counts.items():
            self._hidden.labels(self._model, kind).inc(count)

    def render(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self._registry)


class _EngineCounts(Collector):
    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model

    def describe(self) -> Iterator[Metric]:
        """Name nothing beforehand: registering must not read the engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Read the engine's counts."""
        stats = self._engine.stats
        total = max(1, stats.pages_total)
        yield self._gauge("num_requests_running", "Sequences that run.", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences that wait.", stats.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV pages in use; 1 is all.", stats.pages_used / total)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits)
        yield self._counter("num_preemptions", "Sequences that were preempted.", stats.preemptions)
        yield self._counter("prompt_tokens", "Tokens of prompts.", stats.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens generated.", stats.generated_tokens)
        yield self._counter("engine_steps", "Steps of the engine.", stats.steps)
        yield self._counter("engine_step_tokens", "Rows over all steps: tokens computed.", stats.step_rows)
        sizes = HistogramMetricFamily(PREFIX + "iteration_tokens_total", "Rows of a step.", labels=["model_name"])
        sums = [sum(stats.step_sizes[: k + 1]) for k in range(len(stats.step_sizes))]
        buckets = [(str(float(1 << k)), count) for k, count in enumerate(sums)]
        sizes.add_metric([self._model], [*buckets, ("+Inf", sums[-1])], stats.step_rows)
        yield sizes
        memory = GaugeMetricFamily(PREFIX + "memory_bytes", "Memory the engine holds, by part.", labels=["part"])
        for part, nbytes in self._engine.device.memory().items():
            memory.add_metric([part], nbytes)
        yield memory
        config = self._engine.config
        labels = {
            "block_size": str(config.page_size),
            "num_gpu_blocks": str(stats.pages_total),
            "cache_dtype": config.kv,
            "enable_prefix_caching": str(config.prefix_cache),
        }
        info = GaugeMetricFamily(PREFIX + "cache_config_info", "Geometry of the KV cache.", labels=list(labels))
        info.add_metric(list(labels.values()), 1.0)
        yield info
        labels = {"model_name": self._model, "version": __version__, "threads": str(config.threads), "isa": isa()}
        about = GaugeMetricFamily(PREFIX + "server_info", "What serves.", labels=list(labels))
        about.add_metric(list(labels.values()), 1.0)
        yield about

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family
