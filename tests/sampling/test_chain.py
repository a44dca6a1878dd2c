"""The fused native chain equals the NumPy chain, token for token; and the NumPy chain is what it says it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pellucid import _core
from pellucid.errors import EngineError
from pellucid.sampling import chain, mass
from pellucid.sampling.params import SAMPLERS, SamplingParams
from pellucid.sampling.sampler import Sampler
from pellucid.sampling.words import Breaker


def native(logits, params, *, seed=0, choice=0, prompt=(0,), output=(), end_ids=()):
    sampler = Sampler(logits.shape[-1])
    state = sampler.state(params, seed, choice, list(prompt), end_ids)
    if params.remembers:
        for token in output:
            state.push(token)
    position = len(prompt) + len(output)
    return sampler.pick([state], logits.reshape(1, -1), [0], [position])


def defined(logits, params, *, seed=0, choice=0, prompt=(0,), output=(), end_ids=()):
    tokens = [*prompt, *output]
    return chain.trace(
        logits, params, seed=seed, choice=choice, tokens=tokens, prompt_len=len(prompt), end_ids=end_ids
    ).token


def random_case(rng):
    vocab = int(rng.choice([1, 2, 7, 16, 33, 250, 1000, 3001]))
    kind = rng.integers(6)
    if kind == 0:
        logits = rng.normal(0, 4, vocab)
    elif kind == 1:
        logits = np.round(rng.normal(0, 1.5, vocab))  # many ties
    elif kind == 2:
        logits = np.zeros(vocab)
    elif kind == 3:
        logits = rng.normal(0, 30, vocab)
    elif kind == 4:
        logits = rng.normal(-5, 2, vocab)
        logits[rng.random(vocab) < 0.5] = -np.inf
        logits[rng.integers(vocab)] = 1.0
    else:
        logits = rng.normal(0, 0.01, vocab)
    pick = rng.random
    params = SamplingParams(
        temperature=float(rng.choice([0, 0.05, 0.3, 0.7, 1.0, 1.7, 20.0])),
        top_k=int(rng.choice([0, -1, 1, 2, 5, 40, 900, 10**6])),
        top_p=float(rng.choice([1.0, 1e-9, 0.1, 0.5, 0.9, 0.99, 0.999999])),
        min_p=float(rng.choice([0, 0, 0.001, 0.05, 0.3, 1.0])),
        repetition_penalty=float(rng.choice([1.0, 1.0, 0.8, 1.3])),
        presence_penalty=float(rng.choice([0, 0, 0.7, -1.5])),
        repeat_last_n=int(rng.choice([-1, 0, 1, 5, 25, 1000])),
        frequency_penalty=float(rng.choice([0, 0, 0.4, -0.3])),
        logit_bias={int(i): float(rng.normal(0, 20)) for i in rng.integers(0, vocab, 3)} if pick() < 0.3 else {},
        min_tokens=int(rng.integers(0, 6)) if pick() < 0.3 else 0,
    )
    if pick() < 0.5:
        params = replace(
            params,
            top_n_sigma=float(rng.choice([0, 0, 0.5, 1.0, 3.0])),
            typical_p=float(rng.choice([1.0, 1.0, 1e-6, 0.2, 0.9, 0.999])),
            xtc_probability=float(rng.choice([0, 0.5, 1.0])),
            xtc_threshold=float(rng.choice([0, 0.01, 0.1, 0.5, 0.6])),
            dynatemp_range=float(rng.choice([0, 0, 0.3, 5.0])),
            dynatemp_exponent=float(rng.choice([1.0, 0.5, 2.0])),
        )
    if pick() < 0.4:
        params = replace(
            params,
            dry_multiplier=float(rng.choice([0.8, 3.0])),
            dry_base=float(rng.choice([1.0, 1.75, 50.0])),
            dry_allowed_length=int(rng.integers(0, 4)),
            dry_penalty_last_n=int(rng.choice([-1, 0, 1, 7, 100])),
            breakers=[Breaker(frozenset({1, 6})), Breaker(frozenset({0, 2}), (3,))] if pick() < 0.5 else [],
        )
    if pick() < 0.4:
        some = [str(name) for name in rng.permutation(SAMPLERS)[: rng.integers(0, 10)]]
        params = replace(
            params, samplers=["penalties", *(x for x in some if x != "penalties")] if pick() < 0.5 else some
        )
    if pick() < 0.2:
        params = replace(params, allowed_token_ids=rng.integers(0, vocab, rng.integers(1, 9)).tolist())
    if pick() < 0.3:
        words = tuple(tuple(rng.integers(0, min(vocab, 3), rng.integers(1, 4)).tolist()) for _ in range(3))
        params = replace(params, bad_words=["…"], bad_ids=words)
    variety = min(vocab, int(rng.choice([3, 10, 3001])))
    prompt = [int(i) for i in rng.integers(0, variety, rng.integers(1, 20))]
    output = [int(i) for i in rng.integers(0, variety, rng.integers(0, 20))]
    ends = {int(i) for i in rng.integers(0, vocab, 2)} if pick() < 0.5 else set()
    keys = {"seed": int(rng.integers(0, 2**63)), "choice": int(rng.integers(0, 4))}
    return logits.astype(np.float32), params, {"prompt": prompt, "output": output, "end_ids": ends, **keys}


def test_native_equals_the_definition_over_thousands_of_random_rows():
    rng = np.random.default_rng(5)
    refused = 0
    for case in range(6000):
        logits, params, rest = random_case(rng)
        before = logits.copy()
        picks = native(logits, params, **rest)
        assert (logits == before).all()
        try:
            expected = defined(logits, params, **rest)
        except EngineError:
            refused += 1
            with pytest.raises(EngineError):
                picks.token(0, position=0)
            continue
        assert picks.token(0, position=0) == expected, (case, params, rest)
    assert 0 < refused < 600


def test_processed_logprobs_are_those_of_what_is_drawn_from():
    rng = np.random.default_rng(8)
    told = 0
    for case in range(1500):
        logits, params, rest = random_case(rng)
        wanted = int(rng.integers(0, 21))
        picks = native(logits, replace(params, logprobs=wanted, logprobs_mode="processed_logprobs"), **rest)
        prompt = rest["prompt"]
        key = {"seed": rest["seed"], "choice": rest["choice"], "end_ids": rest["end_ids"]}
        try:
            after = chain.log_drawn(logits, params, tokens=[*prompt, *rest["output"]], prompt_len=len(prompt), **key)
        except EngineError:
            continue
        token = picks.token(0, position=0)
        own, top = picks.logprobs(0, token, wanted)
        assert own == after[token] > -np.inf, (case, params)
        expected = [value for value in np.sort(after)[::-1][:wanted] if value > -np.inf]
        assert [value for _, value in top[: len(expected)]] == expected, (case, params)
        assert all(after[id] == value for id, value in top)
        assert len(top) == len(dict(top)) <= len(expected) + 1
        assert abs(np.exp(after.astype(np.float64)).sum() - 1) < 1e-4
        told += 1
    assert told > 1300


def test_processed_logprobs_change_no_token():
    rng = np.random.default_rng(9)
    for _ in range(300):
        logits, params, rest = random_case(rng)
        more = replace(params, logprobs=2, logprobs_mode="processed_logprobs")
        raw, after = native(logits, params, **rest), native(logits, more, **rest)
        assert (raw.tokens, raw.status) == (after.tokens, after.status)


def test_a_big_vocabulary_agrees():
    rng = np.random.default_rng(11)
    vocab = 151_936
    logits = rng.normal(0, 2.5, vocab).astype(np.float32)
    logits[rng.integers(0, vocab, 200)] += 14
    cases = [
        SamplingParams(temperature=0),
        SamplingParams(),
        SamplingParams(top_p=0.95),
        SamplingParams(top_k=40, top_p=0.9),
        SamplingParams(min_p=0.05, temperature=0.7),
        SamplingParams(temperature=20, top_p=0.9),
        SamplingParams(top_k=5000, repetition_penalty=1.2),
        SamplingParams(top_n_sigma=1.0, temperature=3),
        SamplingParams(typical_p=0.7, xtc_probability=0.5, xtc_threshold=0.01),
        SamplingParams(dynatemp_range=0.8, min_p=0.01),
        SamplingParams(dynatemp_range=5, temperature=4, xtc_probability=1, xtc_threshold=0.001),
        SamplingParams(samplers=["xtc", "temperature", "typical_p"], xtc_probability=1, typical_p=0.95, temperature=9),
        SamplingParams(samplers=["typical_p", "top_k", "penalties"], typical_p=0.9, top_k=150_000, presence_penalty=-2),
        SamplingParams(samplers=["min_p", "temperature"], min_p=0.01, temperature=30),
        SamplingParams(samplers=["top_p", "penalties", "temperature"], presence_penalty=2, temperature=3, top_p=0.9),
    ]
    for params in cases:
        for seed in range(8):
            assert native(logits, params, seed=seed).tokens[0] == defined(logits, params, seed=seed)


def test_unfit_rows_are_errors_of_their_own():
    sampler = Sampler(4)
    logits = np.array([[0, 1, 2, 3], [0, np.nan, 0, 0], [0, np.inf, 0, 0], [-np.inf] * 4, [3, 2, 1, 0]], np.float32)
    states = [sampler.state(SamplingParams(temperature=t), 0, 0, [0], ()) for t in (0, 0, 1, 1, 0)]
    picks = sampler.pick(states, logits, range(5), [1] * 5)
    assert picks.token(0, position=1) == 3
    assert picks.token(4, position=1) == 0
    for row in (1, 2, 3):
        with pytest.raises(EngineError, match="position 1"):
            picks.token(row, position=1)


def test_nan_is_found_wherever_it_hides():
    for vocab in (1, 15, 16, 17, 100):
        for at in range(vocab):
            logits = np.zeros(vocab, np.float32)
            logits[at] = np.nan
            params = SamplingParams(min_tokens=5)
            assert native(logits, params, end_ids=(at,)).status == [1]


def test_greedy_takes_the_lowest_id_among_equals():
    for vocab in (3, 40, 1000):
        logits = np.zeros(vocab, np.float32)
        logits[vocab // 2 :] = 7
        assert native(logits, SamplingParams(temperature=0)).tokens == [vocab // 2]


def test_zeros_of_both_signs_are_equal():
    logits = np.array([-0.0, 0.0, -0.0, 0.0], np.float32)
    for seed in range(50):
        assert native(logits, SamplingParams(top_k=2), seed=seed).tokens[0] in (0, 1)
    assert native(logits, SamplingParams(temperature=0)).tokens == [0]


def test_draws_follow_the_distribution():
    probabilities = np.array([0.5, 0.25, 0.125, 0.125])
    logits = np.log(probabilities).astype(np.float32)
    sampler = Sampler(4)
    state = sampler.state(SamplingParams(), 9, 0, [0], ())
    count = 20_000
    picks = sampler.pick([state] * count, logits.reshape(1, -1), [0] * count, range(1, count + 1))
    seen = np.bincount(picks.tokens, minlength=4) / count
    assert np.abs(seen - probabilities).max() < 0.012


def test_each_cut_keeps_what_it_says():
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04])).astype(np.float32)

    def possible(**params):
        return {native(logits, SamplingParams(**params), seed=seed).tokens[0] for seed in range(400)}

    assert possible() == {0, 1, 2, 3, 4}
    assert possible(top_k=2) == {0, 1}
    assert possible(top_p=0.65) == {0, 1}
    assert possible(top_p=0.75) == {0, 1, 2}
    assert possible(min_p=0.4) == {0, 1, 2}
    assert possible(top_k=3, top_p=0.5) == {0, 1}  # 0.4 + 0.3 of 0.9
    assert possible(logit_bias={0: -100}) == {1, 2, 3, 4}
    assert possible(allowed_token_ids=[4, 2, 4], logit_bias={0: 100}) == {2, 4}
    assert possible(allowed_token_ids=[0, 4]) == {0, 4}


def test_min_tokens_holds_the_end_back_even_against_a_bias():
    logits = np.zeros(8, np.float32)
    params = SamplingParams(temperature=0, min_tokens=2, logit_bias={3: 100})
    assert native(logits, params, end_ids=(3,)).tokens == [0]
    assert native(logits, params, end_ids=(3,), output=(1,)).tokens == [0]
    assert native(logits, params, end_ids=(3,), output=(1, 1)).tokens == [3]


def test_bad_words_are_not_completed():
    logits = np.arange(6, dtype=np.float32)
    params = SamplingParams(temperature=0, bad_words=["x"], bad_ids=[(5,), (1, 2, 4), (3, 3)], logit_bias={5: 100})

    def after(*output, prompt=(0,)):
        assert defined(logits, params, prompt=prompt, output=output) == native(
            logits, params, prompt=prompt, output=output
        ).token(0, position=9)
        return defined(logits, params, prompt=prompt, output=output)

    assert after() == after(1) == after(2, 1) == after(2, prompt=(0, 1)) == 4
    assert after(1, 2) == after(0, 1, 2) == 3
    assert after(3) == 4


def test_penalties_count_as_documented():
    logits = np.array([2.0, -2.0, 1.0, 0.5], np.float32)
    repeated = chain.penalize(logits, SamplingParams(repetition_penalty=2.0), [0], [1])
    assert repeated.tolist() == [1.0, -4.0, 1.0, 0.5]
    rest = chain.penalize(logits, SamplingParams(frequency_penalty=0.5, presence_penalty=1.0), [3], [0, 0, 2])
    assert rest.tolist() == [0.0, -2.0, -0.5, 0.5]


def test_penalties_count_the_last_tokens_only():
    logits = np.zeros(4, np.float32)

    def after(window):
        params = SamplingParams(frequency_penalty=1, presence_penalty=0.5, repeat_last_n=window)
        steps = chain.edits(logits, params, tokens=[3, 0, 1, 1, 2], prompt_len=2, end_ids=(), allowed=None)
        return next(row for _, row in steps).tolist()

    assert after(-1) == after(5) == after(3) == [0, -2.5, -1.5, 0]
    assert after(2) == [0, -1.5, -1.5, 0]
    assert after(1) == [0, 0, -1.5, 0]
    assert after(0) == [0, 0, 0, 0]


def test_exp_is_exact_at_zero_and_close_everywhere():
    x = np.linspace(-32, 0, 100_001).astype(np.float32)
    y = mass.exp32(x)
    assert y[-1] == 1.0
    assert (np.abs(y / np.exp(x.astype(np.float64)) - 1) < 2.5e-7).all()


def test_the_trace_names_every_stage_in_order():
    rng = np.random.default_rng(0)
    trace = chain.trace(
        rng.normal(0, 3, 100).astype(np.float32),
        SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01),
        seed=1,
        choice=0,
        tokens=[1, 2],
        prompt_len=2,
        end_ids=(),
    )
    assert tuple(record.name for record in trace.stages) == chain.STAGES
    kept = {record.name: record.kept for record in trace.stages}
    assert kept["temperature"] >= kept["top_k"] >= kept["top_p"] >= kept["min_p"] >= kept["draw"] == 1
    assert kept["top_k"] == 20
    assert trace.stages[-1].top[0][0] == trace.token
    assert 0 <= trace.random < 1


def test_logprobs_are_those_of_the_raw_model():
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 3, (6, 999)).astype(np.float32)
    logits[3] = np.round(logits[3])
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact - exact.max(1, keepdims=True)).sum(1, keepdims=True)) + exact.max(1, keepdims=True)
    sampler = Sampler(999)
    params = SamplingParams(temperature=2, logprobs=20, logit_bias={5: 30}, repetition_penalty=1.5)
    states = [sampler.state(params, seed, 0, [1], ()) for seed in range(6)]
    picks = sampler.pick(states, logits, range(6), [1] * 6)
    for row in range(6):
        token = picks.token(row, position=1)
        own, top = picks.logprobs(row, token, 20)
        assert abs(own - exact[row, token]) < 2e-6
        assert [id for id, _ in top[:20]] == np.argsort(-logits[row], kind="stable")[:20].tolist()
        assert np.abs(np.array([v for _, v in top[:20]]) - [exact[row, id] for id, _ in top[:20]]).max() < 2e-6
        assert dict(top)[token] == own
        assert own == chain.log_softmax(logits[row], [token])[0]


def test_scores_of_a_prompt():
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (5, 70)).astype(np.float32)
    tokens = [1, 69, 0, int(logits[3].argmax()), 8]
    for wanted in (0, 1, 20):
        scores = Sampler(70).score(logits, tokens, wanted)
        for row, token in enumerate(tokens):
            assert dict(scores[row])[token] == chain.log_softmax(logits[row], [token])[0]
            assert len(scores[row]) in (wanted, wanted + 1)
    assert len(scores[3]) == 20
    logits[2, 2] = np.nan
    with pytest.raises(EngineError):
        Sampler(70).score(logits, tokens, 1)


def test_threads_share_rows_and_change_nothing():
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (40, 5000)).astype(np.float32)
    logits[::3] *= 0.01  # flat: what decides lies far from the best
    kinds = [{}, {"top_p": 0.7}, {"top_k": 30}, {"min_p": 0.05}, {"temperature": 0}, {"top_p": 0.999, "logprobs": 3}]
    alone, shared = Sampler(5000), Sampler(5000, _core.Pool(3))
    states = [alone.state(SamplingParams(**kinds[i % len(kinds)]), i, 0, [0], ()) for i in range(40)]
    want, got = (s.pick(states, logits, range(40), range(40)) for s in (alone, shared))
    assert got.tokens == want.tokens
    assert got.own == want.own


def test_the_binding_refuses_what_does_not_fit():
    sampler = Sampler(4)
    state = sampler.state(SamplingParams(logprobs=3), 0, 0, [0], ())
    logits, one = np.zeros((1, 4), np.float32), np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="not in the logits"):
        sampler.pick([state], logits, [1], [0])
    with pytest.raises(ValueError, match="no place"):
        where = one.copy(), one.copy(), np.zeros(1, np.float32)
        _core.sample_rows([state], logits, one, np.zeros(1, np.int64), *where, None, None, None)
    with pytest.raises(ValueError, match="vocabulary"):
        sampler.score(logits, [4], 1)
