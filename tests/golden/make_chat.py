"""Makes chat.json: what transformers' apply_chat_template writes for the conversations below.

    python tests/golden/make_chat.py ORIGINALS FOLDER_OF_GGUF_FILES

Needs transformers and gguf in an environment of its own. ORIGINALS holds the published tokenizer_config.json of gemma3,
qwen3 and llama3_1 in folders of those names; the templates of SmolLM2 and Qwen2.5-Coder come from the GGUF files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).parent
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather of a city <now> & "later" é',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
USER, BOT = {"role": "user", "content": "  Hi there \n"}, {"role": "assistant", "content": "Hello! <b>é</b> 😀"}
SYSTEM = {"role": "system", "content": "Be brief.\n\n  "}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "n": 1.5}}}
    ],
}
RESULT = {"role": "tool", "content": '{"t": 21}'}
CONVERSATIONS: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [SYSTEM, USER]},
    {"messages": [SYSTEM, USER, BOT, {"role": "user", "content": "def f(x):\n\treturn {x}\n"}]},
    {"messages": [USER, BOT], "add_generation_prompt": False},
    {"messages": [USER], "tools": [WEATHER]},
    {"messages": [SYSTEM, USER, CALL, RESULT, RESULT, BOT, USER], "tools": [WEATHER, WEATHER]},
    {"messages": [{"role": "user", "content": "{{ 7 * 7 }} {% raw %} {# #}"}]},
]


def main(originals: Path, folder: Path) -> None:
    templates: dict[str, tuple[str, dict[str, str]]] = {}
    for name, file in {
        "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "qwen-0.5b": "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    }.items():
        templates[name] = (GGUFReader(folder / file).fields["tokenizer.chat_template"].contents(), {})
    for name in ("gemma3", "qwen3", "llama3_1"):
        config = json.loads((originals / name / "tokenizer_config.json").read_text(encoding="utf-8"))
        variables = {key: config[key] for key in ("bos_token", "eos_token") if isinstance(config.get(key), str)}
        templates[name] = (config["chat_template"], variables)
    out: dict[str, Any] = {"made_by": "tests/golden/make_chat.py", "models": {}}
    for name, (template, variables) in templates.items():
        cases: list[dict[str, Any]] = []
        for conversation in CONVERSATIONS:
            if name in ("gemma3", "smollm2", "llama3_1") and "tools" in conversation:
                continue  # their templates know no tools
            options = {"add_generation_prompt": True, **conversation}
            [text], _ = render_jinja_template([options["messages"]], chat_template=template, **variables, **{
                key: value for key, value in options.items() if key != "messages"
            })  # fmt: skip
            cases.append({**options, "text": text})
        out["models"][name] = {"template": template, "variables": variables, "cases": cases}
    (HERE / "chat.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
