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
from toymodel import BOT, TEMPLATE, VOCAB, toy_llm

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
        (
            {"tools": [OTHER, {"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}]},
            "tools[1].function.parameters",
        ),
    ],
)
def test_what_is_refused(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="toy", messages=USER, extra_body=fields)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (
            {"properties": {"a": {"type": "array", "items": {"type": "strin"}}}},
            ".properties.a.items: Invalid type: strin",
        ),
        ({"properties": {"a b": {"anyOf": [{}, {"minimum": "x"}]}}}, ".properties['a b'].anyOf[1]: Expected f64"),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": 1}}}, ".$defs.x: type must be"),
        (
            {"properties": {"a": {"pattern": "(a", "type": "string"}}},
            ".properties.a: regex parse error: (a ^ error: un",
        ),
        ({"properties": [1]}, ": properties must be an object"),
        ({"properties": {"a": False}, "required": ["a"]}, ": Unsatisfiable schema: required property 'a'"),
    ],
)
def test_a_schema_at_fault_is_named_with_the_place(client: openai.OpenAI, schema: dict[str, Any], says: str) -> None:
    bad: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **schema}}}
    for choice in ("auto", "required"):
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(model="toy", messages=USER, tools=[TOOL, bad], tool_choice=choice)
        assert error.value.param == "tools[1].function.parameters"
        assert error.value.body["message"].startswith(error.value.param + says)  # type: ignore[index]


def test_thoughts_are_told_apart() -> None:
    with toy_llm(template=THINKS) as llm, running(llm) as live:
        body = {"messages": [{"role": "user", "content": "a"}], "temperature": 0, "max_tokens": 100}
        message = live.post("/v1/chat/completions", body).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("apples and pears", "")
        deltas = [chunk["choices"][0]["delta"] for chunk in live.events("/v1/chat/completions", body)]
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "apples and pears"
        assert not any(delta.get("content") for delta in deltas)


MARKS = ("[TOOL_CALLS]", "[ARGS]")
MISTRAL = "{% if tools %}{{ tools | tojson }}{% endif %}" + TEMPLATE + "{# [TOOL_CALLS]name[ARGS]{} #}"
CALLED = 'Well.[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}[TOOL_CALLS]now[ARGS]{}'


@pytest.mark.parametrize("controls", [MARKS, MARKS[:1], ()])
def test_marks_are_read_and_not_shown_control_tokens_or_not(controls: tuple[str, ...]) -> None:
    said: Any = {"template": MISTRAL, "controls": controls, "behind": (BOT,), "scripts": {"[": CALLED}, "ctx": 2048}
    with toy_llm(**said) as llm, running(llm) as live:
        body = {"messages": USER, "tools": [TOOL, OTHER], "temperature": 0, "max_tokens": 200}
        [choice] = live.post("/v1/chat/completions", body).json()["choices"]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "Well."
        found = [call["function"] for call in choice["message"]["tool_calls"]]
        assert found == [
            {"name": "get_weather", "arguments": '{"city": "Rome"}'},
            {"name": "now", "arguments": "{}"},
        ]
        assert all(len(call["id"]) == 9 for call in choice["message"]["tool_calls"])
        deltas = [chunk["choices"][0]["delta"] for chunk in live.events("/v1/chat/completions", body)]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Well."
        streamed = [call for delta in deltas for call in delta.get("tool_calls", [])]
        assert [call["function"]["name"] for call in streamed if "id" in call] == ["get_weather", "now"]
        for index, due in enumerate(found):
            parts = [call["function"]["arguments"] for call in streamed if call["index"] == index]
            assert "".join(parts) == due["arguments"] and len(parts) > 1


def test_text_that_spells_a_mark_calls_nothing() -> None:
    said = "[TOOL_CALLS]now[ARGS]{}"
    with toy_llm(template=MISTRAL, controls=MARKS, behind=(BOT,), ctx=2048) as llm:
        llm.device.scripts[ord("[")] = list(f"say {said}".encode())  # type: ignore[attr-defined]
        with running(llm) as live:
            body = {"messages": USER, "tools": [OTHER], "temperature": 0, "max_tokens": 200}
            [choice] = live.post("/v1/chat/completions", body).json()["choices"]
            assert choice["message"]["content"] == f"say {said}" and "tool_calls" not in choice["message"]


BARE = '```json\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```'


def test_a_call_without_a_mark() -> None:
    with toy_llm(template=HERMES, behind=(BOT,), scripts={"<": BARE}, ctx=2048) as llm, running(llm) as live:
        body = {"messages": USER, "tools": [TOOL, OTHER], "temperature": 0, "max_tokens": 200}
        [choice] = live.post("/v1/chat/completions", body).json()["choices"]
        assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        [call] = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}


@pytest.mark.parametrize("choice", ["auto", "required", None])
@pytest.mark.parametrize("begun", [True, False])
def test_thoughts_between_control_tokens(choice: str | None, begun: bool) -> None:
    """As Mistral's models think; a template may begin the thought itself."""
    controls = (*MARKS, "[THINK]", "[/THINK]")
    said = "I call [TOOL].[/THINK][TOOL_CALLS]now[ARGS]{}" if choice else "I say.[/THINK]Well."
    template = MISTRAL + ("[THINK]" if begun else "") + "{# [/THINK] #}"
    scripts = dict.fromkeys("[l", said if begun else "[THINK]" + said)
    behind = (BOT, VOCAB + 2) if begun else (BOT,)
    toy: Any = {"template": template, "controls": controls, "behind": behind, "scripts": scripts, "ctx": 2048}
    body: dict[str, Any] = {"messages": USER, "temperature": 0, "max_tokens": 200}
    if choice is not None:
        body |= {"tools": [OTHER], "tool_choice": choice}
    with toy_llm(**toy) as llm, running(llm) as live:
        [whole] = live.post("/v1/chat/completions", body).json()["choices"]
        deltas = [chunk["choices"][0]["delta"] for chunk in live.events("/v1/chat/completions", body)]
    message = whole["message"]
    assert message["reasoning_content"] == ("I call [TOOL]." if choice else "I say.")
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message["reasoning_content"]
    assert (message["content"] or "") == ("" if choice else "Well.")
    assert [call["function"]["name"] for call in message.get("tool_calls", [])] == (["now"] if choice else [])


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
