"""What belongs to one row (penalties, masks, biases, seeds, stops) stays with it when the batch is joined and left.

Each answer equals the one that the same request gets alone, on a server that serves nothing else.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from serving import Live, running, slow
from toymodel import toy_llm

PATH = "/v1/completions"


def some_request(rng: random.Random) -> dict[str, Any]:
    """A request each of whose parameters is there or not."""
    some: dict[str, Any] = {
        "repetition_penalty": rng.choice([0.5, 1.3, 5.0]),
        "presence_penalty": rng.choice([-2, 2]),
        "repeat_last_n": rng.choice([0, 3, 64]),
        "frequency_penalty": rng.choice([-1.5, 1.5]),
        "logit_bias": {str(rng.randrange(97, 123)): rng.choice([-100, 50, 100]) for _ in range(4)},
        "top_k": rng.randint(1, 40),
        "top_p": rng.choice([0.3, 0.8]),
        "min_p": 0.05,
        "top_n_sigma": rng.choice([0.5, 1.5]),
        "typical_p": rng.choice([0.2, 0.9]),
        "xtc_probability": rng.choice([0.5, 1]),
        "xtc_threshold": rng.choice([0.01, 0.2]),
        "dynatemp_range": rng.choice([0.5, 20]),
        "samplers": rng.choice([["top_k", "xtc", "temperature"], "eymt", ["dry", "min_p", "penalties", "top_p"]]),
        "dry_multiplier": rng.choice([1, 20]),
        "dry_allowed_length": rng.choice([0, 1, 3]),
        "dry_sequence_breakers": rng.choice([[], ["b", "ca"]]),
        "bad_words": rng.choice([["a", "bc"], ["x"]]),
        "stop": rng.choice([["q"], ["ab", "x"]]),
        "stop_token_ids": [rng.randrange(97, 123)],
        "min_tokens": 3,
        "logprobs": rng.randint(0, 5),
        "n": rng.randint(1, 3),
    }
    forms = {
        "guided_regex": "[a-f]{3,9}",
        "guided_choice": ["yes", "no", "neither"],
        "guided_grammar": "start: /[xy]+/",
    }
    body: dict[str, Any] = {name: value for name, value in some.items() if rng.random() < 0.35}
    if rng.random() < 0.3 and "min_tokens" not in body:
        name = rng.choice(sorted(forms))
        body[name] = forms[name]
    body |= {"prompt": rng.choice("abul") + "b" * rng.randrange(40) + ">", "max_tokens": rng.randint(3, 40)}
    return body | {"temperature": rng.choice([0, 1, 30, 90]), "seed": rng.randrange(1 << 30)}


def choices(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def leave(live: Live, body: dict[str, Any]) -> None:
    """Ask, and be gone after the first bytes."""
    with httpx.stream("POST", live.url + PATH, json=body | {"stream": True, "max_tokens": 200}, timeout=30) as answer:
        next(answer.iter_raw())


@pytest.mark.parametrize("seed", range(2))
def test_rows_keep_to_themselves(seed: int) -> None:
    rng = random.Random(seed)
    bodies = [some_request(rng) for _ in range(60)]
    assert len({json.dumps(body) for body in bodies}) == 60
    with toy_llm(max_seqs=1, kv_pages=512) as llm, running(llm) as live:
        alone = [choices(live.post(PATH, body)) for body in bodies]
    with slow(toy_llm(max_seqs=24, kv_pages=150, token_budget=48), 0.001) as llm, running(llm) as live:
        with ThreadPoolExecutor(24) as pool:
            gone = [pool.submit(leave, live, body) for body in rng.sample(bodies, 20)]
            order = rng.sample(range(60), 60)
            together = dict(zip(order, pool.map(lambda i: choices(live.post(PATH, bodies[i])), order), strict=True))
            for one in gone:
                one.result()
        live.settles()
    for i, due in enumerate(alone):
        assert together[i] == due, bodies[i]
    assert {choice["finish_reason"] for due in alone for choice in due} == {"stop", "length"}
