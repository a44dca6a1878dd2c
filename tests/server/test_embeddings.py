"""POST /v1/embeddings: inputs of every kind, both encodings, errors, and a client that leaves."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from pellucid.llm import LLM
from serving import Live, running, slow, until
from toymodel import D_MODEL, hidden_states, toy_llm

PATH = "/v1/embeddings"


def due(text: str, *, pooling: str = "mean", dimensions: int = D_MODEL) -> np.ndarray:
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    states = hidden_states(ids, np.arange(len(ids), dtype=np.int32)).astype(np.float64)
    vector = (states.mean(axis=0) if pooling == "mean" else states[-1])[:dimensions]
    return vector / np.linalg.norm(vector)


def vectors(answer: dict[str, Any]) -> np.ndarray:
    return np.array([item["embedding"] for item in answer["data"]], np.float32)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("abc", ["abc"]),
        (["abc", "hello, world"], ["abc", "hello, world"]),
        ([97, 98, 99], ["abc"]),
        ([[97, 98, 99], [100]], ["abc", "d"]),
        ("a" * 512, ["a" * 512]),  # the whole context
    ],
)
@pytest.mark.parametrize("more", [{}, {"pooling": "last"}, {"dimensions": 5}])
def test_inputs(live: Live, given: Any, texts: list[str], more: dict[str, Any]) -> None:
    answer = live.post(PATH, {"model": "toy", "input": given, "user": "me", **more}).json()
    assert answer["object"] == "list" and answer["model"] == "toy" and "warnings" not in answer
    assert [(item["object"], item["index"]) for item in answer["data"]] == [("embedding", i) for i in range(len(texts))]
    assert answer["usage"] == {"prompt_tokens": sum(map(len, texts)), "total_tokens": sum(map(len, texts))}
    got = vectors(answer)
    assert np.allclose(got, [due(text, **more) for text in texts], atol=1e-5)
    coded = live.post(PATH, {"input": given, "encoding_format": "base64", **more}).json()
    decoded = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in coded["data"]]
    assert np.array_equal(decoded, got)


def test_a_warm_cache_gives_the_same_bytes(live: Live) -> None:
    """The mean takes nothing from it, the last row all but the last page; both see the same."""
    text = "b" * 100
    for pooling in ("mean", "last"):
        first, second = (live.post(PATH, {"input": text, "pooling": pooling}).json() for _ in range(2))
        assert first == second
    answer = live.post("/v1/completions", {"prompt": text, "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "input", "Missing"),
        ({"input": []}, "input", "empty list"),
        ({"input": ""}, "input", "empty"),
        ({"input": [""]}, "input", "empty"),
        ({"input": ["a"] * 33}, "input", "33 prompts; at most 32"),
        ({"input": "a" * 513}, "input", "512 tokens. However, your prompt has 513 tokens"),
        ({"input": [97] * 513}, "input", "512 tokens. However, your prompt has 513 tokens"),
        ({"input": ["a", "a" * 100_000]}, "input", "512 tokens. However, your prompt has 100000"),
        ({"input": [97, 260]}, "input", "outside 0..259"),
        ({"input": [97, -1]}, "input", "outside"),
        ({"input": "a", "dimensions": 25}, "dimensions", "at most 24"),
        ({"input": "a", "dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "pooling": "cls"}, "pooling", "'mean' or 'last'"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not served"),
    ],
)
def test_errors(live: Live, body: dict[str, Any], param: str, says: str) -> None:
    answer = live.post(PATH, body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and says in error["message"] and error["type"] == "invalid_request_error"


def test_other_models_and_unknown_fields(live: Live) -> None:
    assert live.post(PATH, {"model": "other", "input": "a"}).status_code == 404
    [warning] = live.post(PATH, {"input": "a", "temperature": 1}).json()["warnings"]
    assert "temperature" in warning


def test_beside_answers(live: Live) -> None:
    """Embeddings and answers in the same steps, each as it is alone."""
    alone = live.post(PATH, {"input": "hello"}).json()

    async def go() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=live.url, timeout=60, trust_env=False) as http:
            asked = [("/v1/completions", {"prompt": "a>", "temperature": 0}), (PATH, {"input": "hello"})] * 8
            return await asyncio.gather(*(http.post(path, json=body) for path, body in asked))

    for response in asyncio.run(go()):
        said = response.json()
        if said["object"] == "list":
            assert said == alone
        else:
            assert said["choices"][0]["text"] == "apples and pears"


def test_a_failed_step_ends_it_with_an_error() -> None:
    with toy_llm(fail_at=20) as llm, running(llm) as live:
        answer = live.post(PATH, {"input": "a" * 30})
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "engine_error"
        assert live.post(PATH, {"input": "a" * 20}).status_code == 200
        live.settles()


@pytest.fixture
def slow_live() -> Iterator[Live]:
    with slow(toy_llm(token_budget=1, max_seqs=2), 0.005) as llm, running(llm) as live:
        yield live


def test_a_client_that_leaves_ends_its_work(slow_live: Live) -> None:
    with pytest.raises(httpx.ReadTimeout):
        slow_live.post(PATH, {"input": ["a" * 500] * 4}, timeout=0.3)
    slow_live.settles()
    stats = slow_live.llm.engine.stats
    assert stats.finished["abort"] == 4 and stats.step_rows < 500
    text = slow_live.http.get("/metrics").text
    assert 'pellucid:request_success_total{finished_reason="abort",model_name="toy"} 4.0' in text


def test_it_is_counted_and_recorded() -> None:
    with toy_llm() as llm, running(llm, inspect=True) as live:
        id = "an-embedding"
        live.post(PATH, {"input": ["a" * 40] * 2}, headers={"x-request-id": id})
        live.settles()
        until(lambda: live.http.get(f"/inspect/requests/{id}").json()["state"] == "ended")
        told = live.http.get(f"/inspect/requests/{id}").json()
        assert told["route"] == PATH and told["prompt_tokens"] == 80 and told["completion_tokens"] == 0
        assert [choice["finish_reason"] for choice in told["choices"]] == ["length"] * 2
        assert told["choices"][1]["cache"]["not_looked_up"] == 32
        assert 'prompt_tokens_total{model_name="toy"} 80.0' in live.http.get("/metrics").text


def test_a_device_without_hidden_states_says_so() -> None:
    with toy_llm() as llm, running(llm) as live:
        llm.engine.device = Blind(llm)  # type: ignore[assignment]
        answer = live.post(PATH, {"input": "a"})
        assert answer.status_code == 400 and "shows no hidden states" in answer.json()["error"]["message"]


class Blind:
    def __init__(self, llm: LLM) -> None:
        self.run = llm.device.run
        self.vocab_size = llm.device.vocab_size
        self.memory = llm.device.memory
