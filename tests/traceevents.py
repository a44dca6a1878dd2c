"""A strict reader of Chrome's trace-event JSON, by the format's own rules ("Trace Event Format", Duca and Sinclair).

Law: what a viewer would drop, guess at or move is an error here: unknown phases, times that are no numbers, slices of
one track that overlap without one holding the other (in whole nanoseconds, as Perfetto keeps them), arrows with one
end or with an end outside every slice, counters without numbers, tracks without a name.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from typing import Any

PHASES = set("BEXisntfbeNODPvVRcCM")
NAMES = {"process_name", "thread_name"}
SORTS = {"process_sort_index", "thread_sort_index"}


def read(text: str) -> list[dict[str, Any]]:
    """The events of a document. Raises AssertionError: it breaks a rule."""

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    document = json.loads(text, parse_constant=no_constant)
    assert isinstance(document, dict) and document.get("displayTimeUnit", "ms") in ("ms", "ns")
    events = document["traceEvents"]
    assert isinstance(events, list) and events
    for event in events:
        _event(event)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xistf"}
    assert used <= named, f"tracks without a name: {used - named}"
    slices = _tracks(events)
    _arrows(events, slices)
    return events


def _event(event: dict[str, Any]) -> None:
    phase = event["ph"]
    assert phase in PHASES, f"no such phase: {event}"
    assert isinstance(event["name"], str) and event["name"], event
    assert isinstance(event["pid"], int) and isinstance(event.get("tid", 0), int), event
    assert isinstance(event.get("args", {}), dict), event
    if phase == "M":
        kind = str if event["name"] in NAMES else int
        assert event["name"] in NAMES | SORTS, event
        assert [type(v) for v in event["args"].values()] == [kind], event
        return
    assert _number(event["ts"]) and event["ts"] >= 0, event
    match phase:
        case "X":
            assert _number(event["dur"]) and event["dur"] > 0 and "tid" in event, event
        case "C":
            assert event["args"] and all(map(_number, event["args"].values())), event
        case "i":
            assert event["s"] in ("g", "p", "t"), event
        case "s" | "t" | "f":
            assert isinstance(event["id"], int | str) and isinstance(event["cat"], str), event
            assert event.get("bp", "e") == "e", event
        case _:
            raise AssertionError(f"this reader knows no rules for {event}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _span(event: dict[str, Any]) -> tuple[int, int]:
    first = round(event["ts"] * 1000)
    return first, first + round(event["dur"] * 1000)


def _tracks(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(_span(event))
    for track, spans in tracks.items():
        held: list[int] = []
        for first, end in sorted(spans, key=lambda s: (s[0], -s[1])):
            while held and held[-1] <= first:
                held.pop()
            assert not held or end <= held[-1], f"slices of {track} overlap at {first} ns"
            held.append(end)
    return tracks


def _arrows(events: list[dict[str, Any]], slices: dict[tuple[int, int], list[tuple[int, int]]]) -> None:
    ends: dict[tuple[str, str, Any], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            at = round(event["ts"] * 1000)
            inside = slices[event["pid"], event["tid"]]
            assert any(a <= at < b for a, b in inside), f"an arrow's end lies in no slice: {event}"
            ends[event["cat"], event["name"], event["id"]].append(event)
    for key, both in ends.items():
        phases = "".join(e["ph"] for e in both)
        assert phases == "s" + "t" * (len(both) - 2) + "f", f"arrow {key} goes {phases}"
        assert [e["ts"] for e in both] == sorted(e["ts"] for e in both), f"arrow {key} goes back in time"
