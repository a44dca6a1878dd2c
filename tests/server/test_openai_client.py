"""The `openai` package, as it comes: calls, streams, and errors by class."""

from __future__ import annotations

import asyncio

import openai
import pytest

from serving import Live, running, slow
from toymodel import toy_llm

USER = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def client(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0)


def test_calls(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"
    answer = client.chat.completions.create(model="toy", messages=USER, temperature=0, logprobs=True, top_logprobs=1)
    assert answer.choices[0].message.content == "apples and pears" and answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0 and answer._request_id
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].token == "a"
    text = client.completions.create(model="toy", prompt=["a>", "b>"], temperature=0, max_tokens=20)
    assert [choice.text for choice in text.choices] == ["apples and pears", "one. two. three."]
    extra = client.chat.completions.create(model="toy", messages=USER, extra_body={"top_k": 1, "min_p": 0.1})
    assert extra.choices[0].message.content == "apples and pears"


def test_streams(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="toy", messages=USER, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "apples and pears"
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].usage.completion_tokens == 17
    pieces = client.completions.create(model="toy", prompt="b>", temperature=0, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == "one. two. three."
    with client.chat.completions.stream(model="toy", messages=USER, temperature=0) as stream:
        events = [event.type for event in stream]
        assert "content.delta" in events
        assert stream.get_final_completion().choices[0].message.content == "apples and pears"


def test_async(live: Live) -> None:
    async def go() -> tuple[str | None, str]:
        async with openai.AsyncOpenAI(base_url=live.url + "/v1", api_key="any") as client:
            answer = await client.chat.completions.create(model="toy", messages=USER, temperature=0)
            stream = await client.chat.completions.create(model="toy", messages=USER, temperature=0, stream=True)
            return answer.choices[0].message.content, "".join([c.choices[0].delta.content or "" async for c in stream])

    assert asyncio.run(go()) == ("apples and pears", "apples and pears")


def test_leaving_a_stream(live: Live, client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "l"}]
    with client.chat.completions.create(model="toy", messages=long, stream=True) as stream:
        next(iter(stream))
    live.settles()


def test_errors_by_class(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=USER)
    assert missing.value.code == "model_not_found" and missing.value.param == "model" and missing.value.request_id
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens") as long:
        client.chat.completions.create(model="toy", messages=[{"role": "user", "content": "a" * 600}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="toy", messages=USER, temperature=-1)
    assert bad.value.param == "temperature" and bad.value.type == "invalid_request_error"


def test_errors_of_keys_queues_and_steps() -> None:
    with toy_llm() as llm, running(llm, api_key="sk-0123456789") as live:
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=live.url + "/v1", api_key="wrong").models.list()
        assert openai.OpenAI(base_url=live.url + "/v1", api_key="sk-0123456789").models.list().data
    with toy_llm(max_seqs=1, max_queue=0) as llm, running(llm) as live:
        client = openai.OpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0)
        with pytest.raises(openai.RateLimitError) as full:
            client.chat.completions.create(model="toy", messages=USER, n=2)
        assert full.value.response.headers["retry-after"]
    with slow(toy_llm(fail_at=20), 0.01) as llm, running(llm) as live:
        client = openai.OpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0)
        stream = client.completions.create(model="toy", prompt="l>", max_tokens=100, stream=True)
        with pytest.raises(openai.APIError, match="engine failed"):
            list(stream)
