"""generate, chat, stream, score and the tokens of an LLM, on a model that says what it is told to."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Iterator
from itertools import zip_longest

import numpy as np
import pytest

from pellucid.errors import ContextLengthError, RequestError
from pellucid.llm import LLM
from pellucid.sampling.params import SamplingParams
from toymodel import BOT, D_MODEL, EOS, USER, hidden_states, toy_llm

GREEDY = SamplingParams(temperature=0, max_tokens=64)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with toy_llm() as llm:
        yield llm
        assert settles(llm)


def settles(llm: LLM) -> bool:
    """Whether all sequences leave the engine and all pages return, soon."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        stats = llm.engine.stats
        if not (stats.running or stats.waiting or stats.pages_used or llm.worker.pending):
            llm.engine.scheduler.check()
            return True
        time.sleep(0.005)
    return False


def test_embeddings(llm: LLM) -> None:
    texts = ["a>", "hello", list(b"hello")]
    vectors = llm.embed(texts)
    assert vectors.shape == (3, D_MODEL) and vectors.dtype == np.float32
    states = hidden_states(np.frombuffer(b"hello", np.uint8).astype(np.int32), np.arange(5, dtype=np.int32))
    assert np.allclose(vectors[1], states.mean(axis=0) / np.linalg.norm(states.mean(axis=0)), atol=1e-6)
    assert np.array_equal(vectors[1], vectors[2])
    [last] = llm.embed("hello", pooling="last", dimensions=4)
    assert np.allclose(last, states[-1, :4] / np.linalg.norm(states[-1, :4]), atol=1e-6)
    assert llm.embed([]).shape == (0, D_MODEL)
    assert llm.embed(["a" * 512]).shape == (1, D_MODEL)
    with pytest.raises(ContextLengthError, match="513"):
        llm.embed(["fine", "a" * 513])


def test_one_prompt(llm: LLM) -> None:
    [result] = llm.generate("a>", GREEDY)
    [answer] = result.outputs
    assert result.prompt == "a>"
    assert result.prompt_token_ids == list(b"a>")
    assert result.finished
    assert answer.index == 0
    assert answer.text == "apples and pears"
    assert answer.token_ids == [*b"apples and pears", EOS]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
    assert answer.logprobs is None
    assert answer.cumulative_logprob is None


def test_many_prompts_keep_their_order(llm: LLM) -> None:
    results = llm.generate(["b>", "a>", list(b"b>")], GREEDY)
    assert [r.outputs[0].text for r in results] == ["one. two. three.", "apples and pears", "one. two. three."]
    assert [r.prompt for r in results] == ["b>", "a>", None]


def test_one_params_for_each_prompt(llm: LLM) -> None:
    each = [SamplingParams(temperature=0, max_tokens=3), SamplingParams(temperature=0, max_tokens=5)]
    results = llm.generate(["a>", "b>"], each)
    assert [(r.outputs[0].text, r.outputs[0].finish_reason) for r in results] == [
        ("app", "length"),
        ("one. ", "length"),
    ]
    with pytest.raises(RequestError, match="2 sampling parameters for 1 prompts"):
        llm.generate(["a>"], each)


def test_no_prompts(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_more_prompts_than_the_queue_takes() -> None:
    with toy_llm(max_seqs=2, max_queue=1) as llm:
        results = llm.generate([f"{'ab'[i % 2]}{i}>" for i in range(20)], GREEDY)
        assert [r.outputs[0].text[0] for r in results] == ["a", "o"] * 10
        assert settles(llm)


@pytest.mark.parametrize(
    ("stop", "text"), [(("two",), "one. "), ((". t",), "one"), (("zebra", "e"), "on"), (("three.",), "one. two. ")]
)
def test_stop_strings(llm: LLM, stop: tuple[str, ...], text: str) -> None:
    [result] = llm.generate("b>", SamplingParams(temperature=0, max_tokens=64, stop=stop))
    answer = result.outputs[0]
    assert answer.text == text
    assert answer.finish_reason == "stop"
    assert answer.stop_reason in stop
    assert bytes(answer.token_ids).decode() == text + str(answer.stop_reason)


def test_stop_string_is_kept_if_asked(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=64, stop=("two",), include_stop_str_in_output=True)
    assert llm.generate("b>", params)[0].outputs[0].text == "one. two"


def test_stop_token(llm: LLM) -> None:
    [result] = llm.generate("b>", SamplingParams(temperature=0, max_tokens=64, stop_token_ids=(ord("."),)))
    answer = result.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("one", "stop", ord("."))
    assert answer.token_ids == list(b"one.")


def test_characters_come_whole(llm: LLM) -> None:
    chunks = list(llm.stream("u>", GREEDY))
    assert "".join(chunk.text for chunk in chunks) == "über 🌧️ rain"
    assert "�" not in "".join(chunk.text for chunk in chunks)
    assert [token for chunk in chunks for token in chunk.token_ids] == [*"über 🌧️ rain".encode(), EOS]


def test_a_character_cut_by_the_limit_is_replaced(llm: LLM) -> None:
    [result] = llm.generate("é>", SamplingParams(temperature=0, max_tokens=2))
    assert result.outputs[0].text == "n\ufffd"


def test_several_choices(llm: LLM) -> None:
    [result] = llm.generate("a>", SamplingParams(temperature=2.5, n=4, max_tokens=64, seed=5))
    assert [answer.index for answer in result.outputs] == [0, 1, 2, 3]
    assert len({answer.text for answer in result.outputs}) > 1
    again = llm.generate("a>", SamplingParams(temperature=2.5, n=4, max_tokens=64, seed=5))[0]
    assert [a.token_ids for a in again.outputs] == [a.token_ids for a in result.outputs]


def test_seed_is_drawn_and_recorded(llm: LLM) -> None:
    params = SamplingParams(temperature=3.0, max_tokens=32)
    one, two = llm.generate(["a>", "a>"], params)
    assert one.seed != two.seed
    again = llm.generate("a>", SamplingParams(temperature=3.0, max_tokens=32, seed=one.seed))[0]
    assert again.outputs[0].token_ids == one.outputs[0].token_ids
    assert again.seed == one.seed


def test_seed_of_the_llm() -> None:
    with toy_llm(seed=11) as llm:
        one, two = llm.generate(["a>", "a>"], SamplingParams(temperature=3.0, max_tokens=32))
        assert one.seed == two.seed == 11
        assert one.outputs[0].token_ids == two.outputs[0].token_ids


def test_logprobs(llm: LLM) -> None:
    [result] = llm.generate("a>", SamplingParams(temperature=0, max_tokens=3, logprobs=2))
    answer = result.outputs[0]
    assert answer.logprobs is not None
    assert len(answer.logprobs) == 3
    for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
        assert next(iter(entry)) == token
        assert len(entry) == 2
        assert entry[token].rank == 1
        assert entry[token].decoded_token == chr(token)
        assert entry[0].rank == 2
    assert answer.cumulative_logprob == pytest.approx(
        sum(e[t].logprob for t, e in zip(answer.token_ids, answer.logprobs, strict=True))
    )


def test_logprob_of_a_token_outside_the_top(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=1, logit_bias={ord("z"): 100.0})
    [result] = llm.generate("a>", params)
    answer = result.outputs[0]
    assert answer.token_ids == [ord("z")]
    assert answer.logprobs is not None
    entry = answer.logprobs[0]
    assert entry[ord("z")].rank is None
    assert entry[ord("a")].rank == 1


def test_prompt_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=0)
    [result] = llm.generate("a>ap", params)
    assert result.prompt_logprobs is not None
    assert result.prompt_logprobs[0] is None
    assert [list(entry) for entry in result.prompt_logprobs[1:] if entry] == [[b] for b in b">ap"]
    assert [entry[b].rank for b, entry in zip(b">ap", result.prompt_logprobs[1:], strict=True) if entry] == [64, 1, 1]


def test_cached_tokens(llm: LLM) -> None:
    prompt = "a" * 100 + ">"
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0
    again = llm.generate(prompt, GREEDY)[0]
    assert again.num_cached_tokens == 96
    assert again.outputs[0].text == "apples and pears"


def test_chat(llm: LLM) -> None:
    messages = [{"role": "user", "content": "a pear"}]
    [result] = llm.chat(messages, GREEDY)
    assert result.prompt == "<user>a pear<bot>"
    assert result.prompt_token_ids == [USER, *b"a pear", BOT]
    assert result.outputs[0].text == "apples and pears"
    two = llm.chat([messages, [{"role": "user", "content": "b"}]], GREEDY)
    assert [r.outputs[0].text for r in two] == ["apples and pears", "one. two. three."]


def test_spelled_control_tokens_stay_text(llm: LLM) -> None:
    ids = llm.tokenize_chat([{"role": "user", "content": "a<bot></s>"}])
    assert ids == [USER, *b"a<bot></s>", BOT]


def test_chat_without_a_template() -> None:
    with toy_llm(template=None) as llm, pytest.raises(RequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "a"}], GREEDY)


def test_stream_equals_generate(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=3, max_tokens=50, n=2, logprobs=1)
    whole = llm.generate("b>", params)[0]
    stream = llm.stream("b>", params)
    text, tokens, logprobs = ["", ""], [[], []], [[], []]
    ends: list[int] = []
    while True:
        try:
            chunk = next(stream)
        except StopIteration as done:
            result = done.value
            break
        text[chunk.index] += chunk.text
        tokens[chunk.index] += chunk.token_ids
        logprobs[chunk.index] += chunk.logprobs or []
        if chunk.finish_reason is not None:
            ends.append(chunk.index)
    assert sorted(ends) == [0, 1]
    for i in range(2):
        assert text[i] == whole.outputs[i].text == result.outputs[i].text
        assert tokens[i] == whole.outputs[i].token_ids
        assert logprobs[i] == whole.outputs[i].logprobs


def test_stream_of_messages(llm: LLM) -> None:
    assert "".join(c.text for c in llm.stream([{"role": "user", "content": "b"}], GREEDY)) == "one. two. three."


def test_a_stream_that_is_left_gives_its_pages_back(llm: LLM) -> None:
    stream = llm.stream("l>", SamplingParams(temperature=0, max_tokens=400))
    next(stream)
    stream.close()
    assert settles(llm)
    for _ in llm.stream("l>", SamplingParams(temperature=0, max_tokens=400)):
        break
    gc.collect()
    assert settles(llm)


def test_an_interrupted_generate_gives_its_pages_back(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pellucid.answers.Answer.take", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["l>", "l1>", "l2>"], SamplingParams(temperature=0, max_tokens=400))
    assert settles(llm)
    assert llm.generate("a>", GREEDY)[0].outputs[0].text == "apples and pears"


def test_two_streams_at_once(llm: LLM) -> None:
    one, two = llm.stream("a>", GREEDY), llm.stream("b>", GREEDY)
    text = ["", ""]
    for chunks in zip_longest(one, two):
        for i, chunk in enumerate(chunks):
            text[i] += chunk.text if chunk else ""
    assert text == ["apples and pears", "one. two. three."]


def test_calls_from_several_threads(llm: LLM) -> None:
    wrong: list[str] = []

    def call(i: int) -> None:
        for k in range(5):
            key, text = [("a", "apples and pears"), ("b", "one. two. three.")][(i + k) % 2]
            got = llm.generate(f"{key}{i}{k}>", GREEDY)[0].outputs[0].text
            if got != text:
                wrong.append(got)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not wrong


def test_too_long_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match="maximum context length is 512 tokens"):
        llm.generate(["a>", "a" * 600], GREEDY)
    assert llm.engine.stats.steps == 0


def test_default_params_bow_to_the_context(llm: LLM) -> None:
    [result] = llm.generate("l" + "." * 480 + ">")
    assert len(result.outputs[0].token_ids) == 512 - 482
    assert result.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("ids", [[1, 260], [-1], [1.5], [True], ["a", "b", 3]])
def test_ids_that_are_none(llm: LLM, ids: list[object]) -> None:
    with pytest.raises(RequestError, match="token"):
        llm.generate([ids], GREEDY)  # type: ignore[list-item]


def test_empty_prompt(llm: LLM) -> None:
    with pytest.raises(RequestError, match="empty"):
        llm.generate("", GREEDY)
    with pytest.raises(RequestError, match="empty"):
        llm.chat([], GREEDY)


def test_a_step_that_fails_ends_its_answers_only() -> None:
    with toy_llm(fail_at=20) as llm:
        [bad] = llm.generate("a" + "." * 17 + ">", SamplingParams(temperature=0, max_tokens=20))
        assert bad.outputs[0].finish_reason == "error"
        assert bad.error is not None
        assert "told to fail" in bad.error
        assert llm.generate("b>", SamplingParams(temperature=0, max_tokens=5))[0].outputs[0].text == "one. "


def test_score(llm: LLM) -> None:
    score = llm.score("a>apx")
    assert score.token_ids == list(b"a>apx")
    assert score.tokens == ["a", ">", "a", "p", "x"]
    assert score.logprobs[0] is None
    assert score.ranks[0] is None
    assert score.ranks[2:4] == [1, 1]
    assert score.ranks[4] == ord("x") + 1  # logits fall with the id, but for the one that was to follow
    likely, unlikely = score.logprobs[3], score.logprobs[4]
    assert likely is not None
    assert unlikely is not None
    assert likely > -0.01
    assert unlikely < -10
    values = [value for value in score.logprobs if value is not None]
    assert score.perplexity == pytest.approx(math.exp(-sum(values) / 4))


def test_score_of_one_token_is_no_number(llm: LLM) -> None:
    assert math.isnan(llm.score("a").perplexity)


def test_tokens_and_back(llm: LLM) -> None:
    ids = llm.tokenize("né 🌧️")
    assert ids == list("né 🌧️".encode())
    assert llm.detokenize(ids) == "né 🌧️"
    with pytest.raises(RequestError, match="token"):
        llm.detokenize([999])


def test_close() -> None:
    llm = toy_llm()
    llm.generate("a>", GREEDY)
    llm.close()
    llm.close()
    with pytest.raises(RequestError, match="closed"):
        llm.generate("a>", GREEDY)


def test_close_while_another_thread_generates() -> None:
    llm = toy_llm(ctx=2048, kv_pages=200)
    stream = llm.stream("l>", SamplingParams(temperature=0, max_tokens=1900))
    next(stream)
    llm.close()
    chunks = list(stream)
    assert chunks[-1].finish_reason in ("abort", "stop", "length")


def test_dropped_llm_ends_its_thread() -> None:
    llm = toy_llm()
    llm.generate("a>", GREEDY)
    before = threading.active_count()
    del llm
    gc.collect()
    assert threading.active_count() < before
