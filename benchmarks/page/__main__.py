"""Frames of the page in a real browser on a real server, with the engine idle and while it generates.

    python benchmarks/page [MODEL]          the walk, and the attention matrix of a sequence of 8k tokens
    python benchmarks/page --json FILE      writes the figures too

Law: the aim is held against the *work* of the main thread a frame (`recording.py` says why), with the engine idle. The
browser, the server and what looks into the trace share the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks" / "serve"), str(Path(__file__).parent)]

import journeys  # noqa: E402
import servers  # noqa: E402
from recording import record  # noqa: E402

AIM = 16.0
"""Milliseconds of work a frame, p95, with the engine idle."""


def long_trace(url: str, tokens: int) -> str:
    """A trace of a sequence of so many tokens, of this project's own pages; its metrics of heads are made already."""
    text = "\n".join(page.read_text() for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as http:
        ids = http.post("/tokenize", json={"prompt": text}).raise_for_status().json()["tokens"]
        ids = (ids * (tokens // len(ids) + 1))[: tokens - 16]
        made = http.post("/inspect/replay", json={"prompt_ids": ids, "max_tokens": 16}).raise_for_status().json()
        http.get(f"/inspect/requests/{made['id']}/attn/heads").raise_for_status()
        return made["id"]


def settle(url: str, trace: str) -> None:
    """Wait until what was asked of the trace is answered: looks of a page that is gone count for nobody."""
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as http:
        while http.get(f"/inspect/requests/{trace}/attn/row").status_code == 429:
            time.sleep(0.2)


@contextmanager
def generating(url: str) -> Iterator[None]:
    """Let the engine answer one request after the other."""
    stop = threading.Event()

    def answer() -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 256, "stream": True, "ignore_eos": True}
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            while not stop.is_set():
                with http.stream("POST", "/v1/completions", json=body) as response:
                    response.raise_for_status()
                    for _ in response.iter_raw():
                        if stop.is_set():
                            break

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def either(url: str, busy: bool) -> Iterator[None]:
    if busy:
        with generating(url):
            yield
    else:
        yield


def measure(model: str, tokens: int, only: list[str]) -> dict[str, Any]:
    """Journey → "idle" and "generating" → figures."""
    found: dict[str, Any] = {}
    chromium = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    if chromium is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    log = Path(tempfile.mkdtemp(prefix="pellucid-page-")) / "server.log"
    with servers.pellucid(model, log, "--ctx", str(tokens)) as (port, _), sync_playwright() as playwright:
        url = f"http://127.0.0.1:{port}"
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def fresh() -> Page:
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            page.set_default_timeout(30_000)
            return page

        def note(name: str, state: str, figures: dict[str, Any]) -> None:
            found.setdefault(name, {})[state] = figures
            print(line(name, state, figures), flush=True)

        print(HEAD)
        trace = long_trace(url, tokens) if set(only) & {*journeys.MATRIX} else ""
        for state in ("idle", "generating"):
            with either(url, state == "generating"):
                if "walk" in only:
                    page = fresh()
                    journeys.ask(page, url)
                    note("walk", state, record(browser, page, lambda page=page: journeys.walk(page)))
                    page.context.close()
                if not trace:
                    continue
                page = fresh()
                journeys.open_matrix(page, url, trace, tokens * 3 // 4)
                for name, act in journeys.MATRIX.items():
                    if name in only:
                        note(name, state, record(browser, page, lambda act=act, page=page: act(page)))
                        settle(url, trace)
                page.context.close()
        found["browser"] = browser.version
        browser.close()
    return found


HEAD = (
    f"{'':20} {'frames apart, ms':>22} {'dropped':>8} {'work a frame, ms':>28} {'script layout paint gc':>25} "
    f"{'long tasks':>14} {'heap':>9} {'nodes':>7}\n"
    f"{'':20} {'p50   p95   p99':>22} {'':>8} {'p50    p95    p99   most':>28} {'mean':>25}"
)


def line(name: str, state: str, f: dict[str, Any]) -> str:
    apart, work = f["apart_ms"], f["work_ms"]
    long = f"{f['long_tasks']}, {f['longest_task_ms']:.0f} ms" if f["long_tasks"] else "none"
    return (
        f"{name:7} {state:12} {' '.join(f'{apart[p]:7.1f}' for p in ('p50', 'p95', 'p99')):>22} "
        f"{f['dropped_share']:8.1%} {' '.join(f'{work[p]:6.1f}' for p in ('p50', 'p95', 'p99', 'most')):>28} "
        f"{' '.join(f'{v:5.2f}' for v in f['of_it_ms'].values()):>25} {long:>14} "
        f"{f['heap_bytes'] / 2**20:5.1f} MiB {f['nodes']:7}"
    )


def main() -> int:
    names = ["walk", *journeys.MATRIX]
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--tokens", type=int, default=8192, help="of the sequence whose matrix is looked at")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    found = measure(args.model, args.tokens, args.only)
    version = found.pop("browser")
    over = [name for name, states in found.items() if states["idle"]["work_ms"]["p95"] > AIM]
    most = max(states["idle"]["work_ms"]["p95"] for states in found.values())
    told = f"over it: {', '.join(over)}" if over else "kept by every journey"
    print(f"\nAim: work a frame, p95, engine idle, at most {AIM:.0f} ms: {told}; the most is {most:.1f} ms.")
    if args.json:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Chromium {version}"
        named = {"model": Path(args.model).stem, "tokens": args.tokens, "machine": machine, "aim_ms": AIM}
        args.json.write_text(json.dumps({**named, "journeys": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
