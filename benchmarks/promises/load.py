"""Promises about many requests: fuzz, raw streams, batches, pages, keys, logs. Over the toy models of tests/."""

from __future__ import annotations

import logging
import random
import secrets
from collections import Counter
from io import StringIO
from typing import Any

import apifuzz
from attacks.test_raw import storm as raw_storm
from engine.test_engine import BAN, SAFE, some_params, some_prompt
from engine.test_engine import storm as batch_storm
from engine.toy import NAN_TOKEN, ToyDevice, drain, engine, solo, step
from pellucid.engine.sequence import Sequence
from pellucid.sampling.params import SamplingParams
from serving import running
from toymodel import toy_llm


def api(count: int) -> tuple[str, bool]:
    seen: Counter[int] = Counter()
    with toy_llm(max_seqs=16, kv_pages=256) as llm, running(llm) as live:
        number = 1000
        while sum(seen.values()) < count / 5:
            seen += apifuzz.fuzz(live, each=max(1, min(50, count // 200)), number=number)
            number += 1
        while (left := count - sum(seen.values())) > 0:
            seen += apifuzz.change_bodies(live, count=min(left, 2000), number=number)
            number += 1
        live.settles()
    bad = sum(times for status, times in seen.items() if status >= 500)
    return f"{sum(seen.values()):,}: {bad} 5xx, {seen[200]:,} served", bad == 0


def raw(count: int) -> tuple[str, bool]:
    ends = raw_storm(2_000_000, count)
    return f"{count:,}: none wedged ({ends['200']:,} served, {ends['400']:,} refused with 400)", True


def poison(count: int) -> tuple[str, bool]:
    same = 0
    for number in range(count):
        rng = random.Random(number)
        good = [Sequence(some_prompt(rng), some_params(rng), id=str(i), seed=i) for i in range(63)]
        run = engine(ToyDevice(page_count=900, context=144), max_seqs=64, token_budget=96)
        bad = SamplingParams(temperature=0, max_tokens=12, logit_bias=BAN)
        for i, seq in enumerate(good):
            run.add(seq)
            if i == 31:
                run.add(Sequence([1, NAN_TOKEN], bad, id="bad"))
        outputs, ends = drain(run)
        assert ends["bad"].reason == "error"
        for seq in good:
            same += outputs[seq.id] == solo(seq.tokens[: seq.prompt_len], seq.params, seed=seq.seed)[0]
    return f"{count} × (1 + 63), of NaN: {same} of {63 * count} as alone", same == 63 * count


def determinism(count: int) -> tuple[str, bool]:
    tokens = preempted = 0
    for number in range(count):
        rng = random.Random(number)
        run = batch_storm(
            number,
            budget=rng.choice([1, 7, 33, 64]),
            pages=rng.choice([7, 12, 64]),
            max_seqs=rng.randint(1, 8),
            cache=rng.random() < 0.5,
        )
        tokens += run.stats.generated_tokens
        preempted += run.stats.preemptions
    return f"{count:,} batches, {tokens:,} tokens, {preempted:,} preemptions: 0 differ (no drafts yet)", True


def pages(count: int) -> tuple[str, bool]:
    rng = random.Random(1)
    run = engine(ToyDevice(page_count=200, context=144), max_seqs=32, token_budget=256)
    added = aborted = 0
    live: list[str] = []
    outputs: dict[str, list[int]] = {}
    while added < count or run.busy:
        while added < count and len(live) < 48:
            prompt = [rng.randrange(SAFE) for _ in range(rng.randint(1, 40))]
            run.add(Sequence(prompt, SamplingParams(max_tokens=rng.randint(1, 6), logit_bias=BAN), id=str(added)))
            live.append(str(added))
            added += 1
        ends: dict[str, Any] = {}
        for _ in range(rng.choice([0, 2, 4, 6])):  # about 30 % of all
            run.abort(rng.choice(live))
        step(run, outputs, ends)
        aborted += sum(end.reason == "abort" for end in ends.values())
        live = [id for id in live if id not in ends]
    held = run.pool.used
    run.pool.clear()
    run.pool.check([])
    return f"{count:,} requests, {aborted / count:.0%} aborted: {held} pages held", held == 0


def auth(_: int) -> tuple[str, bool]:
    from attacks.test_auth import KEY, TRICKS, paths, status

    tried = wrong = 0
    with toy_llm() as llm, running(llm, api_key=KEY, inspect=True) as live:
        for path in paths(live):
            for method in ("GET", "POST"):
                for header in ([], ["Authorization: Bearer wrong-key"], [f"X-API-Key: {KEY}x"]):
                    tried += 1
                    wrong += status(live, f"{method} {path} HTTP/1.1", *header) != 401
                tried += 1
                wrong += status(live, f"{method} {path} HTTP/1.1", f"Authorization: Bearer {KEY}") in (401, 403)
            for trick in TRICKS:
                target = trick.format(path=path, upper=path.upper(), percent=path)
                tried += 1
                wrong += "health?" not in trick and status(live, f"POST {target} HTTP/1.1") < 400
    return f"{tried:,} requests: {wrong} not as they should be", wrong == 0


def logs(count: int) -> tuple[str, bool]:
    """Secrets in prompts, fields, headers and broken bodies, logs at debug: nothing that was sent comes back."""
    found, out = 0, StringIO()
    handler = logging.StreamHandler(out)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    logging.getLogger("httpcore").setLevel(logging.ERROR)  # the client's own
    logging.getLogger("httpx").setLevel(logging.ERROR)
    planted: list[str] = []
    try:
        with toy_llm(fail_at=60, max_seqs=16, kv_pages=256) as llm, running(llm) as live:
            for number in range(count):
                secret = f"Seed{secrets.token_hex(8)}"
                planted.append(secret)
                kind = number % 6
                headers = {"x-note": secret, "user-agent": secret} if kind == 0 else {}
                body: Any = {"prompt": f"a{secret}>", "max_tokens": 2, "user": secret}
                if kind == 1:
                    body = {"prompt": f"a{secret}>", "temperature": secret}
                elif kind == 2:
                    body = {"prompt": f"a{secret}>" + "x" * 60, "max_tokens": 2}  # the step fails
                elif kind == 3:
                    body = {"prompt": "a>", "max_tokens": 1, "guided_regex": f"({secret}" if number % 2 else secret}
                if kind == 4:
                    answer = live.http.post(
                        "/v1/completions",
                        content=f'{{"prompt": "{secret}',
                        headers={"content-type": "application/json"},
                    )
                else:
                    answer = live.post("/v1/completions", body, headers=headers)
                # A grammar that cannot be compiled is shown to the one who sent it; nobody else reads that.
                found += answer.status_code >= 400 and kind != 3 and secret in answer.text
            numbers = live.http.get("/metrics").text
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    text = out.getvalue() + numbers
    found += sum(secret in text for secret in planted)
    return f"{count:,} secrets: {found} found; {len(out.getvalue()):,} bytes of logs at debug", found == 0
