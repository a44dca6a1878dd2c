"""What users of inference servers complain about, each as a test that is named after it: here it does not happen.

Law: `COMPLAINTS` is the list; a sentence of it has its tests, and a test here its sentence.
"""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pellucid.config import EngineConfig
from pellucid.engine.scheduler import SCORE_FLOATS
from pellucid.llm import LLM
from pellucid.server.service import STALL_AFTER
from pellucid.text.chat import ChatTemplate
from pellucid.text.tokenizer import Tokenizer
from serving import Live, running, slow, until
from text.corpus import corpus
from text.test_goldens import packed
from toymodel import BOS, BOT, SCRIPTS, TEMPLATE, USER, ScriptDevice, source, toy_llm

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GOLDEN = Path(__file__).parent.parent / "golden"

COMPLAINTS = {
    "Prompt too long: 400 with both counts, never cut.": ["prompt_too_long_is_400_with_both_counts_never_cut"],
    "Disconnect or abort: generation stops within one step and the pages return;": [
        "disconnect_stops_generation_within_one_step_and_pages_return"
    ],
    "what was computed stays in the prefix cache.": [
        "what_an_aborted_prompt_computed_stays_in_the_prefix_cache",
        "what_an_aborted_answer_computed_stays_in_the_prefix_cache",
    ],
    "Greedy output equal for cold and warm cache, alone and in a batch.": [
        "greedy_output_is_equal_for_cold_and_warm_cache_alone_and_in_a_batch"
    ],
    "prompt_logprobs right with a prefix hit, and computed in bounded memory.": [
        "prompt_logprobs_are_right_with_a_prefix_hit",
        "prompt_logprobs_are_computed_in_bounded_memory",
    ],
    "Logprobs say which distribution they describe (raw model or after the chain).": [
        "logprobs_say_which_distribution_they_describe"
    ],
    "Stop strings never leak in a stream, also across token borders;": [
        "stop_strings_never_leak_across_token_borders",
        "stop_strings_never_leak_from_a_real_model",
    ],
    "incomplete UTF-8 is held back until it is whole.": ["incomplete_utf8_is_held_back_until_it_is_whole"],
    "`usage` always right, with `cached_tokens`.": ["usage_is_always_right_with_cached_tokens"],
    "Tool calls: arguments always valid JSON when the schema constrains them;": [
        "tool_arguments_are_always_valid_json_when_constrained"
    ],
    "broken JSON in history does not fail the request.": ["broken_json_in_history_does_not_fail_the_request"],
    "Double BOS never.": ["double_bos_never"],
    "Template output equals the Hugging Face rendering;": ["template_output_equals_the_hugging_face_rendering"],
    "token ids equal those of the original tokenizer.": ["token_ids_equal_those_of_the_original_tokenizer"],
    "Queue bounded: 429 with Retry-After.": ["queue_full_is_429_with_retry_after"],
    "Idle server: no CPU.": ["idle_server_uses_no_cpu"],
    "A stalled engine turns `/ready` to 503 within 5 s.": ["a_stalled_engine_turns_ready_503_within_5_seconds"],
}


def test_every_complaint_has_its_tests_and_every_test_its_complaint() -> None:
    named = [f"test_{name}" for names in COMPLAINTS.values() for name in names]
    here = {name for name in vars(sys.modules[__name__]) if name.startswith("test_")}
    assert all(COMPLAINTS.values()) and len(set(named)) == len(named)
    assert set(named) == here - {"test_every_complaint_has_its_tests_and_every_test_its_complaint"}


@pytest.fixture(scope="module")
def real(smollm2_path: Path) -> Iterator[Live]:
    """A server over SmolLM2."""
    with LLM(smollm2_path, ctx=1024, threads=2, kv_pages=512) as llm, running(llm, name="smollm2") as live:
        yield live
        live.settles()


class Gate:
    """Lets the model make as many steps as it is told to, and knows how many it has made."""

    def __init__(self, llm: LLM) -> None:
        self.made = 0
        self.waits = False
        """A step is begun and not let through."""
        self._let = threading.Semaphore(0)
        self._run = llm.engine.device.run
        llm.engine.device.run = self._step  # type: ignore[method-assign]

    def _step(self, batch: Any) -> Any:
        self.waits = True
        self._let.acquire()
        self.waits = False
        logits = self._run(batch)
        self.made += 1
        return logits

    def let(self, steps: int) -> None:
        """Let so many pass, and wait until the next stands at the gate."""
        wanted = self.made + steps
        self._let.release(steps)
        until(lambda: self.made == wanted and self.waits)

    def open(self) -> None:
        self._let.release(1_000_000)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()  # else a test that fails would hang


@contextmanager
def asking(live: Live, body: dict[str, Any]) -> Iterator[socket.socket]:
    """A connection on which a request was sent; it is closed in the end, whatever the answer was."""
    content = json.dumps(body)
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with closing(socket.create_connection(("127.0.0.1", live.port), timeout=10)) as s:
        s.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode())
        yield s


def left_after(live: Live, gate: Gate, body: dict[str, Any], steps: int) -> None:
    """Ask, leave while the step after so many is made, and wait until all is at rest."""
    with asking(live, body) as s:
        gate.let(steps)
        if body.get("stream"):
            assert s.recv(1000).startswith(b"HTTP/1.1 200")
    until(live.service.idle.is_set)  # the server has noticed
    gate.open()
    live.settles()


def cached(answer: Any) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def batches_of(live: Live, monkeypatch: pytest.MonkeyPatch, look: Callable[[Any], int]) -> list[int]:
    """What `look` sees in every batch from now on."""
    found: list[int] = []
    device = live.llm.engine.device
    run = device.run

    def watched(batch: Any) -> Any:
        found.append(look(batch))
        return run(batch)

    monkeypatch.setattr(device, "run", watched)
    return found


def test_prompt_too_long_is_400_with_both_counts_never_cut(real: Live) -> None:
    def refused(path: str, body: dict[str, Any], *counts: str) -> None:
        answer = real.post(path, body)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["code"] == "context_length_exceeded", answer.text
        assert "maximum context length is 1024 tokens" in error["message"]
        assert all(count in error["message"] for count in counts), error["message"]

    user = [{"role": "user", "content": "word " * 2000}]
    tokens = real.post("/tokenize", {"messages": user}).json()["count"]
    refused(COMPLETIONS, {"prompt": [9] * 1025, "max_tokens": 1}, "1025 tokens")
    refused(COMPLETIONS, {"prompt": [9] * 1000, "max_tokens": 25}, "1025 tokens", "1000 in the prompt", "25 in the")
    refused(CHAT, {"messages": user}, f"{tokens} in the prompt")
    refused(CHAT, {"messages": user, "truncate_prompt_tokens": None}, f"{tokens} in the prompt")
    claude = real.post("/v1/messages", {"messages": user, "max_tokens": 9})
    assert claude.status_code == 400 and "1024" in claude.text and f"{tokens} in the prompt" in claude.text
    assert real.post("/v1/responses", {"input": user}).status_code == 400
    fits = real.post(COMPLETIONS, {"prompt": [9] * 1023, "max_tokens": 1}).json()
    assert fits["usage"]["prompt_tokens"] == 1023


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_stops_generation_within_one_step_and_pages_return(stream: bool) -> None:
    with toy_llm(ctx=4096, kv_pages=512) as llm, running(llm) as live, Gate(llm) as gate:
        left_after(live, gate, {"prompt": "l>", "max_tokens": 3000, "n": 3, "stream": stream}, 5)
        stats = llm.engine.stats
        assert gate.made == 6  # the one that was being made when the client left is the last
        assert stats.finished["abort"] == 3 and stats.running == stats.waiting == stats.pages_used == 0


def test_what_an_aborted_prompt_computed_stays_in_the_prefix_cache() -> None:
    with toy_llm(token_budget=16) as llm, running(llm) as live, Gate(llm) as gate:
        prompt = "l" + "y" * 100 + ">"
        left_after(live, gate, {"prompt": prompt, "max_tokens": 9}, 3)
        assert gate.made == 4 and llm.engine.stats.generated_tokens == 0
        assert cached(live.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1}).json()) == 4 * 16


def test_what_an_aborted_answer_computed_stays_in_the_prefix_cache() -> None:
    with toy_llm() as llm, running(llm) as live, Gate(llm) as gate:
        prompt = "l" + "y" * 62 + ">"
        left_after(live, gate, {"prompt": prompt, "max_tokens": 300, "temperature": 0, "stream": True}, 40)
        again = live.post(COMPLETIONS, {"prompt": prompt + "x" * 60, "max_tokens": 1}).json()
        assert cached(again) == 96  # the full pages of 64 tokens of the prompt and 40 of the answer


def test_greedy_output_is_equal_for_cold_and_warm_cache_alone_and_in_a_batch(
    real: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = batches_of(real, monkeypatch, lambda batch: len(batch.seq_starts) - 1)
    start = "The quick brown fox jumps over the lazy dog, and then it rests under a tree for a while. "
    bodies = [
        {"prompt": start * 2 + more, "temperature": 0, "max_tokens": 12, "logprobs": 2}
        for more in ("What comes next is", "1, 2, 3,", "def fox(dog):", "Once upon a time")
    ]

    def ask(body: dict[str, Any]) -> tuple[Any, int]:
        answer = real.post(COMPLETIONS, body).json()
        return answer["choices"][0], cached(answer)

    cold = [ask(body | {"cache_salt": f"cold {i}"}) for i, body in enumerate(bodies)]
    warm = [ask(body | {"cache_salt": f"cold {i}"}) for i, body in enumerate(bodies)]
    rows.clear()
    with ThreadPoolExecutor(8) as pool:
        new = [body | {"cache_salt": f"batch {i}"} for i, body in enumerate(bodies)]
        seen = [body | {"cache_salt": f"cold {i}"} for i, body in enumerate(bodies)]
        together = list(pool.map(ask, [*new, *seen]))
    assert max(rows) > 1
    assert [hit for _, hit in cold] == [0] * 4 and all(hit >= 32 for _, hit in warm)
    answers = [choice for choice, _ in cold]
    assert [choice for choice, _ in warm] == answers
    assert [choice for choice, _ in together] == answers * 2
    assert len({choice["text"] for choice in answers}) == 4


TEXT = (
    "Paris is the capital and the largest city of France. It lies on the Seine, and more than two million people "
    "live there. London is the capital of the United Kingdom, and Rome is the capital of Italy."
)


def scored(live: Live, prompt: Any, **more: Any) -> list[Any]:
    """Log-probabilities of a prompt's tokens, with the likeliest at each place."""
    body = {"prompt": prompt, "echo": True, "logprobs": 3, "max_tokens": 1, "temperature": 0, **more}
    found = live.post(COMPLETIONS, body).json()["choices"][0]["logprobs"]
    return list(zip(found["token_logprobs"][:-1], found["top_logprobs"][:-1], strict=True))


def ids_of(live: Live, spelled: list[str]) -> list[int]:
    """Ids of tokens by their spellings."""
    ids = [live.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"] for text in spelled]
    assert all(len(each) == 1 for each in ids), (spelled, ids)
    return [each[0] for each in ids]


def prompt_logprobs(live: Live, path: str, asked: dict[str, Any], most: int = 3) -> list[Any]:
    """The field of that name in an answer."""
    answer = live.post(path, asked | {"prompt_logprobs": most, "max_tokens": 1, "temperature": 0}).json()
    return answer["prompt_logprobs"] if path == CHAT else answer["choices"][0]["prompt_logprobs"]


def test_prompt_logprobs_are_right_with_a_prefix_hit(real: Live) -> None:
    user = [{"role": "user", "content": TEXT}]
    for path, asked in ((COMPLETIONS, {"prompt": TEXT}), (CHAT, {"messages": user})):
        asked |= {"cache_salt": "scored"}
        ids = real.post("/tokenize", {"prompt": TEXT} if path == COMPLETIONS else {"messages": user}).json()["tokens"]
        cold = prompt_logprobs(real, path, asked)
        assert cached(real.post(path, asked | {"max_tokens": 1}).json()) >= 32  # so the next finds its prefix, too
        assert prompt_logprobs(real, path, asked) == cold
        assert cold[0] is None and len(cold) == len(ids)
        for id, entry in zip(ids[1:], cold[1:], strict=True):
            by_rank = {token["rank"]: token["logprob"] for token in entry.values()}
            assert next(iter(entry)) == str(id) and {1, 2, 3} <= by_rank.keys() and len(by_rank) == len(entry)
            assert [by_rank[rank] for rank in sorted(by_rank)] == sorted(by_rank.values(), reverse=True)
        assert (
            "".join(entry[str(id)]["decoded_token"] for id, entry in zip(ids[1:], cold[1:], strict=True))
            in (real.post("/detokenize", {"tokens": ids}).json()["prompt"])
        )
        # Right: what the model says of an answer's tokens as it draws them is what it says of them in a prompt.
        answer = real.post(COMPLETIONS, {"prompt": ids, "temperature": 0, "max_tokens": 20, "logprobs": 0}).json()
        said = answer["choices"][0]["logprobs"]
        drawn = ids_of(real, said["tokens"])
        found = prompt_logprobs(real, COMPLETIONS, {"prompt": ids + drawn})
        assert found[: len(ids)] == cold
        tokens = [entry[str(id)] for id, entry in zip(drawn, found[len(ids) :], strict=True)]
        assert [token["logprob"] for token in tokens] == said["token_logprobs"]
        assert {token["rank"] for token in tokens} == {1}
    # A rank is among all tokens, not among those that were asked for.
    alone, among = (prompt_logprobs(real, COMPLETIONS, {"prompt": TEXT}, most)[1:] for most in (0, 20))
    ranks = [token["rank"] for entry in alone for token in entry.values()]
    assert ranks == [next(iter(entry.values()))["rank"] for entry in among]
    assert any(1 < rank <= 20 for rank in ranks) and max(ranks) > 20
    # An echo that names fewer of the likeliest is none the other's.
    both = {"prompt": TEXT, "echo": True, "logprobs": 1, "prompt_logprobs": 3, "max_tokens": 0}
    choice = real.post(COMPLETIONS, both).json()["choices"][0]
    alone = real.post(COMPLETIONS, both | {"prompt_logprobs": None}).json()["choices"][0]
    assert choice["logprobs"] == alone["logprobs"] and "prompt_logprobs" not in alone
    assert choice["prompt_logprobs"] == prompt_logprobs(real, COMPLETIONS, {"prompt": TEXT})


def test_prompt_logprobs_are_computed_in_bounded_memory(real: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = batches_of(real, monkeypatch, lambda batch: len(batch.logit_rows))
    most = SCORE_FLOATS // real.llm.engine.device.vocab_size
    assert most < real.llm.config.token_budget < 900  # else this shows nothing
    assert len(prompt_logprobs(real, COMPLETIONS, {"prompt": list(range(100, 1000))})) == 900
    assert 899 < sum(rows) <= 901 and max(rows) <= most + 1


def test_logprobs_say_which_distribution_they_describe(real: Live) -> None:
    body = {"prompt": TEXT, "max_tokens": 6, "logprobs": 5, "seed": 5}
    chain = {"temperature": 1.7, "top_k": 3, "top_p": 0.9, "presence_penalty": 1.5, "logit_bias": {"42": 5}}
    whole = real.post(COMPLETIONS, body | chain).json()
    answer = whole["choices"][0]
    assert whole["logprobs_mode"] == "raw_logprobs"
    named = real.post(COMPLETIONS, body | chain | {"logprobs_mode": "raw_logprobs"}).json()
    assert named["choices"][0] == answer and "warnings" not in named
    # Raw: as the model without any sampling stage scores the same tokens.
    ids = real.post("/tokenize", {"prompt": TEXT}).json()["tokens"]
    said = answer["logprobs"]
    plain = scored(real, ids + ids_of(real, said["tokens"]), logprobs=5)[len(ids) :]
    assert plain == list(zip(said["token_logprobs"], said["top_logprobs"], strict=True))
    # After the chain, they are of the three tokens that top_k left.
    drawn = real.post(COMPLETIONS, body | chain | {"logprobs_mode": "processed_logprobs"}).json()
    assert drawn["logprobs_mode"] == "processed_logprobs"
    after = drawn["choices"][0]["logprobs"]
    assert after["tokens"] == said["tokens"]
    for value, top in zip(after["token_logprobs"], after["top_logprobs"], strict=True):
        assert value in top.values() and 1 <= len(top) <= 3
        assert sum(math.exp(one) for one in top.values()) == pytest.approx(1, abs=1e-5)


def test_stop_strings_never_leak_across_token_borders(live: Live) -> None:
    """A token of the toy model is one byte, so each of these lies across borders."""
    for name in "bu":
        script = SCRIPTS[name]
        for start in range(len(script) - 1):
            for length in (2, 4, len(script) - start):
                stop = script[start : start + length]
                body = {"prompt": f"{name}>", "stop": ["never comes", stop], "max_tokens": 40, "temperature": 0}
                chunks = live.events(COMPLETIONS, body)
                shown = ""
                for chunk in chunks:
                    shown += chunk["choices"][0]["text"]
                    assert script[: script.index(stop)].startswith(shown), (stop, shown)
                assert shown == script[: script.index(stop)]
                assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
                assert chunks[-1]["choices"][0]["stop_reason"] == stop


def test_stop_strings_never_leak_from_a_real_model(real: Live) -> None:
    body = {"prompt": TEXT, "temperature": 0, "max_tokens": 24, "logprobs": 0}
    whole = real.post(COMPLETIONS, body).json()["choices"][0]
    text, borders = whole["text"], whole["logprobs"]["text_offset"]
    for border in borders[4:16:3]:
        stop = text[border - 2 : border + 2]  # of two tokens, or three
        shown = "".join(chunk["choices"][0]["text"] for chunk in real.events(COMPLETIONS, body | {"stop": stop}))
        assert shown == text[: text.index(stop)]


def test_incomplete_utf8_is_held_back_until_it_is_whole() -> None:
    """Steps are slow enough for each of the bytes, which are tokens here, to leave alone if it may."""
    script = SCRIPTS["u"]
    with slow(toy_llm(), 0.005) as llm, running(llm) as live:
        for path, asked in (
            (COMPLETIONS, {"prompt": "u>"}),
            (CHAT, {"messages": [{"role": "user", "content": "u"}]}),
        ):
            choices = [chunk["choices"][0] for chunk in live.events(path, asked | {"temperature": 0, "max_tokens": 40})]
            pieces = [choice.get("delta", choice).get("content" if path == CHAT else "text", "") for choice in choices]
            assert "".join(pieces) == script and not any("\ufffd" in piece for piece in pieces)
            assert len(script) >= sum(map(bool, pieces)) > 5


def test_usage_is_always_right_with_cached_tokens(real: Live) -> None:
    user = {"messages": [{"role": "user", "content": TEXT}], "temperature": 0, "cache_salt": "usage"}
    prompt = real.post("/tokenize", {"messages": user["messages"]}).json()["count"]

    def right(usage: Any, prompts: int, answer: int, hits: int) -> None:
        details = {"cached_tokens": hits}
        total = prompts + answer
        assert usage == {
            "prompt_tokens": prompts,
            "completion_tokens": answer,
            "total_tokens": total,
            "prompt_tokens_details": details,
        }

    limited = user | {"max_tokens": 7}
    hit = (prompt - 1) // 16 * 16
    right(real.post(CHAT, limited).json()["usage"], prompt, 7, 0)
    right(real.post(CHAT, limited).json()["usage"], prompt, 7, hit)
    right(real.post(CHAT, limited | {"n": 3, "ignore_eos": True}).json()["usage"], prompt, 21, hit)
    end = real.events(CHAT, limited | {"stream_options": {"include_usage": True}})[-1]
    assert end["choices"] == []
    right(end["usage"], prompt, 7, hit)
    told = [
        chunk["usage"]["completion_tokens"]
        for chunk in real.events(CHAT, limited | {"stream_options": {"continuous_usage_stats": True}})
    ]
    assert told == sorted(told) and told[0] >= 1 and told[-1] == 7
    # A stop string's tokens were generated, too, though they are not shown.
    said = real.post(CHAT, limited | {"logprobs": True}).json()["choices"][0]["logprobs"]["content"]
    stopped = real.post(CHAT, limited | {"stop": said[4]["token"]}).json()
    seen = "".join(token["token"] for token in said).index(said[4]["token"])
    count = next(i for i in range(1, 8) if len("".join(t["token"] for t in said[:i])) >= seen + len(said[4]["token"]))
    right(stopped["usage"], prompt, count, hit)


PLACE = {
    "type": "object",
    "properties": {
        "city": {"enum": ['Zürich \\ "HB"', "Rome"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PLACE}}


def test_tool_arguments_are_always_valid_json_when_constrained(real: Live) -> None:
    body = {
        "messages": [{"role": "user", "content": "How is the weather?"}],
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 3,
        "max_tokens": 120,
    }
    for seed in range(6):
        if seed % 2:
            chunks = real.events(CHAT, body | {"seed": seed})
            deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
            text, reason = "".join(call["function"]["arguments"] for call in deltas), chunks[-1]["choices"][0]
        else:
            reason = real.post(CHAT, body | {"seed": seed}).json()["choices"][0]
            text = reason["message"]["tool_calls"][0]["function"]["arguments"]
        assert reason["finish_reason"] == "tool_calls"
        found = json.loads(text)
        assert found.keys() == {"city", "days"} and found["city"] in PLACE["properties"]["city"]["enum"]
        assert all(day in range(10) for day in found["days"]) and len(found["days"]) <= 3


@pytest.mark.parametrize("in_template", [False, True])
def test_broken_json_in_history_does_not_fail_the_request(in_template: bool) -> None:
    template = "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}" * in_template + TEMPLATE
    with toy_llm(template=template, ctx=2048, kv_pages=256) as llm, running(llm) as live:
        for arguments in ("{broken", "", '{"city": NaN', '"text"', "[" * 500):
            call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
            messages = [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": "{also broken"},
            ]
            answer = live.post(CHAT, {"messages": messages, "tools": [TOOL], "max_tokens": 5})
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("adds", [False, True])
def test_double_bos_never(adds: bool) -> None:
    """Whoever writes it: tokenizer, template, both, the template twice, or the client itself as text."""
    for template in ("{{ bos_token }}", "", "<s>", "<s>{{ bos_token }}"):
        tokens = replace(source(template + "<user>{{ messages[0].content }}<bot>"), add_bos=adds)
        tokenizer = Tokenizer.from_source(tokens)
        config = EngineConfig(threads=1, ctx=512, kv_pages=64)
        device, chat = ScriptDevice(config), ChatTemplate.from_source(tokens, tokenizer)
        with LLM.of(tokenizer, chat, device, config, "toy") as llm, running(llm) as live:
            ids = live.post("/tokenize", {"messages": [{"role": "user", "content": "a"}]}).json()["tokens"]
            assert ids == [BOS] * (adds or template != "") + [USER, ord("a"), BOT]
            spelled = live.post("/tokenize", {"messages": [{"role": "user", "content": "<s>"}]}).json()["tokens"]
            assert spelled.count(BOS) == ids.count(BOS)
            text = live.post("/tokenize", {"prompt": "a"}).json()["tokens"]
            assert text == [BOS] * adds + [ord("a")]
            asked = live.post(CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}).json()
            assert asked["usage"]["prompt_tokens"] == len(ids)


def test_template_output_equals_the_hugging_face_rendering(real: Live) -> None:
    """The goldens are transformers' own; over HTTP, so as it is served."""
    model = json.loads((GOLDEN / "chat.json").read_text(encoding="utf-8"))["models"]["smollm2"]
    assert real.llm.template.source == model["template"]
    cases = [case for case in model["cases"] if not case.get("tools")]  # this template knows no tools
    assert len(cases) >= 5
    for case in cases:
        asked = {"messages": case["messages"], "add_generation_prompt": case["add_generation_prompt"]}
        ids = real.post("/tokenize", asked).json()["tokens"]
        assert real.post("/detokenize", {"tokens": ids}).json()["prompt"] == case["text"]
        assert ids == real.llm.tokenizer.encode(case["text"], parse_special=True)


def test_token_ids_equal_those_of_the_original_tokenizer(real: Live) -> None:
    """The goldens are the published tokenizer's; texts too long for this server's context are left out."""
    golden = json.loads((GOLDEN / "tokens_smollm2-135m.json").read_text(encoding="utf-8"))
    texts = corpus()
    assert golden["corpus_sha256"] == sha256("\0".join(texts).encode()).hexdigest()
    compared = 0
    for text, want in zip(texts, golden["as_text"], strict=True):
        if len(text.encode()) < 16 * 1024:
            ids = real.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
            assert packed(ids) == want, text[:80]
            compared += 1
    assert compared > 0.9 * len(texts)


def test_queue_full_is_429_with_retry_after() -> None:
    with (
        toy_llm(max_seqs=1, max_queue=2) as llm,
        running(llm) as live,
        ThreadPoolExecutor(3) as pool,
        Gate(llm) as gate,
    ):
        body = {"prompt": "l>", "max_tokens": 5}
        taken = [pool.submit(live.post, COMPLETIONS, body) for _ in range(3)]
        until(lambda: llm.worker.pending == 3 and gate.waits)
        for path, asked in ((COMPLETIONS, body), (CHAT, {"messages": [{"role": "user", "content": "a"}]})):
            refused = live.post(path, asked)
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
        gate.open()
        assert [answer.result().json()["usage"]["completion_tokens"] for answer in taken] == [5] * 3
        live.settles()
        assert live.post(COMPLETIONS, body).status_code == 200


def test_idle_server_uses_no_cpu(real: Live) -> None:
    assert real.post(COMPLETIONS, {"prompt": TEXT, "max_tokens": 2}).status_code == 200
    real.settles()
    time.sleep(1.2)  # the engine checks its invariants once, a second after the last work
    steps, began, span = real.llm.engine.stats.steps, time.process_time(), 0.8
    time.sleep(span)
    assert real.llm.engine.stats.steps == steps
    assert time.process_time() - began < span / 4


def test_a_stalled_engine_turns_ready_503_within_5_seconds() -> None:
    with toy_llm() as llm, running(llm) as live, ThreadPoolExecutor(1) as pool, Gate(llm) as gate:
        answer = pool.submit(live.post, COMPLETIONS, {"prompt": "a>", "max_tokens": 3})
        until(lambda: gate.waits)
        assert live.http.get("/ready").status_code == 200
        llm.worker.last_step_time -= 5.0  # as if so much time had passed
        assert STALL_AFTER <= 5.0 and live.http.get("/ready").status_code == 503
        assert live.http.get("/health").status_code == 200
        gate.open()
        assert answer.result().status_code == 200 and live.http.get("/ready").status_code == 200
