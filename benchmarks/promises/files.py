"""Promises about what is read: model files, templates, grammars; and the core under sanitizers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


def run(command: list[str], limit: float) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{TESTS}", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, check=False)


def mutations(count: int) -> tuple[str, bool]:
    bad, slowest, memory, done = 0, 0.0, 0.0, 0
    for kind in ("gguf", "hf"):
        for seed in range(100, 100 + max(1, count // 2000)):
            each = min(count // 2, 1000)
            result = run([sys.executable, "-W", "error", str(TESTS / "mutations.py"), kind, str(seed), str(each)], 900)
            assert result.returncode == 0, result.stderr[-400:]
            report = json.loads(result.stdout)
            bad += len(report["bad"])
            slowest, memory = max(slowest, report["slowest"]), max(memory, report["memory"])
            done += each
    figure = f"{done:,}: {bad} bad, slowest {slowest:.2f} s, memory {memory:.0%} of the bound"
    return figure, bad == 0 and slowest <= 2 and memory <= 1


def bombs(_: int) -> tuple[str, bool]:
    """The hostile grammars of tests/attacks over HTTP, and the hostile templates, by wall time."""
    from attacks.test_bombs import BOMBS, PATH
    from attacks.test_templates import HANGS, render
    from pellucid.checkpoint.open import open_checkpoint
    from pellucid.errors import RequestError
    from pellucid.models.pull import resolve
    from pellucid.text.tokenizer import Tokenizer
    from serving import running
    from toymodel import toy_llm

    slow: dict[str, float] = {"grammar": 0.0, "template": 0.0}
    with toy_llm(kv_pages=256) as llm, running(llm) as live:
        live.post(PATH, {"prompt": "l>", "max_tokens": 1, "guided_regex": "x"})  # loads what grammars need
        for name, bomb in BOMBS:
            began = time.monotonic()
            assert live.post(PATH, {"prompt": "l>", "max_tokens": 4, name: bomb}).status_code in (200, 400)
            slow["grammar"] = max(slow["grammar"], time.monotonic() - began)
    with open_checkpoint(resolve("smollm2", progress=False)) as checkpoint:
        tokenizer = Tokenizer.from_source(checkpoint.tokenizer)
    for name, source in HANGS.items():
        began = time.monotonic()
        try:
            render(source, tokenizer)
        except RequestError:
            slow["template"] = max(slow["template"], time.monotonic() - began)
        else:
            raise AssertionError(f"the template {name} was not refused")
    figure = f"{len(BOMBS)} grammars, {len(HANGS)} templates: at most {slow['grammar']:.2f} s, {slow['template']:.2f} s"
    return figure, max(slow.values()) <= 2.5  # 2 s inside, and the way there


def sanitizers(_: int) -> tuple[str, bool]:
    for name in ("address", "thread"):
        result = run([sys.executable, str(TESTS / "long" / "sanitize.py"), name], 3600)
        if result.returncode:
            return f"{name}: reports", False
    return "no report", True
