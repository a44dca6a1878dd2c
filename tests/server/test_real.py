"""`pellucid serve` as a user starts it, on the real default model: curl, the openai package, 64 streams at once."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from serving import until


@dataclass
class Served:
    process: subprocess.Popen[str]
    banner: list[str] = field(default_factory=list)
    url: str = ""

    def metric(self, name: str) -> float:
        found = re.search(rf"^pellucid:{name}{{.*}} (\S+)$", httpx.get(self.url + "/metrics").text, re.MULTILINE)
        assert found is not None
        return float(found[1])


@pytest.fixture(scope="module")
def served(smollm2_path: Path) -> Iterator[Served]:
    code = "from pellucid.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", str(smollm2_path), "--port", "0", "--ctx", "1024"]
    command += ["--served-model-name", "smollm2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        served = Served(process)
        assert process.stderr is not None
        try:
            for line in process.stderr:
                served.banner.append(line)
                if found := re.search(r"serves smollm2 at (http://127\.0\.0\.1:\d+)/v1", line):
                    served.url = found[1]
                if "Ctrl-C" in line:
                    break
            threading.Thread(target=process.stderr.read, daemon=True).start()
            assert served.url, "".join(served.banner)
            yield served
            process.terminate()
            assert process.wait(30) == 0
            assert process.stdout is not None and process.stdout.read() == ""
        finally:
            process.kill()


def test_the_banner_tells_how_to_ask(served: Served) -> None:
    text = "".join(served.banner)
    assert "context 1024 tokens" in text and "KV cache" in text
    if shutil.which("curl") is None:
        pytest.skip("curl is not here")
    command = re.search(r"^ +(curl .*\\\n.*)$", text, re.MULTILINE)
    assert command is not None
    done = subprocess.run(
        ["bash", "-c", command[1] + " -sSN --max-time 60"], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("data: {") and done.stdout.endswith("data: [DONE]\n\n")


def test_the_openai_package(served: Served) -> None:
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="any", max_retries=0)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(model="smollm2", messages=question, temperature=0, max_tokens=24)
    assert answer.choices[0].message.content and answer.usage.completion_tokens <= 24
    text = client.completions.create(model="smollm2", prompt="The capital of France is", temperature=0, max_tokens=4)
    assert "Paris" in text.choices[0].text
    stream = client.chat.completions.create(
        model="smollm2", messages=question, temperature=0, max_tokens=24, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == answer.choices[0].message.content
    again = client.chat.completions.create(model="smollm2", messages=question, temperature=0, max_tokens=24)
    assert again.choices[0].message.content == answer.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens >= 16
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens"):
        client.completions.create(model="smollm2", prompt="word " * 2000)


def test_embeddings_by_the_openai_package(served: Served) -> None:
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="any", max_retries=0)
    texts = ["The cat sat on the mat.", "A kitten rested on the rug.", "Quarterly revenue rose by four percent."]
    answer = client.embeddings.create(model="smollm2", input=texts)  # which asks for base64 by itself
    assert [item.index for item in answer.data] == [0, 1, 2] and answer.usage.prompt_tokens > 15
    a, b, c = vectors = np.array([item.embedding for item in answer.data], np.float32)
    assert vectors.shape == (3, 576) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert a @ b > a @ c + 0.1 and a @ b > b @ c + 0.1
    ids = [httpx.post(served.url + "/tokenize", json={"prompt": text}).json()["tokens"] for text in texts]
    floats = client.embeddings.create(model="smollm2", input=ids, encoding_format="float")
    assert np.array_equal(np.array([item.embedding for item in floats.data], np.float32), vectors)
    [short] = client.embeddings.create(model="smollm2", input=ids[0], dimensions=64).data
    assert np.allclose(short.embedding, a[:64] / np.linalg.norm(a[:64]), atol=1e-6)
    with pytest.raises(openai.BadRequestError, match=r"context length is 1024 tokens.*2001 tokens"):
        client.embeddings.create(model="smollm2", input="word " * 2000)
    with pytest.raises(openai.BadRequestError, match="at most 576"):
        client.embeddings.create(model="smollm2", input="a", dimensions=577)


def test_the_prompt_is_scored_as_lm_eval_asks(served: Served) -> None:
    body = {"prompt": "The capital of France is Paris", "logprobs": 1, "max_tokens": 1, "echo": True, "temperature": 0}
    logprobs = httpx.post(served.url + "/v1/completions", json=body, timeout=60).json()["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"][:-1]) == body["prompt"] and logprobs["token_logprobs"][0] is None
    scores = logprobs["token_logprobs"][1:-1]
    assert all(score <= 0 for score in scores) and scores[-1] > -2  # " Paris" is likely


def test_64_streams_together(served: Served) -> None:
    async def one(http: httpx.AsyncClient, i: int) -> tuple[str, dict[str, int]]:
        text, usage = "", None
        body = {
            "messages": [{"role": "user", "content": f"Count from {i} upwards." + " Please." * (i % 7)}],
            "max_tokens": 8 + i % 9,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line and line != "data: [DONE]":
                    chunk = json.loads(line.removeprefix("data: "))
                    usage = chunk["usage"]
                    text += "".join(choice["delta"].get("content", "") for choice in chunk["choices"])
        assert usage is not None
        return text, usage

    async def go() -> list[tuple[str, dict[str, int]]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=served.url, limits=limits, timeout=300, trust_env=False) as http:
            return await asyncio.gather(*(one(http, i) for i in range(64)))

    answers = asyncio.run(go())
    for i, (text, usage) in enumerate(answers):
        assert text and usage["completion_tokens"] == 8 + i % 9
        assert usage["prompt_tokens"] > 10 and usage["total_tokens"] == usage["prompt_tokens"] + 8 + i % 9
    until(lambda: served.metric("kv_cache_usage_perc") == 0)
    assert served.metric("num_requests_running") == served.metric("num_requests_waiting") == 0
