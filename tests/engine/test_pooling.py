"""Embeddings: what the reference makes, by whatever path the rows came, and nobody beside them notices."""

from __future__ import annotations

import numpy as np
import pytest

from devices.models import RandomModel, spec
from engine.toy import ToyDevice
from pellucid.config import EngineConfig
from pellucid.devices.base import Tap
from pellucid.engine.engine import Engine
from pellucid.engine.events import FinishEvent, TokenEvent
from pellucid.engine.pooling import KINDS, PoolingKind
from pellucid.engine.sequence import Sequence
from pellucid.engine.watch import Watch
from pellucid.errors import EngineError, RequestError
from pellucid.sampling.params import SamplingParams

SPECS = {
    "gqa": spec(qkv_bias=True, tied=True),
    "sliding": spec(windows=(20, 0), qk_norm="head", post_norms=True, activation="gelu_tanh", logit_softcap=20.0),
    "layer_norm": spec(logit_scale=0.5, residual_scale=0.7, norm="layer", norm_bias=True),
}
PROMPTS = [np.random.default_rng(i).integers(0, 201, n).tolist() for i, n in enumerate((1, 5, 17, 64, 90))]
MODEL = RandomModel(SPECS["gqa"], "q4_k")
NONE = SamplingParams(max_tokens=0)


def engine(model: RandomModel = MODEL, **options: object) -> Engine:
    device = model.device(**{"threads": 2, **options})
    return Engine(device, config=device.config)


def embed(engine: Engine, kind: PoolingKind, *, beside: int = 0) -> tuple[list[bytes], list[list[tuple[int, float]]]]:
    """The embeddings of the prompts, and the answers of `beside` others in the same steps."""
    others = [
        Sequence(prompt, SamplingParams(temperature=1, seed=i, max_tokens=8, logprobs=0, ignore_eos=True))
        for i, prompt in enumerate(PROMPTS[:beside])
    ]
    seqs = [Sequence(prompt, NONE, pooling=kind) for prompt in PROMPTS]
    for seq in [*others, *seqs]:
        engine.add(seq)
    said: dict[str, list[tuple[int, float]]] = {seq.id: [] for seq in others}
    while engine.busy:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                said[event.seq.id].append((event.token, event.logprob or 0.0))
            else:
                assert event.reason == "length", event.error
        engine.scheduler.check()
    assert engine._watched == 0 and engine.pool.used == 0
    vectors = [seq.pooling.vector() for seq in seqs if seq.pooling is not None]
    assert all(abs(float(np.linalg.norm(v.astype(np.float64))) - 1) < 1e-6 for v in vectors)
    return [v.tobytes() for v in vectors], list(said.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SPECS)
def test_it_is_what_the_reference_makes(name: str, kind: PoolingKind) -> None:
    model = RandomModel(SPECS[name], "f32")
    vectors, _ = embed(engine(model), kind)
    for prompt, vector in zip(PROMPTS, vectors, strict=True):
        values: dict[str, np.ndarray] = {}
        model.reference().run(prompt, watch=values.__setitem__)
        states = values["ln_final.hook_scaled"].astype(np.float64)
        pooled = states.mean(axis=0) if kind == "mean" else states[-1]
        assert np.allclose(np.frombuffer(vector, np.float32), pooled / np.linalg.norm(pooled), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_its_bytes_are_the_prompts_alone(kind: PoolingKind) -> None:
    alone = [embed_one(engine(), prompt, kind) for prompt in PROMPTS]
    assert len(set(alone)) == len(PROMPTS)
    _, answers = embed(engine(), kind, beside=3)
    for options in (
        {},
        {"threads": 1},
        {"token_budget": 16},
        {"token_budget": 7},
        {"max_seqs": 2},
        {"prefix_cache": False},
    ):
        assert embed(engine(**options), kind, beside=3) == (alone, answers), options


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_preemption_adds_no_row_twice(kind: PoolingKind, cache: bool) -> None:
    small = engine(kv_pages=9, ctx=128, token_budget=2, prefix_cache=cache)
    older = Sequence(PROMPTS[1], SamplingParams(max_tokens=100, ignore_eos=True, seed=1))
    seq = Sequence(PROMPTS[4], NONE, pooling=kind)
    small.add(older)
    small.add(seq)
    while small.busy:
        small.step()
        small.scheduler.check()
    assert seq.preemptions and seq.pooling is not None
    assert seq.pooling.vector().tobytes() == embed_one(engine(), PROMPTS[4], kind)


def embed_one(engine: Engine, prompt: list[int], kind: PoolingKind) -> bytes:
    seq = Sequence(prompt, NONE, pooling=kind)
    engine.add(seq)
    while engine.busy:
        engine.step()
    assert seq.pooling is not None
    return seq.pooling.vector().tobytes()


def test_only_the_last_row_takes_what_is_cached() -> None:
    warm = engine()
    first = {kind: embed(warm, kind)[0] for kind in KINDS}
    for kind, cached in (("mean", 0), ("last", 80)):
        seq = Sequence(PROMPTS[-1], NONE, pooling=kind)
        warm.add(seq)
        while warm.busy:
            warm.step()
        assert seq.pooling is not None
        assert seq.cached_tokens == cached and seq.pooling.vector().tobytes() == first[kind][-1]
    answer = Sequence(PROMPTS[-1], SamplingParams(max_tokens=1))  # what an embedding computed serves others
    warm.add(answer)
    warm.step()
    assert answer.cached_tokens == 80


def test_answers_notice_nothing_and_bad_watches_harm_nobody() -> None:
    plain = engine()
    others = [Sequence(PROMPTS[3], SamplingParams(temperature=0, max_tokens=8, logprobs=0)) for _ in range(2)]
    plain.add(others[0])
    while plain.busy:
        plain.step()
    beside = engine()
    seq = Sequence(PROMPTS[4], NONE, pooling="mean")
    others[1].watch = Watch((Tap("blocks.9.hook_z"),))
    beside.add(others[1])
    beside.add(seq)
    while beside.busy:
        beside.step()
    assert others[0].output_ids == others[1].output_ids and "no value" in (others[1].watch.error or "")
    assert seq.pooling is not None and seq.pooling.vector().tobytes() == embed_one(engine(), PROMPTS[4], "mean")


def test_a_watch_and_a_pooling_of_one_sequence() -> None:
    one = engine(token_budget=16)
    seq = Sequence(PROMPTS[4], NONE, pooling="mean")
    seq.watch = Watch((Tap("blocks.1.hook_resid_post"),))
    one.add(seq)
    while one.busy:
        one.step()
    assert seq.pooling is not None and seq.pooling.vector().tobytes() == embed_one(engine(), PROMPTS[4], "mean")
    assert sum(len(seen.positions) for seen in seq.watch.ring.take()) == len(PROMPTS[4])


def test_numbers_that_are_none_end_it_alone() -> None:
    model = RandomModel(SPECS["gqa"], "f32")
    table = next(weight for weight in model.weights() if weight.name == "embed.W_E")
    values = table.to_float32().copy()
    values[200] = np.nan
    index = list(model.weights()).index(table)
    model._weights[index] = type(table).from_float32(table.name, values, table.format)
    sick, well = engine(model), Sequence([1, 2, 3], NONE, pooling="mean")
    bad = Sequence([1, 200, 3], NONE, pooling="mean")
    sick.add(bad)
    sick.add(well)
    ends = {event.seq: event for event in sick.step() if isinstance(event, FinishEvent)}
    assert ends[bad].reason == "error" and "no numbers" in str(ends[bad].error)
    assert ends[well].reason == "length" and well.pooling is not None and np.isfinite(well.pooling.vector()).all()


def test_an_embedding_that_was_cut_off_is_none() -> None:
    one = engine(token_budget=16)
    seq = Sequence(PROMPTS[4], NONE, pooling="mean")
    one.add(seq)
    one.step()
    one.abort(seq.id)
    while one.busy:
        one.step()
    assert seq.pooling is not None
    with pytest.raises(EngineError, match="after 16 of 90 tokens"):
        seq.pooling.vector()


def test_a_device_that_shows_nothing_refuses_it() -> None:
    with pytest.raises(RequestError, match="shows no hidden states"):
        Engine(ToyDevice(), config=EngineConfig()).add(Sequence([1, 2], NONE, pooling="mean"))


def test_dimensions_are_cut_and_scaled_anew() -> None:
    seq = Sequence(PROMPTS[2], NONE, pooling="mean")
    one = engine()
    assert one.embedding_size == 256
    one.add(seq)
    while one.busy:
        one.step()
    assert seq.pooling is not None
    whole, cut = seq.pooling.vector(), seq.pooling.vector(10)
    assert cut.shape == (10,) and cut.dtype == np.float32
    assert np.allclose(cut, whole[:10] / np.linalg.norm(whole[:10]), atol=1e-6)
