"""`lm-eval`, as it comes, by its command: likelihoods of choices and of whole texts, and texts gone on with.

Law: what it reports is what the Python API says, to the last bit: both add the same floats in the same order.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import Served

TASKS = Path(__file__).parent / "lm_eval_tasks"
UNTIL = [".", "\n\n"]
SAID = """
import json, sys
from pellucid import LLM, SamplingParams
asked = json.load(sys.stdin)
llm = LLM("smollm2")
ids = lambda text: llm.tokenize(text, add_special=False)
greedy = SamplingParams(temperature=0, max_tokens=24, stop=asked["until"])
bos = llm.tokenize(llm.template.variables["bos_token"], add_special=False, parse_special=True)
def scored(before, text):
    whole = before + ids(text)
    result = llm.score(whole)
    return result.logprobs, result.ranks
json.dump({
    "pairs": [(len(ids(context)), *scored([], context + rest)) for context, rest in asked["pairs"]],
    "pages": [scored(bos, page)[0][1:] for page in asked["pages"]],
    "texts": [one.outputs[0].text for one in llm.generate(asked["begun"], greedy, progress=False)],
    "chats": [
        one.outputs[0].text
        for one in llm.chat([[{"role": "user", "content": text}] for text in asked["begun"]], greedy, progress=False)
    ],
}, sys.stdout)
"""

sys.path.append(str(TASKS))
from rows import BEGUN, FACTS, PAGES  # noqa: E402

PAIRS = [(fact["question"], " " + choice) for fact in FACTS for choice in fact["choices"]]


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    """What the Python API says, in the environment of the command `pellucid`."""
    program = shutil.which("pellucid")
    assert program, "put the environment that has the command `pellucid` on PATH"
    asked = json.dumps({"pairs": PAIRS, "pages": PAGES, "begun": BEGUN, "until": UNTIL})
    python = Path(program).with_name("python")
    done = subprocess.run([python, "-c", SAID], input=asked, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def evaluated(out: Path, model: str, args: dict[str, Any], tasks: list[str], *more: str) -> dict[str, Any]:
    """Run the command. Returns for each task the answers to all its requests, in order."""
    command = [Path(sys.executable).with_name("lm-eval"), "run", "--model", model, "--include_path", TASKS]
    command += ["--model_args", ",".join(f"{key}={value}" for key, value in args.items())]
    command += ["--tasks", ",".join(tasks), "--log_samples", "--output_path", out, *more]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "Retrying" not in done.stderr, done.stderr
    answers: dict[str, Any] = {}
    for task in tasks:
        [file] = out.rglob(f"samples_{task}_*.jsonl")
        samples = sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: sample["doc_id"])
        answers[task] = [answer for sample in samples for [answer] in sample["resps"]]
    return answers


@pytest.mark.parametrize(("concurrent", "batch"), [(1, 1), (4, 1), (1, 8)])
def test_likelihoods(smollm2: Served, said: dict[str, Any], tmp_path: Path, concurrent: int, batch: int) -> None:
    """The tokenizer is the server's own, which lm-eval finds by itself."""
    args = {"model": smollm2.model, "base_url": smollm2.v1 + "/completions", "num_concurrent": concurrent}
    before = smollm2.metric("prompt_tokens_total")
    answers = evaluated(tmp_path, "local-completions", args, ["own_facts", "own_pages"], "--batch_size", str(batch))
    for (logprob, greedy), (begin, logprobs, ranks) in zip(answers["own_facts"], said["pairs"], strict=True):
        assert float(logprob) == sum(logprobs[begin:])
        assert (greedy == "True") == all(rank == 1 for rank in ranks[begin:])
    assert {greedy for _, greedy in answers["own_facts"]} == {"True", "False"}
    assert [float(answer) for answer in answers["own_pages"]] == [sum(page) for page in said["pages"]]
    asked = [*(len(logprobs) for _, logprobs, _ in said["pairs"]), *(len(page) + 1 for page in said["pages"])]
    assert smollm2.metric("prompt_tokens_total") - before == sum(asked)


@pytest.mark.parametrize("backend", ["auto", "none"])
def test_texts(smollm2: Served, said: dict[str, Any], tmp_path: Path, backend: str) -> None:
    """Asked with the ids of the server's tokenizer, and with text."""
    args = {"model": smollm2.model, "base_url": smollm2.v1 + "/completions", "tokenizer_backend": backend}
    assert evaluated(tmp_path, "local-completions", args, ["own_begun"])["own_begun"] == said["texts"]


@pytest.mark.parametrize("concurrent", [1, 3])
def test_chats(smollm2: Served, said: dict[str, Any], tmp_path: Path, concurrent: int) -> None:
    args = {"model": smollm2.model, "base_url": smollm2.v1 + "/chat/completions", "num_concurrent": concurrent}
    answers = evaluated(tmp_path, "local-chat-completions", args, ["own_begun"], "--apply_chat_template")
    assert answers["own_begun"] == said["chats"]


def test_a_model_that_is_not_there_ends_the_run(smollm2: Served, tmp_path: Path) -> None:
    args = {"model": "gpt-4", "base_url": smollm2.v1 + "/completions", "max_retries": 1}
    with pytest.raises(AssertionError, match="model_not_found"):
        evaluated(tmp_path, "local-completions", args, ["own_begun"])
