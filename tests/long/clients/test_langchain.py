"""`langchain-openai`, as it comes: answers, streams, batches, tools, forms, and errors by class."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from .conftest import Served

QUESTION = "Name three colours."


def chat(served: Served, **options: Any) -> ChatOpenAI:
    greedy = {"model": served.model, "temperature": 0, "max_tokens": 40, "max_retries": 0}
    return ChatOpenAI(base_url=served.v1, api_key="any", **{**greedy, **options})


@tool
def get_weather(city: str, unit: str = "celsius") -> str:
    """Tell the weather of a city."""
    return f"rain in {city}, 12 degrees {unit}"


class City(BaseModel):
    """A city and its country."""

    name: str = Field(max_length=40)
    country: str = Field(max_length=40)
    capital: bool


def test_an_answer(smollm2: Served) -> None:
    answer = chat(smollm2).invoke([SystemMessage("You are terse."), HumanMessage(QUESTION)])
    assert isinstance(answer, AIMessage) and answer.text
    assert answer.usage_metadata["total_tokens"] == (
        answer.usage_metadata["input_tokens"] + answer.usage_metadata["output_tokens"]
    )
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    assert answer.response_metadata["model_name"] == "smollm2"
    again = chat(smollm2, logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert "".join(part["token"] for part in again.response_metadata["logprobs"]["content"]).startswith(again.text)


def test_a_stream_says_what_the_answer_does(smollm2: Served) -> None:
    answer = chat(smollm2).invoke(QUESTION)
    chunks = list(chat(smollm2, stream_usage=True).stream(QUESTION))
    assert "".join(chunk.text for chunk in chunks) == answer.text and len(chunks) > 5
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]
    assert whole.response_metadata["finish_reason"] == answer.response_metadata["finish_reason"]


def test_batches_and_coroutines_say_the_same(smollm2: Served) -> None:
    questions = [QUESTION, "What is a whale?", "Count to five.", "Say hello."]
    one_by_one = [chat(smollm2).invoke(question).text for question in questions]
    assert [answer.text for answer in chat(smollm2).batch(questions)] == one_by_one

    async def together() -> list[str]:
        async def stream(question: str) -> str:
            return "".join([chunk.text async for chunk in chat(smollm2).astream(question)])

        return await asyncio.gather(*map(stream, questions))

    assert asyncio.run(together()) == one_by_one


def test_stop_and_n(smollm2: Served) -> None:
    whole = chat(smollm2).invoke("Count from one to ten in words.").text
    stop = whole[10:13]
    assert chat(smollm2).invoke("Count from one to ten in words.", stop=[stop]).text == whole[: whole.index(stop)]
    results = chat(smollm2, n=2).generate([[HumanMessage(QUESTION)]])
    assert len(results.generations[0]) == 2


@pytest.mark.parametrize("choice", ["any", "get_weather", "auto"])
def test_tools(qwen: Served, choice: str) -> None:
    bound = chat(qwen, max_tokens=100).bind_tools([get_weather], tool_choice=choice)
    asked = [HumanMessage("Use the tool: what is the weather in Paris?")]
    answer = bound.invoke(asked)
    if choice == "auto" and not answer.tool_calls:
        assert answer.text
        return
    call = answer.tool_calls[0]
    assert call["name"] == "get_weather" and "Paris" in call["args"]["city"] and not answer.invalid_tool_calls
    whole = None
    for chunk in bound.stream(asked):
        whole = chunk if whole is None else whole + chunk
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == [(c["name"], c["args"]) for c in answer.tool_calls]
    results = [get_weather.invoke(call) for call in answer.tool_calls]
    assert all(isinstance(result, ToolMessage) for result in results)
    last = chat(qwen).bind_tools([get_weather]).invoke([*asked, answer, *results])
    assert last.text or last.tool_calls


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_forms(qwen: Served, method: str) -> None:
    model = chat(qwen, max_tokens=200).with_structured_output(City, method=method, include_raw=True)
    answer = model.invoke("Paris, of France, as JSON with the keys name, country and capital (true or false).")
    assert answer["parsing_error"] is None, answer
    assert isinstance(answer["parsed"], City) and "Paris" in answer["parsed"].name
    if method != "json_mode":
        strict = chat(qwen, max_tokens=200).with_structured_output(City, method=method, strict=True)
        assert strict.invoke("Paris, of France.").country


def test_errors(smollm2: Served) -> None:
    with pytest.raises(ContextOverflowError):
        chat(smollm2).invoke("word " * 9000)
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        chat(smollm2, model="gpt-4").invoke(QUESTION)
    with pytest.raises(openai.BadRequestError, match="top_p"):
        chat(smollm2, top_p=7).invoke(QUESTION)
