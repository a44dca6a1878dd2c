"""Tool calls and thoughts: what a grammar lets through is what is read, however the text comes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from pellucid import Grammar, SamplingParams
from pellucid.text.read import Reader, Reads
from pellucid.text.reasoning import Reasoning, thinks, unfinished
from pellucid.text.tools import GENERIC, HERMES, LLAMA3, MISTRAL, Calls, Style, grammar, shown, style_of
from toymodel import toy_llm

STYLES = [HERMES, MISTRAL, LLAMA3, GENERIC]
CITY = {
    "type": "object",
    "properties": {
        "city": {"enum": ['a}"{\\', "é 🌧️"]},
        "days": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"name": "get_weather", "parameters": CITY},
    {"name": "now", "parameters": {"properties": {}, "additionalProperties": False}},
]


def read(style: Style, chunks: Iterable[str]) -> tuple[str, list[tuple[str, str]]]:
    calls, chunks = Calls(style), list(chunks)
    content, found = "", dict[int, list[str]]()
    for i, chunk in enumerate(chunks):
        new = calls.push(chunk, final=i == len(chunks) - 1)
        content += new.content
        for delta in new.calls:
            entry = found.setdefault(delta.index, ["", ""])
            entry[0] += delta.name
            entry[1] += delta.arguments
            assert bool(delta.id) == bool(delta.name)
    return content, [(name, arguments) for name, arguments in found.values()]


def pieces(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)] or [""]


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_what_must_be_calls_is_calls(style: Style, parallel: bool) -> None:
    """A model that says anything calls what there is, with arguments that their schema allows."""
    form = Grammar.lark(grammar(style, TOOLS, required=True, parallel=parallel, control=lambda text: None))
    names = set()
    with toy_llm(max_seqs=8) as llm:
        for seed in range(8):
            params = SamplingParams(temperature=100, seed=seed, max_tokens=400, grammar=form)
            output = llm.generate("l>", params)[0].outputs[0]
            content, calls = read(style, pieces(output.text, 1 + seed))
            assert content == "" and (len(calls) >= 1 if parallel else len(calls) == 1)
            for i, (name, arguments) in enumerate(calls):
                if i == len(calls) - 1 and output.finish_reason == "length":
                    break
                value = json.loads(arguments)
                assert value == {} if name == "now" else set(value) == {"city", "days"}
                names.add(name)
    assert names == {"now", "get_weather"}


WRITTEN = {
    "hermes": 'Well.\n\n<tool_call>\n{"name": "f", "arguments": {"a": "}{\\"]"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
    "mistral": 'Well.\n\n[TOOL_CALLS][{"name": "f", "arguments": {"a": "}{\\"]"}}, {"name": "g", "arguments": {}}]',
    "llama3": 'Well.\n\n{"name": "f", "parameters": {"a": "}{\\"]"}}',
}


@pytest.mark.parametrize("style", STYLES[:3], ids=lambda style: style.name)
def test_however_the_text_comes_the_same_is_read(style: Style) -> None:
    text = WRITTEN[style.name]
    due = ("Well.", [("f", '{"a": "}{\\"]"}'), *([("g", "{}")] if style is not LLAMA3 else [])])
    for size in (*range(1, 14), 1000):
        assert read(style, pieces(text, size)) == due
    rng = random.Random(1)
    for _ in range(50):
        cuts = sorted(rng.sample(range(len(text)), 6))
        assert read(style, [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == due


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_text_that_is_no_call_is_all_there(style: Style) -> None:
    for text in ("<tool", "a < b\n", "{", '{"nam', "[TOOL", " x ", style.begin + " nothing"):
        for size in (1, 2, 100):
            content, calls = read(style, pieces(text, size))
            assert not calls
            assert content.replace(" ", "") == text.replace(" ", "")


def test_a_call_that_is_cut_off_is_told_as_far_as_it_came() -> None:
    text = WRITTEN["hermes"].partition("{\\")[0]
    assert read(HERMES, pieces(text, 3)) == ("Well.", [("f", '{"a": "}')])


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ("{{ '<tool_call>' }}", HERMES),
        ("[TOOL_CALLS]", MISTRAL),
        ('{% if tools %}{"name": x, "parameters": y}{% endif %}', LLAMA3),
        ("{{ messages }}", GENERIC),
    ],
)
def test_the_template_tells_the_style(template: str, style: Style) -> None:
    assert style_of(template) is style


def test_for_a_template_without_tools_they_are_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "r1", "tool_call_id": "1"},
        {"role": "tool", "content": "r2", "tool_call_id": "1"},
    ]
    system, user, assistant, results = shown(messages, [{"name": "f", "description": "d", "parameters": {}}])
    assert system["role"] == "system" and '{"name": "f", "description": "d", "parameters": {}}' in system["content"]
    assert user == {"role": "user", "content": "u"}
    assert read(GENERIC, [assistant["content"]]) == ("", [("f", '{"a": 1}')] * 2)
    assert results["role"] == "user" and results["content"].count("<tool_response>") == 2
    first = shown([{"role": "system", "content": "s"}], [{"name": "f"}])
    assert len(first) == 1 and first[0]["content"].startswith("s\n\nYou may call")


@pytest.mark.parametrize(
    ("text", "prompt_end", "due"),
    [
        ("<think>\nabc </think>\n\nYes <think>", "", ("abc", "Yes <think>")),
        ("abc</think>Yes", "<think>\n", ("abc", "Yes")),
        ("no thought", "", ("", "no thought")),
        (" <thin", "", ("", " <thin")),
        ("<think>abc", "", ("abc", "")),
        ("<think></think>a", "", ("", "a")),
        ("a </thinks", "<think>", ("a </thinks", "")),
        ("", "", ("", "")),
    ],
)
def test_thoughts(text: str, prompt_end: str, due: tuple[str, str]) -> None:
    for size in (*range(1, 12), 100):
        reasoning, thought, answer = Reasoning(prompt_end), "", ""
        parts = pieces(text, size)
        for i, part in enumerate(parts):
            more, rest = reasoning.push(part, final=i == len(parts) - 1)
            thought, answer = thought + more, answer + rest
        assert (thought, answer) == due


def test_marks() -> None:
    assert thinks("… </think> …") and not thinks("") and not thinks(None)
    assert unfinished("a <th", "<think>") == 4 and unfinished("a", "<think>") == 0 and unfinished("", "<") == 0


def test_thoughts_and_calls_together() -> None:
    reader = Reader(Reads(HERMES, thoughts=True))
    said = reader.push("<think>hm</think>\n\n" + WRITTEN["hermes"], final=True)
    assert (said.reasoning, said.content, len(said.calls)) == ("hm", "Well.", 4) and reader.called
    alone = Reader(Reads(HERMES, one_call=True)).push(WRITTEN["hermes"], final=True)
    assert {call.index for call in alone.calls} == {0}
