"""A server that hides personal data from its model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from pellucid.pii.find import Finder
from serving import Live, running
from toymodel import toy_llm

ECHO = "{% for m in messages %}{{ m.content }}{% endfor %}>"
SAYS = "I wrote to [EMAIL_1] and eve@evil.org, 4111 1111 1111 1111."
SHOWN = "I wrote to bob@x.org and [EMAIL], [CARD]."
PROMPT = "a: mail bob@x.org"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with (
        toy_llm(template=ECHO, scripts={"a": SAYS}, ctx=1024, kv_pages=128) as llm,
        running(llm, inspect=True, pii=Finder()) as live,
    ):
        yield live


def seen(live: Live) -> str:
    """The text of the tokens that are recorded of the last request, its prompt's and its answer's."""
    [first, *_] = live.http.get("/inspect/requests").json()
    found = live.http.get(f"/inspect/requests/{first['id']}").text
    return "".join(json.loads(f'"{text}"') for text in re.findall(r'"text":\s*"((?:[^"\\]|\\.)*)"', found))


def test_a_completion(live: Live) -> None:
    body = {"prompt": PROMPT + ">", "max_tokens": 99, "temperature": 0, "inspect": {}}
    assert live.post("/v1/completions", body).json()["choices"][0]["text"] == SHOWN
    assert "a: mail [EMAIL_1]>" in seen(live) and "bob@x.org" not in seen(live)
    streamed = [event["choices"][0]["text"] for event in live.events("/v1/completions", body)]
    assert "".join(streamed) == SHOWN


def test_an_echo_is_the_client_s_own_text(live: Live) -> None:
    body = {"prompt": PROMPT + ">", "max_tokens": 99, "temperature": 0, "echo": True}
    assert live.post("/v1/completions", body).json()["choices"][0]["text"] == f"{PROMPT}>{SHOWN}"


def test_chats_of_every_protocol(live: Live) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    answer = live.post("/v1/chat/completions", {"messages": messages, "max_tokens": 99, "temperature": 0}).json()
    assert answer["choices"][0]["message"]["content"] == SHOWN
    answer = live.post(
        "/v1/messages", {"model": "toy", "messages": messages, "max_tokens": 99, "temperature": 0}
    ).json()
    assert answer["content"][0]["text"] == SHOWN
    answer = live.post("/v1/responses", {"input": PROMPT, "max_output_tokens": 99, "temperature": 0}).json()
    assert answer["output"][0]["content"][0]["text"] == SHOWN


def test_a_tool_gets_the_client_s_data(live: Live) -> None:
    said = {
        "type": "object",
        "properties": {"to": {"type": "string", "pattern": r"^\[EMAIL_1\]$"}},
        "required": ["to"],
        "additionalProperties": False,
    }
    body = {
        "messages": [{"role": "user", "content": "t: bob@x.org"}],
        "tools": [{"type": "function", "function": {"name": "mail", "parameters": said}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 400,
        "temperature": 0,
    }
    answer = live.post("/v1/chat/completions", body).json()
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"to": "bob@x.org"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": [97, 62]}, "prompt"),
        ({"prompt": "a>", "logprobs": 0}, "logprobs"),
        ({"prompt": "a>", "prompt_logprobs": 0}, "logprobs"),
    ],
)
def test_what_would_show_it_is_refused(live: Live, body: dict[str, object], param: str) -> None:
    answer = live.post("/v1/completions", {**body, "max_tokens": 3})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param and "--pii" in answer.json()["error"]["message"]


def test_it_is_counted(live: Live) -> None:
    live.post("/v1/completions", {"prompt": "x: 8.8.8.8 and 8.8.8.8>", "max_tokens": 1})
    assert 'pellucid:pii_hidden_total{kind="ip",model_name="toy"} 1.0' in live.http.get("/metrics").text


def test_an_error_tells_nothing_of_it(live: Live) -> None:
    answer = live.post("/v1/chat/completions", {"messages": [{"role": "bob@x.org", "content": "bob@x.org"}]})
    assert answer.status_code == 400 and "bob@x.org" not in answer.text
