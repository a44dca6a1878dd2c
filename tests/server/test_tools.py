"""Tools over HTTP, through the `openai` package as it comes, on a template that knows them and on one that does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from pellucid.llm import LLM
from serving import Live, running
from toymodel import TEMPLATE, toy_llm

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
OTHER = {"type": "function", "function": {"name": "now"}}
USER = [{"role": "user", "content": "l"}]
HERMES = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}" + TEMPLATE
THINKS = TEMPLATE + "<think>{# ends with </think> #}"


@pytest.fixture(scope="module", params=["hermes", "generic"])
def client(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    template = HERMES if request.param == "hermes" else TEMPLATE
    scripts = dict.fromkeys("lY<", "x" * 2000)  # with what a prompt begins, if tools are shown in it
    with toy_llm(max_seqs=8, kv_pages=256, template=template, ctx=2048, scripts=scripts) as llm, running(llm) as live:
        yield openai.OpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0)
        live.settles()


def arguments_of(call: Any) -> Any:
    assert call.id and call.type == "function"
    return json.loads(call.function.arguments)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be(client: openai.OpenAI, choice: Any) -> None:
    answer = client.chat.completions.create(
        model="toy", messages=USER, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False, seed=1
    )
    [whole] = answer.choices
    assert whole.finish_reason == "tool_calls" and whole.message.content is None
    [call] = whole.message.tool_calls
    assert call.function.name == "get_weather" and arguments_of(call)["city"] in ("Paris", "Rome")


def test_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="toy", messages=USER, tools=[TOOL, OTHER], tool_choice="required", parallel_tool_calls=False, seed=3
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    whole = client.chat.completions.create(
        model="toy", messages=USER, tools=[TOOL, OTHER], tool_choice="required", parallel_tool_calls=False, seed=3
    ).choices[0]
    assert final.finish_reason == whole.finish_reason
    streamed = [(call.function.name, call.function.arguments) for call in final.message.tool_calls]
    assert streamed == [(call.function.name, call.function.arguments) for call in whole.message.tool_calls]


def test_the_named_one_of_several_is_called_once(client: openai.OpenAI) -> None:
    """A model that would go on with the same call has made the only one that was asked for."""

    def calls(choice: Any) -> list[list[str]]:
        answer = client.chat.completions.create(
            model="toy", messages=USER, tools=[TOOL, OTHER], tool_choice=choice, max_tokens=400, n=8, seed=1
        )
        return [[call.function.name for call in one.message.tool_calls] for one in answer.choices]

    assert max(map(len, calls("required"))) > 1
    assert calls({"type": "function", "function": {"name": "get_weather"}}) == [["get_weather"]] * 8


def test_a_form_of_the_text_says_nothing_of_calls_that_must_be(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy",
        messages=USER,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        response_format={"type": "json_object"},
    )
    [call] = answer.choices[0].message.tool_calls
    assert arguments_of(call)["city"] in ("Paris", "Rome")


def test_auto_may_just_speak(client: openai.OpenAI) -> None:
    spoken = client.chat.completions.create(model="toy", messages=USER, tools=[TOOL], temperature=0, max_tokens=9)
    assert spoken.choices[0].message.content == "x" * 9 and not spoken.choices[0].message.tool_calls
    none = client.chat.completions.create(
        model="toy", messages=USER, tools=[TOOL], tool_choice="none", temperature=0, max_tokens=9
    )
    assert none.choices[0].message.content == "x" * 9


def test_a_conversation_with_calls_and_results_goes_on(client: openai.OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{broken"}}
    messages: Any = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    answer = client.chat.completions.create(model="toy", messages=messages, tools=[TOOL], temperature=0, max_tokens=5)
    assert answer.choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}]}, "lark"),
    ],
)
def test_what_is_refused(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="toy", messages=USER, extra_body=fields)
    assert error.value.param == param


def test_thoughts_are_told_apart() -> None:
    with toy_llm(template=THINKS) as llm, running(llm) as live:
        body = {"messages": [{"role": "user", "content": "a"}], "temperature": 0, "max_tokens": 100}
        message = live.post("/v1/chat/completions", body).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("apples and pears", "")
        deltas = [chunk["choices"][0]["delta"] for chunk in live.events("/v1/chat/completions", body)]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "apples and pears"
        assert not any(delta.get("content") for delta in deltas)


def test_the_real_model_answers_with_a_call(smollm2_path: Path) -> None:
    with LLM(smollm2_path, ctx=1024, threads=2) as llm, running(llm) as live:
        answer = call_of(live)
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")


def call_of(live: Live) -> Any:
    return live.post(
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
            "tools": [TOOL],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_tokens": 60,
        },
    ).json()
