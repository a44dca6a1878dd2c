"""Watching a sequence while it is served: what is seen is right, is bounded, and changes nothing for anybody."""

from __future__ import annotations

import numpy as np
import pytest

from devices.models import RandomModel, spec
from pellucid.devices.base import Tap
from pellucid.engine.engine import Engine
from pellucid.engine.events import TokenEvent
from pellucid.engine.sequence import Sequence
from pellucid.engine.watch import Ring, Seen, Watch, summary_taps
from pellucid.models.decoder import decoder_graph
from pellucid.sampling.params import SamplingParams

MODEL = RandomModel(spec(windows=(20, 0)), "q4_k")
NAMES = [v.name for v in decoder_graph(MODEL.spec).values()]
PROMPTS = [np.random.default_rng(i).integers(0, 201, 5 + 9 * i).tolist() for i in range(5)]


def answers(watched: dict[int, Watch], **options: object) -> list[list[tuple[int, float | None]]]:
    device = MODEL.device(threads=2, **options)
    engine = Engine(device, config=device.config)
    seqs = []
    for i, prompt in enumerate(PROMPTS):
        params = SamplingParams(temperature=1.0, seed=i, max_tokens=6, logprobs=0)
        seq = Sequence(prompt, params, id=str(i))
        seq.watch = watched.get(i)
        engine.add(seq)
        seqs.append(seq)
    out: list[list[tuple[int, float | None]]] = [[] for _ in seqs]
    while engine.busy:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                out[int(event.seq.id)].append((event.token, event.logprob))
    assert engine._watched == 0
    return out


@pytest.mark.parametrize(
    "options", [{}, {"token_budget": 16}, {"kv_pages": 8, "ctx": 64}], ids=["", "chunks", "preempted"]
)
def test_what_is_seen_is_the_replays_and_nobody_notices(options: dict) -> None:
    plain = answers({}, **options)
    name = "blocks.1.hook_resid_post"
    taps = (Tap(name), Tap("blocks.0.hook_mlp_out", "stats"))
    watches = {1: Watch(taps), 3: Watch((Tap("logits", "topk", 3),), every=False)}
    assert answers(watches, **options) == plain
    seen = watches[1].ring.take()
    rows = {int(p): row for s in seen for p, row in zip(s.positions, s.values[taps[0]], strict=True)}
    tokens = [*PROMPTS[1], *(t for t, _ in plain[1])]
    assert sorted(rows) == list(range(len(tokens) - 1))
    device = MODEL.device()
    plan = device.plan(taps)
    from devices.models import batch

    ids = tokens[:-1]
    _, due = plan.run(batch([(ids, 0, [3, 1, 2])], []), np.arange(len(ids), dtype=np.int32))
    for i, row in enumerate(plan.of(due, taps[0])):
        assert np.array_equal(rows[i], row)
    tops = watches[3].ring.take()
    assert all(len(s.positions) == 1 for s in tops)
    last = tops[-1].values[Tap("logits", "topk", 3)][0]
    assert np.isfinite(last).all() and last.shape == (2, 3)


def test_a_ring_drops_the_oldest_and_says_so() -> None:
    ring = Ring(100)
    tap = Tap("x")
    for i in range(5):
        ring.push(Seen(np.array([i, i], np.int32), {tap: np.zeros((2, 5), np.float32)}))
    assert [int(s.positions[0]) for s in ring.take()] == [3, 4] and ring.dropped == 6
    assert ring.take() == []
    ring.push(Seen(np.array([9], np.int32), {tap: np.zeros((1, 50), np.float32)}))
    assert ring.take() == [] and ring.dropped == 7


def test_a_watch_that_cannot_be_is_ended_and_the_answer_is_not() -> None:
    plain = answers({})
    bad, good = Watch((Tap("blocks.9.hook_z"),)), Watch((Tap("hook_embed", "stats"),))
    assert answers({0: bad}) == plain
    assert bad.error is not None and "no value" in bad.error and bad.ring.take() == []
    assert answers({0: good}) == plain and good.error is None and good.ring.take()


def test_a_summary_is_of_what_layers_write() -> None:
    names = {tap.name for tap in summary_taps(NAMES)}
    assert names == {f"blocks.{i}.hook_{what}" for i in (0, 1) for what in ("attn_out", "mlp_out", "resid_post")}
