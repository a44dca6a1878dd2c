"""Text from a tiny model of each family through `LLM`: prompts of text, streams, and conversations."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ggufconvert import convert
from pellucid.errors import RequestError
from pellucid.llm import LLM
from pellucid.sampling.params import SamplingParams

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = {p.parent.name: p.parent for kind in ("tiny", "families") for p in (GOLDEN / kind).glob("*/config.json")}
PROMPTS = ["t5 t9 t20 t7", "t3", "t90 t11 t11 t11 t40 t8"]
TEMPLATE = "{% for m in messages %}<s> t4 {{ m.content }} </s> {% endfor %}t6"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
LIVELY = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=12, seed=7)


@pytest.mark.covers("text", "name")
@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_text_comes_out_and_streams_alike(name: str) -> None:
    with LLM(FOLDERS[name], threads=1, ctx=48) as llm:
        for params in (GREEDY, LIVELY):
            whole = llm.generate(PROMPTS, params)
            assert any(result.outputs[0].text.strip() for result in whole)  # one may end at once
            for prompt, result in zip(PROMPTS, whole, strict=True):
                answer = result.outputs[0]
                assert answer.finish_reason in ("length", "stop")
                assert llm.detokenize(answer.token_ids).split() == answer.text.split()
                chunks = [chunk.text for chunk in llm.stream(prompt, params)]
                assert "".join(chunks) == answer.text
        assert llm.template.source is None
        with pytest.raises(RequestError, match="has no chat template"):
            llm.chat([{"role": "user", "content": "t5"}], GREEDY)


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_a_conversation_is_what_its_template_writes(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDERS[name], tmp_path / name)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    messages = [{"role": "user", "content": "t9 </s> t10"}]
    with LLM(folder, threads=1, ctx=48) as llm:
        asked = llm.chat(messages, GREEDY)[0]
        # </s> in the message is text that is not known, in two halves; in the template it is the token.
        ids = [1, 4, 9, 0, 0, 10, 2, 6]
        assert asked.prompt_token_ids == ids
        assert asked.outputs[0].token_ids == llm.generate(ids, GREEDY)[0].outputs[0].token_ids
        assert "".join(chunk.text for chunk in llm.stream(messages, GREEDY)) == asked.outputs[0].text


NOT_STATED = ("llama-dynamic", "gemma2")
"""GGUF has no word for dynamic scaling; gemma2's scale of attention follows from the sizes of the real models."""
CONVERTED = [
    name
    for name, folder in sorted(FOLDERS.items())
    if (folder.parent.name == "families" or name in ("llama", "qwen3")) and name not in NOT_STATED
]


@pytest.mark.parametrize("name", CONVERTED)
def test_both_vendors_files_say_the_same(name: str, tmp_path: Path) -> None:
    ids = [5, 9, 20, 7]
    path = convert(FOLDERS[name], tmp_path / "m.gguf")
    with LLM(FOLDERS[name], threads=1, ctx=32) as folder, LLM(path, threads=1, ctx=32) as file:
        for params in (GREEDY, LIVELY):
            got = file.generate(ids, params)[0].outputs[0]
            assert got.token_ids == folder.generate(ids, params)[0].outputs[0].token_ids
            assert "".join(chunk.text for chunk in file.stream(ids, params)) == got.text
