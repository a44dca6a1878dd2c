"""/inspect over HTTP, on the default model: every view, what it refuses, and that it is off unless asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from pellucid import LLM
from serving import Live, running
from toymodel import toy_llm

TEXT = "Anna lives in Rome. Bob lives in Berlin. The weather is nice. The city where Bob lives is"


@pytest.fixture(scope="module")
def live(smollm2_path: Path) -> Iterator[Live]:
    with LLM(smollm2_path, threads=2, ctx=1024, progress=False) as llm, running(llm, inspect=True) as live:
        yield live


@pytest.fixture(scope="module")
def trace(live: Live) -> dict:
    done = live.post("/inspect/replay", {"prompt": TEXT, "max_tokens": 1})
    assert done.status_code == 200, done.text
    return done.json()


def get(live: Live, trace: dict, view: str, **query: object) -> dict:
    done = live.http.get(f"/inspect/requests/{trace['id']}/{view}", params=query)
    assert done.status_code == 200, done.text
    return done.json()


def test_a_replay_tells_tokens_and_trust(live: Live, trace: dict) -> None:
    assert trace["delta"] == 0 and trace["tokens"][-1]["text"] == " Berlin"
    assert trace["tokens"][0]["logprob"] is None and trace["tokens"][-1]["part"] == "answer"
    whole = get(live, trace, "tokens")
    assert len(whole["norms"]["resid"]) == 31 and whole["events"][0]["point"] == "admit"


def test_views_are_those_of_python(live: Live, trace: dict) -> None:
    logits = get(live, trace, "logits", top=5)
    assert logits["replays"] and len(logits["funnel"]["raw"]) == 5
    lens = get(live, trace, "lens", top=2)
    assert len(lens["ranks"]) == 31 and lens["logprobs"][-1][0] == pytest.approx(trace["tokens"][-1]["logprob"])
    heads = get(live, trace, "attn/heads")
    assert np.array(heads["values"]["self"]).shape == (30, 9)
    pattern = live.http.get(
        f"/inspect/requests/{trace['id']}/activations", params={"names": ["blocks.2.attn.hook_pattern", "hook_embed"]}
    )
    tensors = load(pattern.content)
    n = len(trace["tokens"])
    assert tensors["blocks.2.attn.hook_pattern"].shape == (9, n, n) and tensors["hook_embed"].shape == (n, 576)
    one = live.http.get(f"/inspect/requests/{trace['id']}/activations", params={"names": "hook_embed", "pos": 3})
    assert np.array_equal(load(one.content)["hook_embed"], tensors["hook_embed"][3:4])


def test_tiles_are_the_map_and_its_maxima(live: Live, trace: dict) -> None:
    n = len(trace["tokens"])
    url = f"/inspect/requests/{trace['id']}/attn/tile"
    done = live.http.get(url, params={"layer": 2, "head": 1})
    scale = float(done.headers["x-scale"])
    cells = np.frombuffer(done.content, np.uint8).reshape(n, n) * (scale / 255)
    pattern = load(
        live.http.get(
            f"/inspect/requests/{trace['id']}/activations", params={"names": "blocks.2.attn.hook_pattern"}
        ).content
    )["blocks.2.attn.hook_pattern"][1]
    assert scale == pytest.approx(float(pattern.max()))
    assert np.abs(cells - pattern).max() <= scale / 255
    for pool in ("max", "mean"):
        small = live.http.get(url, params={"layer": 2, "head": 1, "z": 2, "pool": pool})
        side = -(-n // 4)
        got = np.frombuffer(small.content, np.uint8).reshape(side, side) * (float(small.headers["x-scale"]) / 255)
        padded = np.zeros((4 * side, 4 * side))
        padded[:n, :n] = pattern
        blocks = padded.reshape(side, 4, side, 4)
        due = blocks.max(axis=(1, 3)) if pool == "max" else blocks.mean(axis=(1, 3))
        assert np.abs(got - due).max() <= float(small.headers["x-scale"]) / 250
    again = live.http.get(url, params={"layer": 2, "head": 1}, headers={"if-none-match": done.headers["etag"]})
    assert again.status_code == 304 and not again.content
    assert live.http.get(url, params={"x": 9}).status_code == 400


def test_influence_and_ablation_are_causal(live: Live, trace: dict) -> None:
    found = live.post("/inspect/influence", {"id": trace["id"]}).json()
    worst = int(np.argmin(found["changes"][:-1]))
    assert "Berlin" in found["spans"][worst]["text"]
    span = found["spans"][worst]
    masked = live.post("/inspect/ablate", {"id": trace["id"], "mask": [span["first"], span["end"]]}).json()
    assert masked["delta"] == pytest.approx(found["changes"][worst], abs=0.3)
    none = live.post("/inspect/ablate", {"id": trace["id"], "attn": [3], "factor": 1.0}).json()
    assert none["delta"] == 0
    cut = live.post("/inspect/ablate", {"id": trace["id"], "mlp": [0], "heads": [[5, 1], [5, 2]]}).json()
    assert cut["delta"] < -0.5 and cut["logprob"] == none["logprob"]


def test_comparing_and_redacting(live: Live, trace: dict) -> None:
    ids = [t["id"] for t in trace["tokens"]]
    other = live.post("/inspect/replay", {"prompt_ids": ids, "redact": True, "level": "tokens"}).json()
    assert {t["text"] for t in other["tokens"]} == {""} and {t["id"] for t in other["tokens"]} == {None}
    found = live.post("/inspect/compare", {"id": trace["id"], "other": other["id"]}).json()
    assert found["flips"] == [] and not any(found["kl"])
    spans = live.post("/inspect/influence", {"id": other["id"], "by": "token", "pos": 4}).json()["spans"]
    assert {s["text"] for s in spans} == {""}


def test_a_conversation_goes_through_the_template(live: Live) -> None:
    body = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 2, "temperature": 0.7, "seed": 1}
    found = live.post("/inspect/replay", body).json()
    assert found["tokens"][0]["text"] == "<|im_start|>" and found["delta"] == 0


def test_what_cannot_be_served_says_why(live: Live, trace: dict) -> None:
    for body, status, what in (
        ({}, 400, "give one of"),
        ({"prompt": "a", "prompt_ids": [1]}, 400, "give one of"),
        ({"prompt": "a", "budget": "9GB"}, 400, "at most 1024 MiB"),
        ({"prompt": "a", "budget": "1MB"}, None, "raise --budget"),
        ({"prompt": "a", "level": "deep"}, 400, "level"),
        ({"prompt": "word " * 2000}, 400, "context"),
    ):
        done = live.post("/inspect/replay", body)
        assert done.status_code == status or (status is None and done.status_code >= 400), done.text
        assert what in done.json()["error"]["message"]
    for path in ("tokens", "lens", "attn/heads"):
        assert live.http.get(f"/inspect/requests/trace-0/{path}").status_code == 404
    assert live.http.get(f"/inspect/requests/{trace['id']}/lens", params={"pos": 900}).status_code == 400
    assert live.post("/inspect/ablate", {"id": trace["id"], "heads": [[99, 0]]}).status_code == 400
    bad = live.http.get(f"/inspect/requests/{trace['id']}/activations", params={"names": "nothing"})
    assert bad.status_code == 400 and "no value" in bad.json()["error"]["message"]


def test_old_traces_go(live: Live) -> None:
    first = live.post("/inspect/replay", {"prompt": "a b", "level": "tokens"}).json()["id"]
    for _ in range(8):
        live.post("/inspect/replay", {"prompt": "a b", "level": "tokens"})
    gone = live.http.get(f"/inspect/requests/{first}/tokens")
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "trace_not_found"


def test_large_traces_push_older_ones_out(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    first = live.post("/inspect/replay", {"prompt": "a b", "level": "tokens"}).json()["id"]
    monkeypatch.setattr("pellucid.server.routes.inspect.MOST_HELD", 1)
    last = live.post("/inspect/replay", {"prompt": "a b", "level": "tokens"}).json()["id"]
    assert live.http.get(f"/inspect/requests/{first}/tokens").status_code == 404
    assert live.http.get(f"/inspect/requests/{last}/tokens").status_code == 200


def test_it_is_off_unless_asked_for() -> None:
    with toy_llm() as llm, running(llm) as live:
        assert live.post("/inspect/replay", {"prompt": "a"}).status_code == 404
        assert "/inspect/replay" not in json.dumps(live.http.get("/openapi.json").json())


def test_a_device_that_cannot_replay_says_so() -> None:
    with toy_llm() as llm, running(llm, inspect=True) as live:
        done = live.post("/inspect/replay", {"prompt": "a>"})
        assert done.status_code == 400 and "cannot replay" in done.json()["error"]["message"]
