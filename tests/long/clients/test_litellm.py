"""`litellm`, as it comes, by each provider name that people use for a server of their own; errors by class."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
import pytest

from .conftest import Served

USER = [{"role": "user", "content": "Name three colours."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}},
            "required": ["city"],
        },
    },
}
PROVIDERS = ["openai", "hosted_vllm", "litellm_proxy"]


def options(served: Served, provider: str = "openai", **more: Any) -> dict[str, Any]:
    shared = {"temperature": 0, "max_tokens": 30, "num_retries": 0, "max_retries": 0}
    return {"model": f"{provider}/{served.model}", "api_base": served.v1, "api_key": "any", **shared, **more}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_answers_and_streams(smollm2: Served, provider: str) -> None:
    answer = litellm.completion(messages=USER, **options(smollm2, provider))
    text = answer.choices[0].message.content
    assert text and answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens > 0 and answer.usage.prompt_tokens_details.cached_tokens >= 0
    chunks = list(
        litellm.completion(
            messages=USER, stream=True, stream_options={"include_usage": True}, **options(smollm2, provider)
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert litellm.stream_chunk_builder(chunks, messages=USER).choices[0].message.content == text
    assert next(c.usage for c in reversed(chunks) if getattr(c, "usage", None)).completion_tokens == (
        answer.usage.completion_tokens
    )


def test_coroutines(smollm2: Served) -> None:
    async def go() -> list[str]:
        async def stream() -> str:
            parts = await litellm.acompletion(messages=USER, stream=True, **options(smollm2))
            return "".join([part.choices[0].delta.content or "" async for part in parts])

        whole = litellm.acompletion(messages=USER, **options(smollm2))
        answer, *streams = await asyncio.gather(whole, stream(), stream(), stream())
        return [answer.choices[0].message.content, *streams]

    texts = asyncio.run(go())
    assert texts[0] and texts == [texts[0]] * 4


def test_text(smollm2: Served) -> None:
    answer = litellm.text_completion(
        prompt=["The sky is", "The sea is"], logprobs=1, **options(smollm2, "text-completion-openai")
    )
    assert len(answer.choices) == 2 and all(choice.text for choice in answer.choices)


def test_other_fields_pass_through(smollm2: Served) -> None:
    asked = options(smollm2, top_k=5, min_p=0.1, seed=7, temperature=1)
    texts = {litellm.completion(messages=USER, **asked).choices[0].message.content for _ in range(3)}
    assert len(texts) == 1
    forms = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}
    form = litellm.completion(messages=USER, response_format=forms, **options(smollm2))
    assert form.choices[0].message.content in ('"yes"', '"no"')


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tools(qwen: Served, choice: Any) -> None:
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    keep = options(qwen, max_tokens=80, tools=[TOOL], tool_choice=choice)
    message = litellm.completion(messages=asked, **keep).choices[0].message
    assert message.tool_calls[0].function.name == "get_weather" and "Paris" in message.tool_calls[0].function.arguments
    chunks = list(litellm.completion(messages=asked, stream=True, **keep))
    built = litellm.stream_chunk_builder(chunks, messages=asked).choices[0].message
    assert [c.function.arguments for c in built.tool_calls] == [c.function.arguments for c in message.tool_calls]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
    after = litellm.completion(messages=[*asked, message, *results], **options(qwen, tools=[TOOL]))
    assert after.choices[0].message.content or after.choices[0].message.tool_calls


def test_responses_and_messages(smollm2: Served) -> None:
    """The two other APIs that litellm speaks: OpenAI's responses and Anthropic's messages."""
    made = litellm.responses(
        model=f"openai/{smollm2.model}", api_base=smollm2.v1, api_key="any", input="Say hello.", max_output_tokens=20
    )
    assert made.output[0].content[0].text
    said = options(smollm2, "anthropic", api_base=smollm2.url)
    whole = litellm.completion(messages=USER, **said).choices[0].message.content
    parts = list(litellm.completion(messages=USER, stream=True, **said))
    assert whole and "".join(part.choices[0].delta.content or "" for part in parts) == whole


@pytest.mark.parametrize("provider", PROVIDERS)
def test_errors(smollm2: Served, provider: str) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "word " * 9000}], **options(smollm2, provider))
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=USER, **options(smollm2, provider, model=f"{provider}/gpt-4"))
    with pytest.raises(litellm.BadRequestError, match="top_p"):
        litellm.completion(messages=USER, top_p=7, **options(smollm2, provider))
    with pytest.raises(litellm.ContextWindowExceededError):
        list(
            litellm.completion(
                messages=[{"role": "user", "content": "word " * 9000}], stream=True, **options(smollm2, provider)
            )
        )
