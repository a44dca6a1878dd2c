"""The promises: what each says, how much of it is tried, and what measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import files
import life
import load

Measure = Callable[[int], tuple[str, bool]]
"""From how many to try to the figure, and whether the promise is kept."""


@dataclass(frozen=True)
class Promise:
    """One row of the table."""

    what: str
    due: str
    count: int = 1
    """How many the promise speaks of."""
    measure: Measure | None = None
    """None: nothing measures it yet."""


PROMISES: dict[str, Promise] = {
    "files": Promise(
        "mutated model files", "10,000: no crash, no hang over 2 s, memory ≤ 2 × file + 64 MiB", 10_000, files.mutations
    ),
    "api": Promise("API fuzz (schemathesis, hypothesis)", "50,000: no 5xx, the next request right", 50_000, load.api),
    "raw": Promise("raw HTTP streams", "20,000: no connection wedged", 20_000, load.raw),
    "poison": Promise("poison request", "1 bad and 63 good: 63 as alone", 10, load.poison),
    "determinism": Promise(
        "determinism (join, abort, preempt, reorder; greedy and seeded)",
        "1,000 mixed batches: no token differs",
        1000,
        load.determinism,
    ),
    "bombs": Promise("grammar, regex, template", "settled or refused ≤ 2 s", 1, files.bombs),
    "tenants": Promise("tenant isolation", "10,000 probes: no reuse; hit/miss AUC 0.45–0.55"),
    "pages": Promise("KV leak", "100,000 requests, 30 % aborted: no page held", 100_000, load.pages),
    "memory": Promise("memory", "slope ≤ 1 MiB an hour after warm-up", 3600, life.memory),
    "disconnect": Promise("disconnect", "pages free ≤ 200 ms or one step", 200, life.disconnect),
    "overload": Promise("overload × 10", "429 in ≤ 50 ms p99; accepted inter-token p99 ≤ 1.5 ×", 60, life.overload),
    "sigterm": Promise("SIGTERM", "ready → 503 ≤ 100 ms; work inside the grace time finishes", 20, life.sigterm),
    "stalled": Promise("stalled engine", "not ready ≤ 5 s", 3, life.stalled),
    "sanitizers": Promise("sanitizers (ASan, UBSan, TSan on the core)", "no report", 1, files.sanitizers),
    "auth": Promise("auth", "every route × {none, wrong}: refused; the key: let in", 1, load.auth),
    "logs": Promise("logs", "10,000 seeded secrets: none in logs, metrics, errors", 10_000, load.logs),
    "pii": Promise("PII redaction", "≥ 99 % recall on structured types; ≤ 1 ms/KiB"),
}
