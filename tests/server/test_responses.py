"""POST /v1/responses, through the `openai` package as it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from pellucid.server.choices import Piece
from pellucid.server.responses import ResponseShape, ResponsesRequest
from pellucid.text.read import Reads
from pellucid.text.reasoning import TAGS
from pellucid.text.tools import HERMES
from serving import Live, running
from toymodel import toy_llm

PATH = "/v1/responses"


@pytest.fixture(scope="module")
def client(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0)


def test_a_text(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="toy", input="a", temperature=0, metadata={"k": "v"})
    assert answer.output_text == "apples and pears" and answer.status == "completed"
    assert answer.id.startswith("resp_") and answer.output[0].type == "message" and answer.metadata == {"k": "v"}
    assert answer.store is False and answer.temperature == 0 and answer.error is None
    assert answer.usage.output_tokens == 17
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_conversation_goes_on_with_the_items_it_was_given(live: Live, client: openai.OpenAI) -> None:
    first = client.responses.create(model="toy", input="a", temperature=0, instructions="a.")
    items: Any = [
        {"role": "user", "content": "a"},
        *[item.model_dump() for item in first.output],
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
    ]
    second = client.responses.create(model="toy", input=items, temperature=0, instructions="a.")
    messages = [
        {"role": "system", "content": "a."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "apples and pears"},
        {"role": "user", "content": "b"},
    ]
    due = live.post("/v1/chat/completions", {"messages": messages, "temperature": 0}).json()
    assert second.output_text == due["choices"][0]["message"]["content"]
    assert second.usage.input_tokens == due["usage"]["prompt_tokens"]


def test_it_is_incomplete_when_cut_off(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="toy", input="a", temperature=0, max_output_tokens=3)
    assert answer.output_text == "app" and answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens" and answer.max_output_tokens == 3


def test_a_stream(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="toy", input="a", temperature=0, stream=True))
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "apples and pears"
    assert events[-1].response.output_text == "apples and pears" and events[-1].response.usage.output_tokens == 17
    with client.responses.stream(model="toy", input="b", temperature=0) as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == "one. two. three."


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored on this server"),
        ({"conversation": "c"}, "conversation", "nothing is stored on this server"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "input", "nothing is stored"),
        ({"input": [{"type": "computer_call_output", "call_id": "c"}]}, "input", "only messages"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].name", "Missing"),
        ({"tool_choice": "required"}, "tool_choice", "not there"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "needs a schema"),
        ({"truncation": "auto"}, "truncation", "is not served"),
        ({"background": True}, "background", "is not served"),
        ({"input": []}, "input", "at least 1"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than"),
    ],
)
def test_what_is_refused(live: Live, fields: dict[str, Any], param: str, says: str) -> None:
    answer = live.post(PATH, {"model": "toy", "input": "a", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param and says in error["message"]


def test_warnings(live: Live) -> None:
    answer = live.post(PATH, {"input": "a", "store": True, "colour": 1, "max_output_tokens": 1}).json()
    assert answer["warnings"] == ["store: nothing is stored on this server", "unknown field 'colour' was ignored"]
    assert "warnings" not in live.post(PATH, {"input": "a", "store": False, "max_output_tokens": 1}).json()


TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def roomy() -> Iterator[openai.OpenAI]:
    with toy_llm(ctx=1024, kv_pages=128) as llm, running(llm) as live:
        yield openai.OpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0)


def test_a_function_is_called_and_its_output_read(roomy: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "toy",
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    answer = roomy.responses.create(input="a", **options)
    [call] = answer.output
    assert answer.status == "completed" and call.type == "function_call" and call.name == "get_weather"
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    events = list(roomy.responses.create(input="a", stream=True, **options))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    [done] = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert deltas == done.arguments == call.arguments
    assert events[-1].response.output[0].arguments == call.arguments
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    turns: Any = [{"role": "user", "content": "a"}, call.model_dump(), result]
    after = roomy.responses.create(model="toy", input=turns, tools=[TOOL], max_output_tokens=3)
    without = roomy.responses.create(model="toy", input="a", tools=[TOOL], max_output_tokens=3)
    assert after.usage.input_tokens - without.usage.input_tokens > len("rain") + len("get_weather")


def test_a_form(roomy: openai.OpenAI) -> None:
    class Person(BaseModel):
        name: str = Field(max_length=6)
        age: int = Field(ge=0, le=9)

    parsed = roomy.responses.parse(model="toy", input="l", text_format=Person, temperature=0).output_parsed
    assert isinstance(parsed, Person)
    thing = roomy.responses.create(model="toy", input="l", text={"format": {"type": "json_object"}}, temperature=50)
    assert thing.status == "incomplete" or isinstance(json.loads(thing.output_text), dict)


def test_thoughts_text_and_calls_are_items_of_their_own() -> None:
    text = '<think>hm</think>\n\nWell.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    usage: Any = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "prompt_tokens_details": {}}
    body = ResponsesRequest(input="a")
    streamed = ResponseShape("resp_1", 0, "toy", body, Reads(HERMES, thoughts=TAGS[0], tools=({"name": "f"},)))
    chunks = streamed.begin(usage)
    chunks += streamed.chunks([Piece(0, char) for char in text] + [Piece(0, "", [], "stop")], lambda: usage)
    chunks += streamed.end(usage)
    kinds = ["reasoning", "message", "function_call"]
    assert [c["item"]["type"] for c in chunks if c["type"] == "response.output_item.added"] == kinds
    assert [c["item"]["type"] for c in chunks if c["type"] == "response.output_item.done"] == kinds
    whole = ResponseShape("resp_1", 0, "toy", body, Reads(HERMES, thoughts=TAGS[0], tools=({"name": "f"},)))
    answer = whole.whole([Piece(0, text, [], "stop")], usage)
    final = chunks[-1]["response"]
    for response in (answer, final):
        thought, message, call = response["output"]
        assert thought["content"][0]["text"] == "hm" and message["content"][0]["text"] == "Well."
        assert call["arguments"] == '{"a": 1}' and {item["status"] for item in response["output"]} == {"completed"}
