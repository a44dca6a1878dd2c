"""Figures of many requests, as one writes them down."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from connection import Seen


def percentile(values: Sequence[float], part: float) -> float:
    """In milliseconds; nan of nothing."""
    return float(np.percentile(values, part)) * 1e3 if values else float("nan")


def summary(found: Sequence[Seen], seconds: float) -> dict[str, Any]:
    """Tokens a second and latencies of what was answered with 200. Raises if one of these has a fault."""
    good = [seen for seen in found if seen.status == 200]
    faults = [seen.fault for seen in good if seen.fault or seen.usage is None]
    if faults:
        raise RuntimeError(f"{len(faults)} answers failed: {faults[0] or 'without usage'}")
    tokens = sum(seen.usage["completion_tokens"] for seen in good if seen.usage)
    prompt = sum(seen.usage["prompt_tokens"] for seen in good if seen.usage)
    first = [seen.ttft for seen in good if seen.tokens]
    gaps = [gap for seen in good for gap in seen.gaps]
    return {
        "requests": len(good),
        "tokens": tokens,
        "prompt_tokens": prompt,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        "total_tokens_per_second": round((tokens + prompt) / seconds, 1),
        "ttft_ms": {"p50": round(percentile(first, 50), 2), "p99": round(percentile(first, 99), 2)},
        "itl_ms": {"p50": round(percentile(gaps, 50), 2), "p99": round(percentile(gaps, 99), 2)},
    }


def middle(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over rounds, figure by figure."""
    first = rounds[0]
    return {
        key: middle([one[key] for one in rounds]) if isinstance(first[key], dict) else median(r[key] for r in rounds)
        for key in first
    }


def line(name: str, figures: dict[str, Any]) -> str:
    """One row of the table that is printed."""
    ttft, itl = figures["ttft_ms"], figures["itl_ms"]
    return (
        f"{name:24} {figures['tokens_per_second']:9.1f} tok/s   TTFT {ttft['p50']:8.1f} / {ttft['p99']:8.1f} ms"
        f"   ITL {itl['p50']:6.1f} / {itl['p99']:6.1f} ms"
    )
