"""What became of one request, and why it took so long: its record and the lives of its sequences, joined.

Law: only what was written down is told, and what is not known any more is null. Text and ids of tokens are told only if
the client of that very request let them be seen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pellucid.engine.lives import Gap, Life, Lives, quantiles
from pellucid.probes.wire import plain
from pellucid.server.records import Ended, Record
from pellucid.text.tokenizer import Tokenizer

MOST_MATES = 16


def line(record: Record) -> dict[str, Any]:
    """One request of a list."""
    first, closed = record.first_token_at, record.closed_at
    return {
        "id": record.id,
        "request_id": record.request_id,
        "route": record.route,
        "state": "running" if closed is None else "ended",
        "received": record.received,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.answer_tokens,
        "cached_tokens": record.cached_tokens,
        "first_token_seconds": None if first is None else first - record.began,
        "seconds": (time.monotonic() if closed is None else closed) - record.began,
        "finish_reason": record.finish_reason or None,
    }


def autopsy(record: Record, lives: Lives, tokenizer: Tokenizer, *, redact: bool = False) -> dict[str, Any]:
    """All that is known of a request. `redact`: leave text and ids out, whatever its client said."""
    own = [lives.get(id) for id in record.seq_ids]
    others = lives.all()
    shown = record.shown and not redact
    known = [life for life in own if life is not None]
    ended = {choice.seq_id: choice for choice in record.choices}
    queued = min((life.queued_at for life in known), default=None)
    return line(record) | {
        "stream": record.stream,
        "shown": shown,
        "stages": {
            "receive": None if queued is None else queued - record.began,
            "answer": _between(queued, record.finished_at),
            "emit": _between(record.finished_at, record.closed_at),
        },
        "tools": list(record.tools) if shown else len(record.tools),
        "parser": [_parsed(plain(event), shown) for event in record.events],
        "prompt": _pieces(known[0].tokens[: known[0].prompt_len], tokenizer) if shown and known else None,
        "choices": [
            _choice(id, life, ended.get(id), others, tokenizer if shown else None)
            for id, life in zip(record.seq_ids, own, strict=True)
        ],
    }


def _choice(
    id: str, life: Life | None, ended: Ended | None, others: Sequence[Life], tokenizer: Tokenizer | None
) -> dict[str, Any]:
    stop = None if ended is None else ended.stop_reason
    told: dict[str, Any] = {
        "id": id,
        "finish_reason": None if ended is None else ended.finish_reason or None,
        "stop": stop if tokenizer is not None or not isinstance(stop, str) else f"a string of {len(stop)} characters",
        "completion_tokens": None if ended is None else ended.tokens,
        "known": life is not None,
    }
    if life is None:
        return told
    end = life.finished_at
    mates = [
        other.id
        for other in others
        if other.id != life.id and _together(life, other) and (other.finished_at is None or other.steps)
    ]
    return told | {
        "prompt_tokens": life.prompt_len,
        "stages": {
            "queue": _between(life.queued_at, life.scheduled_at),
            "prefill": _between(life.scheduled_at, life.first_token_at),
            "decode": _between(life.first_token_at, end),
        },
        "queue": {
            "running": life.ahead_running,
            "waiting": life.ahead_waiting,
            "held_by": list(life.holders),
            "priority": life.priority,
            "seconds": life.waits,
        },
        "cache": _cache(life, tokenizer),
        "preemptions": [{"after": at - life.queued_at, "tokens": computed} for at, computed in life.preempted],
        "steps": life.steps,
        "rows": life.rows,
        "rows_again": life.again,
        "step_seconds": life.seconds,
        "mates": {
            "mean": life.mates / life.steps if life.steps else 0.0,
            "count": len(mates),
            "ids": mates[-MOST_MATES:],
        },
        "gaps": quantiles(life.gaps) | {"worst": [_gap(gap, life.id) for gap in sorted(life.worst, reverse=True)]},
        "output": None if tokenizer is None else _pieces(life.tokens[life.prompt_len :], tokenizer),
    }


def _cache(life: Life, tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    story = life.cache
    if story is None:
        return None
    told = plain(story)
    at = story.diverged_at
    if tokenizer is not None and at is not None and at < len(life.tokens):
        told["diverged_token"] = _pieces(life.tokens[at : at + 1], tokenizer)[0]
    told["why"] = _why(life)
    return told


def _why(life: Life) -> str:
    """The largest cause of what was not cached, in a sentence."""
    story = life.cache
    if story is None or story.cached >= story.could:
        return "all that could be cached was"
    causes = {
        "its pages had been given to others": story.evicted,
        "it was computed for another tenant, and tenants share nothing": story.other_tenant,
        "logprobs or the mean of the prompt were asked for, or there is no prefix cache": story.not_looked_up,
        "nobody had computed it lately": story.new,
    }
    cause, tokens = max(causes.items(), key=lambda pair: pair[1])
    where = ""
    if tokens == story.new and story.diverged_at is not None:
        where = f": the nearest prompt differs at token {story.diverged_at}"
    return f"{tokens} tokens were computed because {cause}{where}"


def _gap(gap: Gap, own: str) -> dict[str, Any]:
    steps = [plain(step) for step in gap.steps]
    return {"token": gap.token, "seconds": gap.seconds, "cause": cause_of(gap, own), "steps": steps}


def cause_of(gap: Gap, own: str) -> str:
    """What made a token late: preempted, prefill (of whom), between_steps, sampling, or decode: the step as it is."""
    if gap.preempted:
        return "preempted"
    if not gap.steps:
        return "unknown"
    busy = sum(step.seconds for step in gap.steps)
    if busy < gap.seconds / 2:
        return "between_steps"
    worst = max(gap.steps, key=lambda step: step.seconds)
    if worst.prefill_rows > worst.decode_rows and worst.largest != own:
        return f"prefill of {worst.largest_rows} tokens for {worst.largest}"
    if worst.parts.run < worst.seconds / 2:
        return "sampling"
    return "decode"


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)


def _together(one: Life, other: Life) -> bool:
    """Whether two sequences had their places at the same time."""
    if one.scheduled_at is None or other.scheduled_at is None:
        return False
    return other.scheduled_at <= (one.finished_at or float("inf")) and one.scheduled_at <= (
        other.finished_at or float("inf")
    )


def _parsed(event: dict[str, Any], shown: bool) -> dict[str, Any]:
    return event if shown else event | {"name": ""}


def _pieces(ids: Sequence[int], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    return [
        {"id": id, "text": tokenizer.token_bytes(id).decode("utf-8", "replace") if id < tokenizer.vocab_size else ""}
        for id in ids
    ]
