"""The `anthropic` package, as it comes: calls, streams, counts, and errors by class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from serving import Live, running
from toymodel import toy_llm

PATH = "/v1/messages"
USER = [{"role": "user", "content": "a"}]
GREEDY = {"temperature": 0}
"""The package knows no temperature any more; older ones and other clients send it."""


@pytest.fixture(scope="module")
def client(live: Live) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=live.url, api_key="any", max_retries=0)


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="toy", messages=USER, max_tokens=50, extra_body=GREEDY)
    assert message.id.startswith("msg_") and message.role == "assistant" and message.model == "toy"
    assert [block.text for block in message.content] == ["apples and pears"]
    assert message.stop_reason == "end_turn" and message.stop_sequence is None
    assert message.usage.output_tokens == 17
    counted = client.messages.count_tokens(model="toy", messages=USER)
    cached = message.usage.cache_read_input_tokens
    assert counted.input_tokens == message.usage.input_tokens + cached


def test_parts_and_the_system(client: anthropic.Anthropic) -> None:
    parts = [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    system = [{"type": "text", "text": "Speak."}]
    message = client.messages.create(
        model="toy", messages=[{"role": "user", "content": parts}], system=system, max_tokens=50, extra_body=GREEDY
    )
    assert message.content[0].type == "text" and message.stop_reason == "end_turn"
    plain = client.messages.count_tokens(model="toy", messages=[{"role": "user", "content": "b"}])
    more = client.messages.count_tokens(model="toy", messages=[{"role": "user", "content": parts}], system=system)
    assert more.input_tokens - plain.input_tokens == len("Speak.")


@pytest.mark.parametrize(
    ("options", "text", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "app", "max_tokens", None),
        ({"max_tokens": 50, "stop_sequences": [" and"]}, "apples", "stop_sequence", " and"),
    ],
)
def test_ends(
    client: anthropic.Anthropic, options: dict[str, Any], text: str, reason: str, sequence: str | None
) -> None:
    whole = client.messages.create(model="toy", messages=USER, extra_body=GREEDY, **options)
    with client.messages.stream(model="toy", messages=USER, extra_body=GREEDY, **options) as stream:
        assert "".join(stream.text_stream) == text
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert message.content[0].text == text
        assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
        assert message.usage.output_tokens == whole.usage.output_tokens


def test_events(live: Live) -> None:
    body = {"model": "toy", "messages": USER, "max_tokens": 50, "temperature": 0, "stream": True, "colour": 1}
    response = live.post(PATH, body)
    names = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    assert names[:2] == ["message_start", "content_block_start"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "[DONE]" not in response.text and response.text.count("unknown field 'colour'") == 1


def test_errors_by_class(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="claude", messages=USER, max_tokens=1)
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="maximum context length is 512 tokens"):
        client.messages.create(model="toy", messages=[{"role": "user", "content": "a" * 600}], max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="messages: the last must be the user's"):
        client.messages.create(model="toy", messages=[*USER, {"role": "assistant", "content": "a"}], max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="asks for a tool that is not there"):
        client.messages.create(model="toy", messages=USER, max_tokens=1, tool_choice={"type": "any"})
    with pytest.raises(anthropic.BadRequestError, match="image"):
        parts: Any = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]
        client.messages.create(model="toy", messages=[{"role": "user", "content": parts}], max_tokens=1)


def test_the_most_turns_and_a_system_text_are_no_fault_of_ours(live: Live) -> None:
    turns = [{"role": "user", "content": ""}] * 4096
    answer = live.post("/v1/messages/count_tokens", {"messages": turns, "system": "s"})
    assert answer.status_code == 400 and "maximum context length is 512 tokens" in answer.json()["error"]["message"]


def test_a_key_as_anthropic_sends_it() -> None:
    key = "a-key-of-some-length"
    with toy_llm() as llm, running(llm, api_key=key) as live:
        client = anthropic.Anthropic(base_url=live.url, api_key=key, max_retries=0)
        assert (
            client.messages.create(model="toy", messages=USER, max_tokens=4, extra_body=GREEDY).content[0].text
            == "appl"
        )
        with pytest.raises(anthropic.AuthenticationError, match="Incorrect API key"):
            client.with_options(api_key="another-key").messages.create(model="toy", messages=USER, max_tokens=4)
        live.settles()


TOOL = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def roomy() -> Iterator[anthropic.Anthropic]:
    with toy_llm(ctx=1024, kv_pages=128) as llm, running(llm) as live:
        yield anthropic.Anthropic(base_url=live.url, api_key="any", max_retries=0)


def test_a_tool_is_called_and_its_result_read(roomy: anthropic.Anthropic) -> None:
    options: dict[str, Any] = {
        "model": "toy",
        "max_tokens": 400,
        "tools": [TOOL],
        "tool_choice": {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
        "extra_body": GREEDY,
    }
    message = roomy.messages.create(messages=USER, **options)
    [call] = message.content
    assert message.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "get_weather"
    assert call.input["city"] in ("Paris", "Rome")
    with roomy.messages.stream(messages=USER, **options) as stream:
        streamed = stream.get_final_message()
    assert [(block.type, block.name, block.input) for block in streamed.content] == [(call.type, call.name, call.input)]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    turns: Any = [*USER, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    after = roomy.messages.count_tokens(model="toy", messages=turns, tools=[TOOL])
    without = roomy.messages.count_tokens(model="toy", messages=USER, tools=[TOOL])
    assert after.input_tokens - without.input_tokens > len("rain") + len("get_weather")
    assert roomy.messages.create(model="toy", messages=turns, max_tokens=5, tools=[TOOL]).content


def test_text_before_a_call_is_a_block_of_its_own(live: Live) -> None:
    from pellucid.server.anthropic import MessageShape
    from pellucid.server.choices import Piece
    from pellucid.text.read import Reads
    from pellucid.text.tools import HERMES

    text = 'Well.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    usage: Any = {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    shape = MessageShape("msg_1", "toy", [], Reads(HERMES, tools=({"name": "f"},)))
    chunks = shape.chunks([Piece(0, char) for char in text] + [Piece(0, "", [], "stop")], lambda: usage)
    chunks += shape.end(usage)
    assert [(c["index"], c["content_block"]["type"]) for c in chunks if c["type"] == "content_block_start"] == [
        (0, "text"),
        (1, "tool_use"),
    ]
    assert [c["index"] for c in chunks if c["type"] == "content_block_stop"] == [0, 1]
    parts = [c["delta"] for c in chunks if c["type"] == "content_block_delta"]
    assert "".join(part.get("text", "") for part in parts) == "Well."
    assert "".join(part.get("partial_json", "") for part in parts) == '{"a": 1}'
    assert chunks[-2]["delta"]["stop_reason"] == "tool_use"
