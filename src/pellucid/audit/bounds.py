"""What one request may cost: each bound is tried with a request that is just too large, and refused before it works."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from pellucid.audit.findings import Report, Severity
from pellucid.audit.target import WAITING, Answer, Target, fields, waits_for_head

SLOW = 15.0
"""Seconds that half a head may stand."""


def check_bounds(target: Target, report: Report, *, slow: bool) -> None:
    """Headers, bodies, nesting and counts are bounded; with `slow`, so is the time of a head, which takes a while."""
    if target.ask("/v1/models").status != 200:
        report.unchecked["bounds"] = "the server does not answer the audit's key"
        return
    text = {"prompt": "a", "max_tokens": 1}
    tried: list[tuple[str, Answer, tuple[int, ...], str]] = [
        ("headers of 1 MiB", target.ask("/health", headers={"X-Audit": "a" * (1 << 20)}), (0, 400, 431), "16 KiB"),
        ("a URL of 1 MiB", target.ask("/" + "a" * (1 << 20)), (0, 400, 414, 431), "16 KiB"),
        ("a body of 1 GiB", target.ask("/v1/completions", length=1 << 30, wait=2), (0, 413), "8 MiB"),
        ("JSON of 1,000 levels", _nested(target, 1000), (400,), "32 levels"),
        ("n = 100,000", target.ask("/v1/completions", text | {"n": 100_000}), (400,), "n 8"),
        ("100,000 prompts", target.ask("/v1/completions", text | {"prompt": ["a"] * 100_000}), (400,), "32 prompts"),
        ("2,000 stops", target.ask("/v1/completions", text | {"stop": ["zz"] * 2000}), (400,), "16 stops"),
        (
            "a grammar of 1 MiB",
            target.ask("/v1/completions", text | {"guided_regex": "a" * (1 << 20)}),
            (400,),
            "64 KiB",
        ),
    ]
    missing = [f"{what} ({_said(answer)})" for what, answer, refusals, _ in tried if answer.status not in refusals]
    if slow and waits_for_head(target, SLOW):
        missing.append(f"half a head stands open for more than {SLOW:.0f} s")
    elif not slow:
        report.unchecked["slow heads"] = "it takes 15 s; a full audit does it"
    if missing:
        report.add(
            "no-limit",
            Severity.HIGH,
            "not refused: " + ", ".join(missing),
            "serve with Pellucid's own limits: do not raise those of `Limits`, or take away what stands before them",
        )
    else:
        report.passed.append("bounded: " + ", ".join(bound for *_, bound in tried) + (", 10 s a head" if slow else ""))


def check_capacity(target: Target, report: Report) -> None:
    """The largest request that is admitted, held against the pages and places that there are."""
    card = _first(fields(target.ask("/v1/models").json()).get("data"))
    context = card.get("max_model_len")
    cache = _labels(target.ask("/metrics").body.decode("utf-8", "replace"), "pellucid:cache_config_info")
    if not isinstance(context, int) or not cache:
        report.unchecked["capacity"] = "the server does not tell its context and its cache to this key"
        return
    pages, page = int(cache["num_gpu_blocks"]), int(cache["block_size"])
    tokens = pages * page
    # Places are asked for before lengths are looked at, so what is too long by a token costs nothing.
    wide = target.ask("/v1/completions", {"prompt": ["a"] * 32, "n": 8, "max_tokens": context})
    answers = 256 if wide.status == 400 else 1
    wanted = answers * context
    said = f"one request may ask for {answers} answers of {context} tokens: {wanted / tokens:.1f} times the KV cache"
    if context > tokens:
        report.add(
            "over-capacity",
            Severity.MEDIUM,
            f"a sequence may have {context} tokens and the KV cache holds {tokens}",
            f"serve with --kv-pages {-(-context // page)} or more, or with --ctx {tokens} or less",
        )
    elif wanted > 4 * tokens:
        report.add(
            "over-capacity",
            Severity.INFO,
            said + "; it waits its turn among others, and ends at the deadline",
            "where tenants share the server give each a key of its own: the queue is shared alike among them",
        )
    else:
        report.passed.append(said)


def _nested(target: Target, levels: int) -> Answer:
    body = b'{"prompt": ' + b"[" * levels + b"]" * levels + b"}"
    return target.ask("/v1/completions", raw_body=body)


def _said(answer: Answer) -> str:
    return "it waits for more" if answer.status == WAITING else f"answered {answer.status}"


def _first(value: Any) -> dict[str, Any]:
    return fields(value[0]) if isinstance(value, list) and value else {}


def _labels(text: str, name: str) -> dict[str, str]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                return dict(sample.labels)
    return {}
