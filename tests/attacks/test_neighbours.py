"""One bad request among good ones harms none of them, and leaves nothing behind."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pellucid.engine.sequence import Sequence
from serving import running, slow
from toymodel import toy_llm

PATH = "/v1/completions"


def test_poison_request() -> None:
    """1 bad and 63 good in the same steps: the good are byte for byte what each is alone."""
    good: list[dict[str, Any]] = [
        {"prompt": f"{'abu'[i % 3]}{i:02}" + "y" * (i % 20) + ">", "max_tokens": 12, "seed": i} for i in range(63)
    ]
    bad = {"prompt": "l" * 150 + ">", "max_tokens": 20}
    with slow(toy_llm(ctx=256, kv_pages=512), 0.005) as llm, running(llm) as live:
        engine = llm.engine
        token, beside = engine._token, [0]

        def poisoned(seq: Sequence, *rest: Any) -> None:
            if seq.prompt_len == 151 and seq.output_len == 4:
                beside.append(len(engine.scheduler.running) - 1)
                raise RuntimeError("this sequence cannot be handled")
            token(seq, *rest)

        engine._token = poisoned  # type: ignore[method-assign]

        def ask(body: dict[str, Any]) -> tuple[int, list[str]]:
            done = live.post(PATH, body)
            return done.status_code, [choice["text"] for choice in done.json().get("choices", [])]

        alone = [ask(body) for body in good]
        assert {status for status, _ in alone} == {200}
        with ThreadPoolExecutor(64) as pool:
            together = list(pool.map(ask, [bad, *good]))
        assert together[0][0] == 500 and together[1:] == alone
        assert max(beside) > 0
        live.settles()


def test_kv_leak() -> None:
    """Of 300 requests a third are aborted, wherever they are; after a flush no page is held or kept."""
    draw = random.Random(7)
    with toy_llm(ctx=256, kv_pages=48, max_seqs=6) as llm, running(llm) as live:

        def ask(i: int) -> int:
            prompt = f"l{i % 7}" + "y" * draw.randrange(60) + ">"
            body = {"prompt": prompt, "max_tokens": draw.randrange(1, 40) if i % 3 else 150, "stream": True}
            with live.http.stream("POST", PATH, json=body) as response:
                if i % 3:
                    response.read()
                return response.status_code

        with ThreadPoolExecutor(12) as pool:
            assert set(pool.map(ask, range(300))) == {200}
        live.settles()
        assert llm.engine.stats.finished["abort"] > 30
        llm.engine.pool.clear()
        stats = llm.engine.stats
        assert stats.pages_used == stats.pages_cached == stats.running == stats.waiting == 0
        llm.engine.scheduler.check()
