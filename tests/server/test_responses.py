"""POST /v1/responses, through the `openai` package as it comes."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from serving import Live

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
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]}, "input", "only messages"),
        ({"tools": [{"type": "web_search"}]}, "tools", "is not served"),
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
