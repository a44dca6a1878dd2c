"""The names of the host events that may be watched.

Law: a name here is emitted somewhere; what it carries is written beside it.
"""

from __future__ import annotations

POINTS: dict[str, str] = {
    "arrive": "a sequence came and waits for a place: seq",
    "admit": "a sequence got a place: seq, cached (tokens from the prefix cache), waited (seconds)",
    "preempt": "a sequence gave its pages back to an older one: seq, computed (tokens it has to compute again)",
    "schedule": "the rows of a step: step (number), rows [(seq id, position, rows)], running, waiting, pages_used",
    "step": "a step ended: record (an engine.steps.StepRecord), work (the engine.batch.Work of each sequence)",
    "sample": "one token was drawn: seq, position, trace (a sampling.chain.Trace, stage by stage)",
    "finish": "a sequence ended: seq, reason",
}
"""Point to what its frames carry."""
