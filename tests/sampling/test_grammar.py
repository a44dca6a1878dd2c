"""Grammars: what may come next, what it costs, and what is refused."""

from __future__ import annotations

import json
import re
import resource
import signal
import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pellucid import Grammar, SamplingParams
from pellucid.devices.base import Batch
from pellucid.engine.events import FinishEvent
from pellucid.engine.sequence import Sequence
from pellucid.errors import EngineError, PellucidError, RequestError
from pellucid.llm import LLM
from pellucid.sampling import chain, trial
from pellucid.sampling.grammar import Matcher
from pellucid.sampling.sampler import Sampler
from pellucid.sampling.trial import Trial
from toymodel import BOT, EOS, USER, VOCAB, toy_llm

if TYPE_CHECKING:
    from llguidance import LLMatcher

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm():  # type: ignore[no-untyped-def]
    with toy_llm(max_seqs=24, kv_pages=256) as llm:
        yield llm


def answer(llm: LLM, grammar: Grammar | None, prompt: str = "l>", **more: object) -> str:
    """What the toy model, which wants to say `x` for ever, says under a grammar."""
    params = SamplingParams(**({"temperature": 0, "max_tokens": 200, "grammar": grammar} | more))  # type: ignore[arg-type]
    [output] = llm.generate(prompt, params)[0].outputs
    assert output.finish_reason == "stop", output
    return output.text


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("prompt", ["l>", "a>", "u>"])
def test_what_is_drawn_has_the_form(llm: LLM, prompt: str, seed: int) -> None:
    hot = {"temperature": 100, "seed": seed}
    assert re.fullmatch("[a-c]{2,5}é?", answer(llm, Grammar.regex("[a-c]{2,5}é?"), prompt, **hot))
    assert answer(llm, Grammar.choice(["yes", "no (or so)", "1.5"]), prompt, **hot) in ("yes", "no (or so)", "1.5")
    assert re.fullmatch("ab+c", answer(llm, Grammar.lark('start: "a" /b{1,9}/ "c"'), prompt, **hot))
    value = json.loads(answer(llm, Grammar.json_schema(SCHEMA), prompt, **hot))
    assert set(value) == {"name", "age"} and len(value["name"]) <= 8 and 0 <= value["age"] <= 9


def test_choices_are_texts_not_patterns(llm: LLM) -> None:
    for text in (r"a.b*c+(d)[e]{f}|g^h$\i", "-", "/", "#&~", "\n", "\t", "é🌧️"):
        assert answer(llm, Grammar.choice([text])) == text


def test_a_form_ends_the_answer_where_nothing_can_follow(llm: LLM) -> None:
    assert answer(llm, Grammar.regex("xxx")) == "xxx"
    assert answer(llm, Grammar.regex("x{3,}y"), "a>", temperature=100, seed=1)[-1] == "y"


def test_control_tokens_cannot_be_asked_for_by_their_spelling(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=50, grammar=Grammar.regex("<bot>"))
    [output] = llm.generate("l>", params)[0].outputs
    assert output.token_ids[:5] == list(b"<bot>")


def test_neighbours_are_as_alone(llm: LLM) -> None:
    """A batch of different forms, sampled and greedy, and of none, gives each what it gets alone."""
    grammars = [None, Grammar.json_schema(SCHEMA), Grammar.regex("[a-f]{4}"), Grammar.choice(["ab", "cd"])] * 5
    params = [
        SamplingParams(temperature=0 if i % 2 else 50, seed=i, max_tokens=60, grammar=grammar, repetition_penalty=1.2)
        for i, grammar in enumerate(grammars)
    ]
    prompts = [("labu"[i % 4]) + ">" for i in range(len(params))]
    together = llm.generate(prompts, params, progress=False)
    for prompt, one, result in zip(prompts, params, together, strict=True):
        assert result.outputs[0].token_ids == llm.generate(prompt, one)[0].outputs[0].token_ids


def test_several_answers_each_have_a_place_of_their_own(llm: LLM) -> None:
    params = SamplingParams(temperature=100, seed=3, n=8, grammar=Grammar.regex("[a-z]{6}"))
    outputs = llm.generate("l>", params)[0].outputs
    assert len({output.text for output in outputs}) > 1
    assert all(re.fullmatch("[a-z]{6}", output.text) for output in outputs)


def test_the_native_chain_equals_the_definition() -> None:
    rng = np.random.default_rng(5)
    sampler = Sampler(VOCAB)
    for case in range(60):
        logits = rng.normal(size=VOCAB).astype(np.float32) * 4
        allowed = rng.integers(0, 1 << 32, (VOCAB + 31) // 32, dtype=np.uint32)
        params = SamplingParams(
            temperature=0 if case % 3 == 0 else 1.5, top_k=(0, 5)[case % 2], top_p=0.9, seed=case, logit_bias={case: 50}
        )
        state = sampler.state(params, case, 0, [USER, 1], {EOS})
        state.allow(allowed)
        picks = sampler.pick([state], logits[None], [0], [2])
        due = chain.trace(
            logits, params, seed=case, choice=0, tokens=[USER, 1], prompt_len=2, end_ids=[EOS], allowed=allowed
        )
        assert picks.token(0, position=2) == due.token
        assert allowed[due.token >> 5] >> (due.token & 31) & 1
    state.allow(np.zeros_like(allowed))
    assert sampler.pick([state], logits[None], [0], [2]).status == [2]
    with pytest.raises(ValueError, match="mask"):
        state.allow(allowed[:2])
        sampler.pick([state], logits[None], [0], [2])


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (Grammar.regex("(a"), "unclosed group"),
        (Grammar.regex("a(?=b)"), "look-around"),
        (Grammar.json_schema({"type": "objekt"}), "Invalid type: objekt"),
        (Grammar.json_schema({"$ref": "#/nowhere"}), "nowhere"),
        (Grammar.json_schema(False), "json_schema cannot be compiled"),
        (Grammar.lark("start: nowhere"), 'unknown name: "nowhere"'),
    ],
)
def test_broken_ones(llm: LLM, grammar: Grammar, says: str) -> None:
    with pytest.raises(RequestError, match=re.escape(says)) as error:
        llm.generate("a>", SamplingParams(grammar=grammar))
    assert error.value.param == grammar.kind and "\n" not in error.value.message


def deep(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.regex("((((a{99}){99}){99}){99}){99}"),
        Grammar.regex("(x+x+)+y"),
        Grammar.regex("(.*a){25}"),
        Grammar.regex("|".join(f"(a|b)*a(a|b){{{i}}}" for i in range(1, 40))),
        Grammar.lark("start: a a a a a a\na: b b b b b b b b\nb: c c c c c c\nc: /x*/ /y*/ /x*/"),
        Grammar.lark('start: start start | "a" | ""'),
        Grammar.json_schema({"enum": [f"value {i:05}" * 3 for i in range(1500)]}),
        Grammar.json_schema({"type": "array", "maxItems": 1 << 30, "minItems": 1 << 29, "items": {"type": "integer"}}),
        Grammar.json_schema(deep(100)),
    ],
    ids=lambda grammar: f"{grammar.kind}: {grammar.source[:24]}",
)
def test_bombs_are_settled_or_refused_and_the_engine_goes_on(llm: LLM, grammar: Grammar) -> None:
    began = time.process_time()
    try:
        llm.generate("l>", SamplingParams(temperature=0, max_tokens=8, grammar=grammar))
    except PellucidError as error:
        assert "\n" not in error.message
    assert time.process_time() - began < 20  # bounded by counts; the figure only tells a hang from an answer
    assert answer(llm, None, "a>") == "apples and pears"


def test_what_no_count_bounds_is_stopped(llm: LLM) -> None:
    """llguidance takes half a minute for this one, whatever its limits are."""
    bomb = Grammar.json_schema({"allOf": [{"pattern": f"(.*{chr(97 + i)}){{3}}", "type": "string"} for i in range(20)]})
    with pytest.raises(RequestError, match="is not compiled within 2 s"):
        llm.matcher(SamplingParams(grammar=bomb))
    assert answer(llm, Grammar.regex("after")) == "after"


def test_a_trial_that_died_is_begun_anew() -> None:
    one = Trial()
    assert one.fault('start: "a"') == ""
    process = one._idle.queue[-1]
    assert process is not None
    process.kill()
    process.wait()
    assert one.fault('start: "b"') == ""
    assert "nowhere" in one.fault("start: nowhere")


def test_a_slow_grammar_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "LIMIT", 60)
    both = Trial()
    assert both.fault('start: "a"') == ""
    process = both._idle.queue[-1]
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    faults: list[str] = []
    slow = Thread(target=lambda: faults.append(both.fault('start: "slow"')))
    slow.start()
    while both._idle.qsize() == trial.MOST:  # until it is taken
        time.sleep(0.01)
    assert "nowhere" in both.fault("start: nowhere") and slow.is_alive()
    process.send_signal(signal.SIGCONT)
    slow.join(60)
    assert faults == [""] and both._idle.qsize() == trial.MOST


def test_a_trial_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = Trial()
    assert bounded.fault('start: "a"') == ""
    process = bounded._idle.queue[-1]
    assert process is not None
    assert resource.prlimit(process.pid, resource.RLIMIT_AS) == (trial.MEMORY, trial.MEMORY)
    process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(trial, "LIMIT", 0.01)
    assert "not compiled" in bounded.fault('start: "b"') and process.returncode is not None
    monkeypatch.setattr(trial, "START_LIMIT", 0.01)
    monkeypatch.setattr(trial, "_PROGRAM", "import time; time.sleep(60)")
    with pytest.raises(EngineError, match="does not start"):
        bounded.fault('start: "c"')
    assert bounded._idle.qsize() == trial.MOST


def test_a_first_mask_that_costs_too_much_is_refused_before_a_step_waits_for_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.sampling.grammar.FIRST_MASK", -1)
    with pytest.raises(RequestError, match="its first token takes") as error:
        llm.matcher(SamplingParams(grammar=Grammar.regex("first{3}")))
    assert error.value.param == "regex"


def test_what_is_no_grammar() -> None:
    with pytest.raises(RequestError, match="at most 65536"):
        Grammar.regex("a" * 70000)
    with pytest.raises(RequestError, match="not JSON"):
        Grammar.json_schema({"a": float("nan")})
    with pytest.raises(RequestError, match="none empty"):
        Grammar.choice([])
    with pytest.raises(RequestError, match="none empty"):
        Grammar.choice(["a", ""])
    with pytest.raises(RequestError, match="Unicode"):
        Grammar.regex("\ud800")
    for name in ("ignore_eos", "min_tokens"):
        with pytest.raises(RequestError, match=name):
            SamplingParams(grammar=Grammar.json_object(), **{name: True if name == "ignore_eos" else 1})


def test_the_mask_has_every_token_that_ends_where_one_may(llm: LLM) -> None:
    matcher = llm.matcher(SamplingParams(grammar=Grammar.regex("a?")))
    assert matcher is not None
    matcher.fill()
    bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [ord("a"), EOS]
    assert not bits[BOT]


class PanicException(BaseException):
    """As pyo3's: none of Exception."""


class Failing:
    """The state of a library's matcher that raises in one of its calls when it is called for the third time."""

    def __init__(self, state: LLMatcher, call: str, error: type[BaseException]) -> None:
        self._state, self._call, self._error, self._calls = state, call, error, 0

    def deep_copy(self) -> Failing:
        return Failing(self._state.deep_copy(), self._call, self._error)

    def __getattr__(self, name: str) -> Any:
        if name != self._call:
            return getattr(self._state, name)

        def counted(*arguments: Any) -> Any:
            self._calls += 1
            if self._calls == 3:
                raise self._error("the library broke")
            return getattr(self._state, name)(*arguments)

        return counted


@pytest.mark.parametrize("error", [PanicException, RuntimeError])
@pytest.mark.parametrize("call", ["unsafe_compute_mask_ptr", "consume_token", "is_error"])
def test_a_matcher_that_breaks_ends_its_own_answer_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, call: str, error: type[BaseException]
) -> None:
    params = [
        SamplingParams(temperature=50, seed=i, max_tokens=40, grammar=grammar)
        for i, grammar in enumerate([Grammar.regex("[b-z]{30}"), Grammar.regex("[a-y]{30}"), None])
    ]
    prompts = ["a>", "b>", "u>"]
    alone = [llm.generate(prompt, one)[0].outputs[0] for prompt, one in zip(prompts, params, strict=True)]
    matcher = llm.matcher

    def broken(params: SamplingParams) -> Matcher | None:
        made = matcher(params)
        if made is not None and params.seed == 0:
            made._state = Failing(made._state, call, error)  # type: ignore[assignment]
        return made

    monkeypatch.setattr(llm, "matcher", broken)
    results = llm.generate(prompts, params, progress=False)
    outputs = [result.outputs[0] for result in results]
    assert outputs[0].finish_reason == "error"
    assert f"{error.__name__}: the library broke" in (results[0].error or "")
    assert alone[0].token_ids[: len(outputs[0].token_ids)] == outputs[0].token_ids
    for output, due in zip(outputs[1:], alone[1:], strict=True):
        assert (output.token_ids, output.finish_reason) == (due.token_ids, due.finish_reason)
    assert llm.engine.pool.used == 0


def test_masks_are_whole_before_a_step_that_fails_is_left() -> None:
    """Nobody fills a mask of a step that is over: its matcher may be on the way to the next."""
    begun, device_failed = Event(), Event()

    class Slow(Matcher):
        filled = 0

        def fill(self) -> None:
            begun.set()
            assert device_failed.wait(10)
            super().fill()
            Slow.filled += 1

    with toy_llm(fail_at=2) as llm:
        run, made = llm.device.run, llm.matcher(SamplingParams(grammar=Grammar.regex("x*")))
        assert made is not None
        slow = Slow(made._state, VOCAB, len(made.mask), EOS, [EOS])

        def failing(batch: Batch) -> NDArray[np.float32]:
            if len(batch.tokens) == 3:  # the whole prompt: the step that samples
                assert begun.wait(10)
                try:
                    return run(batch)
                finally:
                    device_failed.set()
            return run(batch)

        llm.device.run = failing  # type: ignore[method-assign]
        seq = Sequence(list(b"l>x"), SamplingParams(grammar=Grammar.regex("x*")), id="s", matcher=slow)
        llm.engine.add(seq)
        [event] = llm.engine.step()
        assert isinstance(event, FinishEvent) and isinstance(event.error, EngineError)
        assert Slow.filled == 1
