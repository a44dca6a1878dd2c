"""`instructor`, as it comes: a model of pydantic's by each of its modes, asked again after a fault, and in parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import instructor
import openai
import pytest
from instructor.core import InstructorRetryException
from pydantic import BaseModel, Field, field_validator

from .conftest import Served

ASKED: Any = [{"role": "user", "content": "Jason is 25 years old and lives in Rome. Answer in JSON."}]
MODES = [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON]


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)


def client(served: Served, mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(openai.OpenAI(base_url=served.v1, api_key="any", max_retries=0), mode=mode)


def options(served: Served) -> dict[str, Any]:
    return {"model": served.model, "messages": ASKED, "temperature": 0, "max_tokens": 120}


@pytest.mark.parametrize("mode", MODES)
def test_a_model(qwen: Served, mode: instructor.Mode) -> None:
    person, raw = client(qwen, mode).create_with_completion(response_model=Person, **options(qwen))
    assert (person.name, person.age) == ("Jason", 25) and raw.usage.completion_tokens > 0
    assert mode != instructor.Mode.TOOLS or len(raw.choices[0].message.tool_calls) == 1


def test_a_model_by_responses(qwen: Served) -> None:
    asked = {key: value for key, value in options(qwen).items() if key != "max_tokens"}
    person = client(qwen, instructor.Mode.RESPONSES_TOOLS).create(
        response_model=Person, max_output_tokens=120, max_retries=0, **asked
    )
    assert (person.name, person.age) == ("Jason", 25)


@pytest.mark.parametrize("mode", MODES)
def test_asked_again(qwen: Served, mode: instructor.Mode) -> None:
    """The first answer is refused; the next request brings it, what is wrong with it, and often a tool's message."""
    seen: list[str] = []

    class Fussy(Person):
        @field_validator("name")
        @classmethod
        def _not_at_first(cls, name: str) -> str:
            seen.append(name)
            if len(seen) == 1:
                raise ValueError("say it again")
            return name

    person = client(qwen, mode).create(response_model=Fussy, max_retries=3, **options(qwen))
    assert person.age == 25 and len(seen) >= 2


@pytest.mark.parametrize("mode", MODES)
def test_never_good_enough(qwen: Served, mode: instructor.Mode) -> None:
    class Never(Person):
        @field_validator("age")
        @classmethod
        def _never(cls, age: int) -> int:
            raise ValueError("no")

    with pytest.raises(InstructorRetryException) as failed:
        client(qwen, mode).create(response_model=Never, max_retries=2, **options(qwen))
    assert failed.value.n_attempts == 3


@pytest.mark.parametrize("mode", MODES)
def test_in_parts(qwen: Served, mode: instructor.Mode) -> None:
    parts = list(client(qwen, mode).create_partial(response_model=Person, **options(qwen)))
    assert len(parts) > 1 and parts[-1].name == "Jason" and parts[-1].age == 25


def test_several(qwen: Served) -> None:
    found: Iterable[Person] = client(qwen, instructor.Mode.TOOLS).create_iterable(
        response_model=Person,
        **{**options(qwen), "messages": [{"role": "user", "content": "Ann is 30, Bob is 41."}]},
    )
    assert {person.name for person in found} & {"Ann", "Bob"}


def test_a_coroutine(qwen: Served) -> None:
    async def go() -> Person:
        async with openai.AsyncOpenAI(base_url=qwen.v1, api_key="any") as plain:
            return await instructor.from_openai(plain).create(response_model=Person, **options(qwen))

    assert asyncio.run(go()).age == 25


def test_a_model_without_tools_has_them_too(smollm2: Served) -> None:
    """Its template knows none, and the form holds it to the schema all the same."""
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        assert client(smollm2, mode).create(response_model=Person, max_retries=0, **options(smollm2)).name
