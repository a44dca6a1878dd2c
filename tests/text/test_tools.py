"""Tool calls and thoughts: what a grammar lets through is what is read, however the text comes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid import Grammar, SamplingParams
from pellucid.llm import LLM
from pellucid.text.callgrammar import grammar
from pellucid.text.calls import Calls
from pellucid.text.marks import NONCHARACTERS, Marks
from pellucid.text.read import Reader, Reads
from pellucid.text.reasoning import TAGS, Reasoning, Tags, tags_of, unfinished
from pellucid.text.toolprompt import shown
from pellucid.text.tools import GENERIC, HERMES, JSON, LLAMA3, MISTRAL, MISTRAL_NAMED, Style, style_of
from toymodel import VOCAB, script_ids, toy_llm

STYLES = [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA3, JSON, GENERIC]
MARKED = [style for style in STYLES if style.begin]
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
NAMES = ("get_weather", "now", "f", "g")
PLAIN = Marks((), {})
CONTROLS = ("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>")

each_style = pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)


def read(style: Style, chunks: Iterable[str]) -> tuple[str, list[tuple[str, str]]]:
    calls, chunks = Calls(style, NAMES), list(chunks)
    content, found = "", dict[int, list[str]]()
    for i, chunk in enumerate(chunks):
        new = calls.push(chunk, final=i == len(chunks) - 1)
        content += new.content
        for delta in new.calls:
            assert bool(delta.id) == bool(delta.name) == (delta.index not in found)
            entry = found.setdefault(delta.index, ["", ""])
            entry[0] += delta.name
            entry[1] += delta.arguments
    assert list(found) == list(range(calls.count))
    return content, [(name, arguments) for name, arguments in found.values()]


def pieces(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)] or [""]


def readings(style: Style, text: str) -> tuple[str, list[tuple[str, str]]]:
    """What is read of a text, which does not depend on how it comes."""
    whole = read(style, [text])
    for at in range(len(text)):
        assert read(style, [text[:at], text[at:]]) == whole
    for size in (1, 2, 3, 7):
        assert read(style, pieces(text, size)) == whole
    return whole


@pytest.fixture(scope="module")
def llm() -> Iterable[LLM]:
    with toy_llm(max_seqs=8, controls=CONTROLS) as llm:
        yield llm


@pytest.mark.parametrize("parallel", [True, False])
@each_style
def test_what_must_be_calls_is_calls(llm: LLM, style: Style, parallel: bool) -> None:
    """A model that says anything calls what there is, with arguments that their schema allows."""
    form = Grammar.lark(grammar(style, TOOLS, required=True, parallel=parallel, marks=PLAIN))
    names = set()
    params = [SamplingParams(temperature=100, seed=seed, max_tokens=400, grammar=form) for seed in range(8)]
    for seed, result in enumerate(llm.generate(["l>"] * 8, params, progress=False)):
        output = result.outputs[0]
        content, calls = read(style, pieces(output.text, 1 + seed))
        assert content == "" and (len(calls) >= 1 if parallel and not style.single else len(calls) == 1)
        for i, (name, arguments) in enumerate(calls):
            if i == len(calls) - 1 and output.finish_reason == "length":
                break
            value = json.loads(arguments)
            assert value == {} if name == "now" else set(value) == {"city", "days"}
            names.add(name)
    assert names == {"now", "get_weather"}


def follow(llm: LLM, form: str, tokens: Sequence[int]) -> int:
    """How many of the tokens a grammar lets through."""
    matcher = llm.matcher(SamplingParams(grammar=Grammar.lark(form)))
    assert matcher is not None
    for i, token in enumerate(tokens):
        matcher.fill()
        if not matcher.mask[token >> 5] >> (token & 31) & 1:
            return i
        matcher.accept(token)
    return len(tokens)


ARGUMENTS = '{"city": "é 🌧️", "days": []}'
OBJECT = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
NOW = '{"name": "now", "arguments": {}}'
WRITTEN = {
    "hermes": f"Well.\n\n<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>",
    "mistral": f"Well.\n\n[TOOL_CALLS][{OBJECT}, {NOW}]",
    "mistral-named": f"Well.\n\n[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}[TOOL_CALLS]now[ARGS]{{}}",
    "llama3": f"Well.\n\n<|python_tag|>{OBJECT.replace('arguments', 'parameters')}",
    "generic": f"Well.\n\n<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>",
}


@pytest.mark.parametrize("coded", [True, False], ids=["control tokens", "text"])
@pytest.mark.parametrize("style", MARKED, ids=lambda style: style.name)
def test_text_is_free_until_it_begins_a_call(llm: LLM, style: Style, coded: bool) -> None:
    ids = {spelling: VOCAB + i for i, spelling in enumerate(CONTROLS)} if coded else {}
    marks = Marks((style.begin, style.separator, style.end), ids)
    text = WRITTEN[style.name]
    form = grammar(style, TOOLS, required=False, parallel=True, marks=marks)
    tokens = script_ids(text, ids)
    assert follow(llm, form, tokens) == len(tokens)
    begun = script_ids(text[: text.index('"city"')], ids)
    assert follow(llm, form, [*begun, *b'"town"']) == len(begun) + 1
    assert follow(llm, form, script_ids('Well, {"name": "get_weather", "arguments": [', ids)) == 44
    calls = [("get_weather", ARGUMENTS), *([] if style.single else [("now", "{}")])]
    reader = Reader(Reads(style, marks, tools=tuple(TOOLS)))
    said = reader.push(marks.coded(text), final=True)
    assert said.content == "Well." and [call.name for call in said.calls if call.id] == [name for name, _ in calls]
    assert readings(style, text) == ("Well.", calls)
    if not style.single:
        one = grammar(style, TOOLS, required=False, parallel=False, marks=marks)
        assert follow(llm, one, tokens) < len(tokens)


BARE = [
    OBJECT,
    OBJECT.replace("arguments", "parameters"),
    OBJECT.replace(" ", "").replace("é🌧", "é 🌧"),
    f"\n ```json\n{OBJECT}\n```",
    f"```\n{OBJECT}```",
    f'{{"type": "function", "name": "get_weather",\n  "parameters":\n{ARGUMENTS}\n}}',
]


@each_style
def test_where_an_answer_begins_a_call_needs_no_mark(llm: LLM, style: Style) -> None:
    """As Qwen's coders and Llama 3 write them."""
    for text in BARE:
        content, [(name, arguments)] = readings(style, text)
        assert content == "" and name == "get_weather" and json.loads(arguments) == json.loads(ARGUMENTS)
        form = grammar(style, TOOLS, required=False, parallel=False, marks=PLAIN)
        assert follow(llm, form, text.encode()) == len(text.encode())
        begun = text[: text.index('"city"')].encode()
        assert follow(llm, form, [*begun, *b'"town"']) == len(begun) + 1
    for between in ("\n", "; ", ""):
        text = f"{OBJECT}{between}{NOW}"
        assert readings(style, text) == ("", [("get_weather", ARGUMENTS), ("now", "{}")])
        many = grammar(style, TOOLS, required=False, parallel=True, marks=PLAIN)
        assert (follow(llm, many, text.encode()) == len(text.encode())) is not style.single


@each_style
def test_text_that_is_no_call_is_all_there(llm: LLM, style: Style) -> None:
    form = grammar(style, TOOLS, required=False, parallel=True, marks=PLAIN)
    texts = [
        "", " ", "<tool", "a < b\n", "{", '{"nam', '{"name": "x", "arguments": {}}', '{"name": "Ann", "age": 3}',
        '{"name": "f", "arguments": 1}', "[TOOL", " x ", "```json\n{}\n```", '{"name"' + " " * 20 + ': "f"',
        f"See: {OBJECT}", f"{{}} {OBJECT}", '["name"]',
    ]  # fmt: skip
    for text in texts:
        assert readings(style, text) == (text, [])
        assert follow(llm, form, text.encode()) == len(text.encode())
    if style.begin:  # these a grammar lets no model say
        for text in (style.begin, style.begin + " nothing", f"a  {style.begin}\n{{}}", f"{style.begin}{style.begin}x"):
            assert readings(style, text) == (text, [])


@pytest.mark.parametrize("style", MARKED, ids=lambda style: style.name)
def test_an_answer_may_be_cut_off_anywhere(style: Style) -> None:
    """Cut off within its arguments a call is told as far as it came; what is no call yet is content."""
    text = WRITTEN[style.name]
    for end in range(len(text)):
        content, calls = readings(style, text[:end]) if end % 9 == 0 else read(style, pieces(text[:end], 5))
        if not calls:
            assert content == text[:end]
            continue
        assert content.startswith("Well.") and calls[0][0] == "get_weather" and ARGUMENTS.startswith(calls[0][1])
        assert text[:end].endswith(content[5:])
        assert [arguments for _, arguments in calls[1:]] in ([], ["{"], ["{}"])


@each_style
@given(data=st.data())
def test_any_text_in_any_pieces_reads_alike(style: Style, data: st.DataObject) -> None:
    parts = [style.begin, style.end, style.separator, "f", '"', "{", "}", "[", "]", ",", ":", " ", "\n", "\\", "é", ";"]
    parts += ['{"name": "f", "arguments": ', '{"name":"g","parameters":{}}', "```", "```json", "}}", '{"a": "}"}', "x"]
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=14)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    chunks = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(style, chunks) == read(style, [text])


def test_text_behind_calls_keeps_its_spaces() -> None:
    text = f"<tool_call>\n{NOW}\n</tool_call>\n\n That  is \n all "
    assert readings(HERMES, text) == ("That  is \n all ", [("now", "{}")])


TEMPLATES: list[tuple[str, Style]] = [
    (  # Qwen's: the marks, and JSON whose quotes are escaped
        """{%- if tools %}{{- "<|im_start|>system\\nWithin <tools></tools>:" }}{%- for tool in tools %}
        {{- tool | tojson }}{%- endfor %}{{- "return a json object within <tool_call></tool_call>:\\n<tool_call>\\n
        {\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>" }}{%- endif %}""",
        HERMES,
    ),
    (  # Mistral's, up to v7
        """{%- if message.tool_calls %}{{- "[TOOL_CALLS][" }}{%- for call in message.tool_calls %}
        {{- call.function | tojson }}{%- endfor %}{{- "]" + eos_token }}{%- endif %}""",
        MISTRAL,
    ),
    (  # and since v11
        """{%- for tool in message.tool_calls %}{{- "[TOOL_CALLS]" + tool.function.name + "[ARGS]"
        + tool.function.arguments | tojson }}{%- endfor %}""",
        MISTRAL_NAMED,
    ),
    (  # Llama 3.1's
        """{%- if tools is not none %}{{- 'Respond in the format {"name": function name, "parameters": dictionary of
        argument name and its value}. Do not use variables.' }}{%- for t in tools %}{{- t | tojson(indent=4) }}
        {%- endfor %}{%- endif %}{{- '{"name": "' + call.name + '", ' }}{{- '"parameters": ' }}""",
        LLAMA3,
    ),
    (
        """{% if tools %}Answer {"name": "the tool's", "arguments": {}}. {{ tools | tojson }}{% endif %}""",
        JSON,
    ),
    # Calls of other forms, of which this template would tell the model.
    ("{% for tool in tools %}{{ tool }}{% endfor %}<tool_call>\n<function=name>\n<parameter=a>", GENERIC),
    ("{% for tool in tools %}{{ tool }}{% endfor %}<tool_call>name\n<arg_key>a</arg_key>", GENERIC),
    ("{% if tools %}{{ tools }}{% endif %}", GENERIC),
    ("{% for m in messages %}{{ m.content }}{% endfor %}", GENERIC),
]


@pytest.mark.parametrize(("template", "style"), TEMPLATES)
def test_the_template_tells_the_style(template: str, style: Style) -> None:
    assert style_of(template) is style


def test_control_tokens_are_not_the_text_that_spells_them() -> None:
    marks = Marks(["[TOOL_CALLS]", "[ARGS]x"], {"[TOOL_CALLS]": 7, "[ARGS]": 8, "[OTHER]": 9})
    assert sorted(marks.shown) == [7, 8] and set(marks.shown.values()) < set(NONCHARACTERS)
    coded = marks.coded("a[TOOL_CALLS]b[ARGS]")
    assert coded == f"a{marks.shown[7]}b{marks.shown[8]}" and marks.spelled(coded) == "a[TOOL_CALLS]b[ARGS]"
    assert marks.parts("a[TOOL_CALLS][ARGS]x") == ["a", 7, 8, "x"]
    reads = Reads(MISTRAL, marks, tools=({"name": "f"},))
    text = 'say [TOOL_CALLS][{"name": "f", "arguments": {}}]'
    spelled = Reader(reads).push(text, final=True)
    assert spelled.content == text and not spelled.calls
    meant = Reader(reads).push(marks.coded(text), final=True)
    assert meant.content == "say" and meant.calls[0].name == "f"
    no_call = Reader(reads).push(marks.coded("say [TOOL_CALLS] nothing"), final=True)
    assert no_call.content == "say [TOOL_CALLS] nothing" and not no_call.calls


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
    for tags in TAGS:
        spelled = [
            part.replace("<think>\n", "<think>").replace("<think>", tags.open).replace("</think>", tags.close)
            for part in (text, prompt_end, *due)
        ]
        if tags is not TAGS[0] and (text == " <thin" or "</thinks" in text):
            continue
        for size in (*range(1, 12), 100):
            reasoning, thought, answer = Reasoning(tags, tags.begun(spelled[1])), "", ""
            parts = pieces(spelled[0], size)
            for i, part in enumerate(parts):
                more, rest = reasoning.push(part, final=i == len(parts) - 1)
                thought, answer = thought + more, answer + rest
            assert (thought, answer) == (spelled[2], spelled[3])


def test_marks_of_thoughts() -> None:
    assert tags_of("{% if '</think>' in content %}") is TAGS[0]
    assert tags_of("{{ '[THINK]' + t + '[/THINK]' }}") == Tags("[THINK]", "[/THINK]")
    assert tags_of("<seed:think>{{ t }}</seed:think>") == Tags("<seed:think>", "</seed:think>")
    assert tags_of("<|channel>thought\n{{ t }}<channel|>") == Tags("<|channel>thought\n", "<channel|>")
    assert tags_of("think about it") is None and tags_of("") is None
    assert unfinished("a <th", "<think>") == 4 and unfinished("a", "<think>") == 0 and unfinished("", "<") == 0


THINKING = ("[THINK]", "[/THINK]", "<|channel>", "<channel|>")


@pytest.mark.parametrize("coded", [True, False], ids=["control tokens", "text"])
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("tags", [TAGS[0], TAGS[1], TAGS[6]], ids=lambda tags: tags.open.strip())
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
def test_a_call_comes_behind_a_thought_not_in_it(style: Style, tags: Tags, required: bool, coded: bool) -> None:
    ids = {spelling: VOCAB + i for i, spelling in enumerate(THINKING)} if coded else {}
    marks = Marks((style.begin, style.separator, style.end, tags.open, tags.close), ids)
    written = WRITTEN.get(style.name, OBJECT).removeprefix("Well.\n\n")
    written = written.removeprefix("<|python_tag|>") if style.bare else written
    inside = f'I could write {style.begin} or {{"name": "now", "arguments": [ here. '
    with toy_llm(controls=THINKING) as llm:
        for thinking in (True, False):
            form = grammar(
                style, TOOLS, required=required, parallel=True, marks=marks, thoughts=tags, thinking=thinking
            )
            text = f"{'' if thinking else tags.open}{inside}{tags.close}\n\n{written}"
            assert follow(llm, form, script_ids(text, ids)) == len(script_ids(text, ids))
            said = Reader(Reads(style, marks, tags, thinking, tools=tuple(TOOLS))).push(marks.coded(text), final=True)
            assert (said.reasoning, said.content) == (inside.strip(), "")
            assert next(call.name for call in said.calls if call.id) == "get_weather"
            begun = script_ids(text[: text.index('"city"')], ids)
            assert follow(llm, form, [*begun, *b'"town"']) == len(begun) + 1
            if not thinking:
                assert follow(llm, form, script_ids(written, ids)) == len(script_ids(written, ids))


def test_thoughts_and_calls_together() -> None:
    offered = tuple(TOOLS)
    reader = Reader(Reads(HERMES, thoughts=TAGS[0], tools=offered))
    said = reader.push("<think>hm</think>\n\n" + WRITTEN["hermes"], final=True)
    assert (said.reasoning, said.content, [call.index for call in said.calls if call.id]) == ("hm", "Well.", [0, 1])
    assert reader.called
    alone = Reader(Reads(HERMES, one_call=True, tools=offered)).push(WRITTEN["hermes"], final=True)
    assert {call.index for call in alone.calls} == {0}
