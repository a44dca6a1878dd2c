"""The engine over the toy device: whatever stands beside a sequence, it says what it says alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.toy import BOOM_TOKEN, NAN_TOKEN, VOCAB, ToyDevice, drain, engine, solo, step
from pellucid.config import EngineConfig
from pellucid.engine.engine import Engine
from pellucid.engine.sequence import Sequence
from pellucid.errors import CapacityError, ContextLengthError, EngineError, RequestError
from pellucid.sampling.params import SamplingParams

SAFE = NAN_TOKEN  # ids below this neither poison nor explode
BAN = {NAN_TOKEN: -100.0, BOOM_TOKEN: -100.0}


def some_params(rng: random.Random) -> SamplingParams:
    kind = rng.randrange(4)
    common = {"max_tokens": rng.randint(1, 40), "logit_bias": BAN}
    if kind == 0:
        return SamplingParams(temperature=0, **common)
    if kind == 1:
        return SamplingParams(top_k=5, top_p=0.9, allowed_token_ids=range(0, SAFE, 2), **common)
    if kind == 2:
        return SamplingParams(temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.3, **common)
    return SamplingParams(min_p=0.05, logprobs=3, min_tokens=rng.randint(0, 1), **common)


def some_prompt(rng: random.Random) -> list[int]:
    shared = [(7 * i) % SAFE for i in range(rng.choice([0, 5, 16, 33, 48]))]
    return shared + [rng.randrange(SAFE) for _ in range(rng.randint(1, 50))]


def storm(seed: int, *, budget: int, pages: int, max_seqs: int, cache: bool, count: int = 14) -> Engine:
    """Sequences join at random, some are aborted; those that end by themselves said what they say alone."""
    rng = random.Random(seed)
    device = ToyDevice(page_count=pages, context=144)
    run = engine(device, token_budget=budget, max_seqs=max_seqs, prefix_cache=cache)
    outputs, ends, seqs = {}, {}, {}
    stops = frozenset({3})
    while len(seqs) < count or run.busy:
        if len(seqs) < count and rng.random() < 0.4:
            number = len(seqs)
            seq = Sequence(
                some_prompt(rng),
                some_params(rng),
                id=str(number),
                seed=number,
                choice=number % 3,
                priority=rng.choice([0, 0, 0, 1, -1]),
                stop_ids=stops,
            )
            seqs[seq.id] = seq
            try:
                run.add(seq)
            except CapacityError:
                assert pages < 9
                seqs[seq.id] = None
        if seqs and rng.random() < 0.04:
            run.abort(rng.choice(list(seqs)))
        step(run, outputs, ends)
    for id, seq in seqs.items():
        if seq is None:
            continue
        prompt = seq.tokens[: seq.prompt_len]
        expected, reason = solo(prompt, seq.params, seed=seq.seed, choice=seq.choice, stop_ids=stops)
        if ends[id].reason == "abort":
            assert outputs.get(id, []) == expected[: len(outputs.get(id, []))]
        else:
            assert outputs[id] == expected
            assert ends[id].reason == reason
    assert run.pool.used == 0
    run.pool.check([])
    assert run.tables.room == max_seqs
    assert (run.tables.table == -1).all()
    assert not run.scheduler._coming
    return run


@pytest.mark.parametrize("budget", [1, 7, 64])
@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("pages", [7, 12, 64])
def test_joins_aborts_chunks_and_small_pools_change_nothing(budget, cache, pages):
    run = storm(budget * 100 + pages, budget=budget, pages=pages, max_seqs=5, cache=cache)
    if pages == 7 and budget > 1:
        assert run.stats.preemptions > 0
    if cache and pages == 64:
        assert run.stats.prefix_hits > 0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 80), st.integers(6, 30), st.integers(1, 8), st.booleans())
def test_any_storm(seed, budget, pages, max_seqs, cache):
    storm(seed, budget=budget, pages=pages, max_seqs=max_seqs, cache=cache, count=8)


def test_sixty_four_together():
    device = ToyDevice(page_count=300, context=128)
    run = engine(device, max_seqs=64, token_budget=96)
    params = SamplingParams(max_tokens=20, logit_bias=BAN)
    seqs = [Sequence([i % 50, 2, i // 2], params, id=str(i), seed=i) for i in range(64)]
    for seq in seqs:
        run.add(seq)
    outputs, ends = drain(run)
    assert all(end.reason == "length" for end in ends.values())
    for seq in seqs[::7]:
        assert outputs[seq.id] == solo(seq.tokens[:3], params, seed=seq.seed)[0]
    assert run.stats.generated_tokens == 64 * 20
    assert run.stats.prompt_tokens == 64 * 3
    assert run.stats.finished["length"] == 64


def test_preempted_sequences_say_the_same():
    device = ToyDevice(page_count=6, context=96)
    run = engine(device, max_seqs=4, token_budget=64, prefix_cache=False)
    params = SamplingParams(max_tokens=60, temperature=0.9, presence_penalty=0.5, logit_bias=BAN, prompt_logprobs=2)
    seqs = [Sequence([i, i + 1, i + 2] * 3, params, id=str(i), seed=i) for i in range(4)]
    for seq in seqs:
        run.add(seq)
    outputs, _ = drain(run)
    assert run.stats.preemptions > 2
    assert max(seq.preemptions for seq in seqs) > 0
    for seq in seqs:
        assert outputs[seq.id] == solo(seq.tokens[:9], params, seed=seq.seed)[0]
        assert len(seq.prompt_logprobs) == 9
    assert seqs[0].preemptions == 0, "the oldest goes on"


def test_answers_to_one_request_share_the_prompt():
    device = ToyDevice()
    run = engine(device, max_seqs=8)
    params = SamplingParams(n=4, max_tokens=8, logit_bias=BAN, seed=5)
    prompt = list(range(50))
    seqs = Sequence.fan_out(prompt, params, id="r")
    for seq in seqs:
        run.add(seq)
    outputs, _ = drain(run)
    assert [seq.id for seq in seqs] == ["r-0", "r-1", "r-2", "r-3"]
    assert [seq.cached_tokens for seq in seqs] == [0, 48, 48, 48]
    assert device.rows_run < 50 + 3 * 2 + 4 * 8
    assert len({tuple(outputs[seq.id]) for seq in seqs}) == 4
    for seq in seqs:
        assert outputs[seq.id] == solo(prompt, params, choice=seq.choice)[0]


def test_a_warm_prefix_computes_at_least_one_token_and_counts():
    run = engine()
    params = SamplingParams(temperature=0, max_tokens=4, logit_bias=BAN)
    answers = []
    for id in ("cold", "warm"):
        seq = Sequence(range(32), params, id=id)
        run.add(seq)
        answers.append((drain(run)[0][id], seq.cached_tokens))
    assert answers[0][0] == answers[1][0]
    assert [cached for _, cached in answers] == [0, 16]
    assert run.stats.prefix_queries == 64
    assert run.stats.prefix_hits == 16
    seq = Sequence([*range(32), *answers[0][0], 1], params, id="next turn")
    run.add(seq)
    drain(run)
    assert seq.cached_tokens == 32


def test_answers_are_cached_for_the_next_turn():
    run = engine()
    seq = Sequence(range(10), SamplingParams(temperature=0, max_tokens=30, logit_bias=BAN), id="a")
    run.add(seq)
    drain(run)
    following = Sequence([*seq.tokens, 4], SamplingParams(max_tokens=1, logit_bias=BAN), id="b")
    run.add(following)
    drain(run)
    assert following.cached_tokens == 32  # 39 of the 40 tokens were computed: two full pages


def test_decodes_go_before_prefills_and_both_share_the_budget():
    run = engine(token_budget=8)
    frames = []
    run.hub.subscribe("schedule", lambda _, frame: frames.append(frame["rows"]))
    params = SamplingParams(max_tokens=20, logit_bias=BAN)
    run.add(Sequence([1], params, id="short"))
    run.step()
    run.add(Sequence(range(30), params, id="long"))
    for _ in range(5):
        run.step()
    full = [[("short", i + 1, 1), ("long", 7 * i, 7)] for i in range(4)]
    assert frames[1:6] == [*full, [("short", 5, 1), ("long", 28, 2)]]


def test_a_sequence_that_waits_for_a_prefix_does_not_block_the_others():
    run = engine(token_budget=64)
    frames = []
    run.hub.subscribe("schedule", lambda _, frame: frames.append([id for id, _, _ in frame["rows"]]))
    params = SamplingParams(max_tokens=3, logit_bias=BAN)
    prompt = list(range(40))
    for id, ids in (("lead", prompt), ("twin", [*prompt, 1]), ("other", [9, 9])):
        run.add(Sequence(ids, params, id=id))
    drain(run)
    assert frames[0] == ["lead", "other"]
    assert frames[1] == ["lead", "other", "twin"]


def test_an_aborted_leader_lets_its_followers_go_on():
    run = engine(token_budget=16)
    params = SamplingParams(max_tokens=2, logit_bias=BAN, temperature=0)
    prompt = [i % 40 for i in range(80)]
    run.add(Sequence(prompt, params, id="lead"))
    run.add(Sequence(prompt, params, id="twin"))
    run.step()
    run.abort("lead")
    outputs, ends = drain(run)
    assert ends["lead"].reason == "abort"
    assert outputs["twin"] == solo(prompt, params)[0]


def test_ends():
    greedy = {"temperature": 0, "logit_bias": {**BAN, 3: 50.0}}
    cases = [
        (SamplingParams(**greedy), frozenset({3}), [3], "stop"),
        (SamplingParams(**greedy, stop_token_ids=(3,)), frozenset(), [3], "stop"),
        (SamplingParams(**greedy, max_tokens=4), frozenset(), [3] * 4, "length"),
        (SamplingParams(**greedy, max_tokens=4, ignore_eos=True), frozenset({3}), [3] * 4, "length"),
        (SamplingParams(**greedy, stop_token_ids=(3,), ignore_eos=True), frozenset({3}), [3], "stop"),
        (SamplingParams(**greedy, max_tokens=0), frozenset(), [], "length"),
    ]
    for params, stops, expected, reason in cases:
        assert solo([1, 2], params, stop_ids=stops) == (expected, reason)
    output, reason = solo([1, 2], SamplingParams(**greedy, min_tokens=5, max_tokens=9), stop_ids=frozenset({3}))
    assert (len(output), output[-1], reason) == (6, 3, "stop")
    assert 3 not in output[:-1]
    run = engine()
    run.add(Sequence([1], cases[0][0], id="a", stop_ids=frozenset({3})))
    assert drain(run)[1]["a"].stop_token == 3


def test_max_tokens_none_goes_to_the_end_of_the_context():
    run = engine(ToyDevice(context=40))
    seq = Sequence(range(10), SamplingParams(max_tokens=None, temperature=0, logit_bias=BAN), id="a")
    run.add(seq)
    _, ends = drain(run)
    assert len(seq.tokens) == 40
    assert ends["a"].reason == "length"


def test_what_can_never_be_served_is_refused():
    run = engine(ToyDevice(page_count=2, context=64), max_seqs=1, max_queue=1)
    with pytest.raises(ContextLengthError, match=r"maximum context length is 64 tokens.*70 tokens \(60 in.*10 in"):
        run.add(Sequence([1] * 60, SamplingParams(max_tokens=10)))
    with pytest.raises(ContextLengthError):
        run.add(Sequence([1] * 64, SamplingParams(max_tokens=None)))
    with pytest.raises(CapacityError, match="2 pages of 16 tokens and this request needs 3"):
        run.add(Sequence([1] * 30, SamplingParams(max_tokens=4)))
    run.add(Sequence([1] * 30, SamplingParams(max_tokens=3, logit_bias=BAN), id="fits"))
    for prompt, params in (([], {}), ([-1], {}), ([VOCAB], {}), ([1], {"logit_bias": {VOCAB: 1}})):
        with pytest.raises(RequestError):
            run.add(Sequence(prompt, SamplingParams(**params)))
    with pytest.raises(RequestError, match="unique"):
        run.add(Sequence([1], id="fits"))
    run.add(Sequence([1], id="waits"))
    assert run.room == 0
    with pytest.raises(CapacityError, match="max_queue=1"):
        run.add(Sequence([1]))
    run.abort_all()
    run.abort("unknown")
    assert {end.reason for end in drain(run)[1].values()} == {"abort"}


def test_poison_harms_only_itself():
    run = engine()
    params = SamplingParams(temperature=0, max_tokens=12, logit_bias=BAN)
    run.add(Sequence([1, 2], params, id="good"))
    run.add(Sequence([1, NAN_TOKEN], params, id="nan"))
    run.add(
        Sequence([5, NAN_TOKEN, 5], SamplingParams(max_tokens=3, logit_bias=BAN, prompt_logprobs=1), id="nan in prompt")
    )
    outputs, ends = drain(run)
    assert outputs["good"] == solo([1, 2], params)[0]
    for id in ("nan", "nan in prompt"):
        assert ends[id].reason == "error"
        assert isinstance(ends[id].error, EngineError)
    assert run.pool.used == 0


def test_a_step_that_fails_ends_its_sequences_and_the_engine_lives():
    run = engine(max_seqs=2)
    params = SamplingParams(temperature=0, max_tokens=3, logit_bias=BAN)
    run.add(Sequence([1, 2], params, id="beside"))
    run.add(Sequence([1, BOOM_TOKEN], params, id="boom"))
    run.add(Sequence([1, 2], params, id="later"))
    outputs, ends = drain(run)
    for id in ("beside", "boom"):
        assert ends[id].reason == "error"
        assert "boom" in ends[id].error.message
    assert outputs["later"] == solo([1, 2], params)[0]


def test_a_fault_in_one_sequence_ends_that_one(monkeypatch):
    run = engine()
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=2, logit_bias=BAN)
    bad = Sequence([1, 2], params, id="bad")
    run.add(bad)
    run.add(Sequence([1, 2], params, id="good"))
    outputs, ends = {}, {}
    step(run, outputs, ends)
    bad.end_ids = None  # a bug of ours, as it were
    drain(run, outputs, ends)
    assert ends["bad"].reason == "error"
    assert ends["good"].reason == "length"


@pytest.mark.parametrize("budget", [1, 7, 64])
def test_prompt_logprobs_are_the_same_in_any_chunks_and_with_a_warm_cache(budget):
    prompt = [(5 * i) % SAFE for i in range(70)]
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=3, logprobs=0, logit_bias=BAN)

    def scores(run):
        seq = Sequence(prompt, params)
        run.add(seq)
        drain(run)
        return seq.prompt_logprobs

    run = engine(token_budget=budget)
    run.scheduler.score_rows = 5
    cold = scores(run)
    assert scores(run) == cold == scores(engine())
    assert run.device.most_logit_rows <= 6
    assert cold[0] is None
    assert len(cold) == 70
    assert all(token in dict(entry) for token, entry in zip(prompt[1:], cold[1:], strict=True))
    plain = Sequence(prompt, SamplingParams(max_tokens=1, logit_bias=BAN))
    run.add(plain)
    drain(run)
    assert plain.cached_tokens == 64
    assert plain.prompt_logprobs is None


def test_a_prompt_can_be_scored_without_an_answer():
    run = engine()
    seq = Sequence(range(20), SamplingParams(max_tokens=0, prompt_logprobs=0))
    run.add(seq)
    outputs, ends = drain(run)
    assert outputs == {}
    assert ends[seq.id].reason == "length"
    assert len(seq.prompt_logprobs) == 20


def test_logprobs_come_with_each_token():
    run = engine()
    run.add(Sequence([1, 2], SamplingParams(temperature=2, max_tokens=9, logprobs=2, logit_bias=BAN, seed=3)))
    seen = 0
    while run.busy:
        for event in run.step():
            if hasattr(event, "token"):
                seen += 1
                assert dict(event.top)[event.token] == event.logprob
                assert len(event.top) in (2, 3)
                assert event.top[0][1] >= event.top[1][1]
    assert seen == 9


def test_seeds():
    params = SamplingParams(max_tokens=1, logit_bias=BAN)
    configured = Engine(ToyDevice(), config=EngineConfig(seed=77))
    for own, expected in ((None, 77), (5, 5)):
        seq = Sequence([1], params, seed=own)
        configured.add(seq)
        assert seq.seed == expected
    assert Sequence([1], params).seed != Sequence([1], params).seed
    assert len({seq.seed for seq in Sequence.fan_out([1], SamplingParams(n=3))}) == 1
    assert Sequence([1], SamplingParams(seed=9), seed=5).seed == 9


def test_watching_every_point_changes_nothing():
    params = SamplingParams(top_k=9, max_tokens=30, repetition_penalty=1.3, logit_bias=BAN, seed=4)
    run = engine(ToyDevice(page_count=4, context=64), max_seqs=3)
    seen = {}
    from pellucid.probes.points import POINTS

    ends = [run.hub.subscribe(point, lambda name, frame: seen.setdefault(name, []).append(frame)) for point in POINTS]
    for i in range(4):
        run.add(Sequence([1, 2, i] * 5, params, id=str(i)))
    outputs, _ = drain(run)
    for i in range(4):
        assert outputs[str(i)] == solo([1, 2, i] * 5, params)[0]
    assert set(seen) == set(POINTS)
    for frame in seen["sample"]:
        token = frame["seq"].tokens[frame["position"]]
        assert frame["trace"].token == token
    for end in ends:
        end()
    assert not any(run.hub.wants(point) for point in POINTS)


def test_an_observer_that_raises_is_removed_and_reported():
    run = engine()

    def broken(point, frame):
        raise KeyError("mine")

    run.hub.subscribe("sample", broken)
    params = SamplingParams(max_tokens=3, logit_bias=BAN, seed=1)
    run.add(Sequence([1], params, id="a"))
    assert drain(run)[0]["a"] == solo([1], params)[0]
    assert run.hub.removed == [("sample", "KeyError('mine')")]
    assert not run.hub.wants("sample")
    with pytest.raises(RequestError, match="no point"):
        run.hub.subscribe("nowhere", broken)


def test_priority_goes_before_arrival():
    run = engine(max_seqs=1)
    params = SamplingParams(max_tokens=2, logit_bias=BAN)
    for id, priority in (("first", 0), ("later", 5), ("urgent", -1)):
        run.add(Sequence([1], params, id=id, priority=priority))
    assert list(drain(run)[1]) == ["urgent", "first", "later"]


def test_times_are_recorded_in_order():
    run = engine()
    seq = Sequence([1], SamplingParams(max_tokens=2, logit_bias=BAN))
    run.add(seq)
    drain(run)
    assert seq.queued_at <= seq.scheduled_at <= seq.first_token_at <= seq.finished_at
