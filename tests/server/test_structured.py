"""Forms of an answer over HTTP: in OpenAI's, vLLM's and llama.cpp's spellings."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from serving import Live

PATH = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["age"],
    "additionalProperties": False,
}


def ask(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "l"}], "temperature": 0, "max_tokens": 200, **more}


def content(live: Live, **more: Any) -> str:
    answer = live.post(PATH, ask(**more))
    assert answer.status_code == 200, answer.text
    assert "warnings" not in answer.json()
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": SCHEMA},
    ],
)
def test_a_schema_in_every_spelling(live: Live, fields: dict[str, Any]) -> None:
    assert json.loads(content(live, **fields))["age"] in range(10)


@pytest.mark.parametrize(
    ("form", "matches"),
    [
        ({"regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'start: "a" /b/ "c"'}, "abc"),
    ],
)
def test_other_forms(live: Live, form: dict[str, Any], matches: str) -> None:
    assert re.fullmatch(matches, content(live, structured_outputs=form))
    [(name, value)] = form.items()
    assert re.fullmatch(matches, content(live, **{f"guided_{name}": value}))
    text = live.post("/v1/completions", {"prompt": "l>", "structured_outputs": form, "max_tokens": 60}).json()
    assert re.fullmatch(matches, text["choices"][0]["text"])


def test_streams_and_several_answers(live: Live) -> None:
    chunks = live.events(PATH, ask(structured_outputs={"regex": "[a-f]{8}"}, n=3, temperature=9, seed=1))
    texts = ["", "", ""]
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert all(re.fullmatch("[a-f]{8}", text) for text in texts) and len(set(texts)) == 3


def test_text_is_no_form(live: Live) -> None:
    plain = live.post(PATH, ask(max_tokens=5)).json()["choices"][0]["message"]["content"]
    same = live.post(PATH, ask(max_tokens=5, response_format={"type": "text"})).json()
    assert same["choices"][0]["message"]["content"] == plain


def test_parse(live: Live) -> None:
    class Person(BaseModel):
        name: str = Field(max_length=6)
        age: int = Field(ge=0, le=9)

    client = openai.OpenAI(base_url=live.url + "/v1", api_key="any", max_retries=0)
    answer = client.chat.completions.parse(
        model="toy", messages=[{"role": "user", "content": "l"}], response_format=Person, temperature=5, seed=2
    )
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person) and len(person.name) <= 6


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"structured_outputs": {"regex": "(a"}}, "unclosed group"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}}, "objekt"),
        ({"response_format": {"type": "json_schema"}}, "needs json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_json": "{"}, "not JSON"),
        ({"guided_choice": []}, "1 to 1024"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "one form"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"guided_regex": "a", "min_tokens": 1}, "min_tokens"),
        ({"guided_regex": "a" * 70000}, "at most 65536"),
        ({"grammar": "root ::= 'a'"}, "grammar is not served"),
    ],
)
def test_what_is_refused(live: Live, fields: dict[str, Any], says: str) -> None:
    answer = live.post(PATH, ask(**fields))
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]
