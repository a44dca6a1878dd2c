"""Frames of a page while something is done with it: how far apart they came, and what the main thread did for each.

Law: two figures, never mixed. *Apart* is the time between two animation frames: a browser gives at best one in
1000/60 ms, so it tells whether frames were dropped, and is never below 16.67. *Work* is all that the page's main thread
did (script, style, layout, paint) from one frame to the next, from the browser's own trace; the rest of 16.67 is room.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page

FRAME = 1000 / 60
"""Milliseconds between two frames at 60 a second."""
CATEGORIES = ["devtools.timeline", "disabled-by-default-devtools.timeline", "v8", "__metadata"]
KINDS = {
    "script": ("FireAnimationFrame", "EventDispatch", "TimerFire", "FunctionCall", "EvaluateScript", "RunMicrotasks"),
    "layout": ("UpdateLayoutTree", "Layout"),
    "paint": ("PrePaint", "Paint", "Layerize", "Commit", "PaintImage", "UpdateLayer"),
    "gc": ("MinorGC", "MajorGC", "V8.GCScavenger", "V8.GCIncrementalMarking"),
}
START = """() => {
  const seen = (window.benchmark = { frames: [], long: [], on: true });
  const tick = (at) => { seen.frames.push(at); if (seen.on) requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
  seen.observer = new PerformanceObserver((list) => seen.long.push(...list.getEntries().map((e) => e.duration)));
  seen.observer.observe({ type: "longtask" });
}"""
STOP = """() => new Promise((done) => setTimeout(() => {
  const { observer, frames, long } = window.benchmark;
  window.benchmark.on = false;
  observer.disconnect();
  done({ frames, long });
}, 100))"""


def percentiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{q}": round(float(np.percentile(values, q)), 2) for q in (50, 95, 99)}


def record(browser: Browser, page: Page, act: Callable[[], None]) -> dict[str, Any]:
    """Figures of the frames while `act` works with the page. Times in milliseconds, memory in bytes."""
    page.evaluate(START)
    browser.start_tracing(page=page, categories=CATEGORIES)
    act()
    found = page.evaluate(STOP)
    trace = json.loads(browser.stop_tracing())["traceEvents"]
    apart = np.diff(found["frames"])
    dropped = int(np.maximum(np.round(apart / FRAME) - 1, 0).sum())
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    memory = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return {
        "frames": len(apart),
        "apart_ms": percentiles(apart),
        "dropped": dropped,
        "dropped_share": round(dropped / (dropped + len(apart)), 4),
        **work(trace),
        "long_tasks": len(found["long"]),
        "longest_task_ms": round(max(found["long"], default=0), 1),
        "heap_bytes": int(memory["JSHeapUsedSize"]),
        "nodes": int(memory["Nodes"]),
    }


def work(trace: list[dict[str, Any]]) -> dict[str, Any]:
    """What the main thread did from each frame to the next, and for what, in milliseconds; nested events count once."""
    fired = [e for e in trace if e.get("name") == "FireAnimationFrame"]
    [(main, _)] = Counter((e["pid"], e["tid"]) for e in fired).most_common(1)
    events = sorted(
        (e for e in trace if e.get("ph") == "X" and (e["pid"], e["tid"]) == main), key=lambda e: (e["ts"], -e["dur"])
    )
    # All callbacks of one frame fire together; the first of them begins it.
    begins: list[float] = []
    for e in sorted(e["ts"] for e in fired if (e["pid"], e["tid"]) == main):
        if not begins or e - begins[-1] > FRAME * 1000 / 2:
            begins.append(e)
    spent = np.zeros(len(begins))
    sums = dict.fromkeys(KINDS, 0.0)
    kind_of = {name: kind for kind, names in KINDS.items() for name in names}
    ends: dict[str, float] = {}
    for e in events:
        frame = bisect_right(begins, e["ts"]) - 1
        kind = "task" if e["name"] == "RunTask" else kind_of.get(e["name"])
        if kind is None or not 0 <= frame < len(begins) - 1 or e["ts"] < ends.get(kind, 0):
            continue
        ends[kind] = e["ts"] + e["dur"]
        if kind == "task":
            spent[frame] += e["dur"] / 1000
        else:
            sums[kind] += e["dur"] / 1000
    spent = spent[:-1]
    return {
        "work_ms": percentiles(spent) | {"most": round(float(spent.max()), 1)},
        "of_it_ms": {kind: round(total / len(spent), 3) for kind, total in sums.items()},
    }
