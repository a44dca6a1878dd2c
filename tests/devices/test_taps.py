"""Taps: what they show is what the reference makes, and looking changes nothing, whoever is looked at."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.models import RandomModel, batch, run_all, spec
from pellucid.devices.base import Tap
from pellucid.errors import RequestError
from pellucid.models.decoder import decoder_graph
from pellucid.models.spec import ExpertsSpec

SPECS = {
    "mha": spec(kv_heads=4),
    "gqa": spec(qkv_bias=True, tied=True),
    "sliding": spec(windows=(20, 0), qk_norm="head", post_norms=True, activation="gelu_tanh", logit_softcap=20.0),
    "experts": spec(d_ff=96, experts=ExpertsSpec(9, 3, normalized=True, d_shared=64, shared_gated=True)),
    "scaled": spec(logit_scale=0.5, residual_scale=0.7, norm="layer", norm_bias=True),
}
TOKENS = np.random.default_rng(3).integers(0, 201, 90).tolist()
PAGES = [5, 2, 7, 11, 0, 3]


def names(name: str) -> list[str]:
    return [v.name for v in decoder_graph(SPECS[name]).values()]


@pytest.mark.parametrize("name", SPECS)
def test_every_value_is_what_the_reference_makes(name: str) -> None:
    model = RandomModel(SPECS[name], "f32")
    device = model.device(threads=2)
    taps = [Tap(n) for n in names(name)]
    rows = np.arange(60, dtype=np.int32)
    plan = device.plan(taps)
    logits, seen = plan.run(batch([(TOKENS[:60], 0, PAGES)], range(60)), rows)
    due: dict[str, np.ndarray] = {}
    model.reference().run(TOKENS[:60], watch=due.__setitem__)
    for tap in taps:
        got = plan.of(seen, tap)
        assert got.shape == due[tap.name].shape, tap.name
        off = np.abs(got - due[tap.name]).reshape(60, -1).max(axis=1)
        # Where a routing choice hangs on rounding a row may differ; most do not.
        assert np.median(off) < 1e-3 * (1 + np.abs(due[tap.name]).max()), tap.name
    assert np.array_equal(logits, plan.of(seen, Tap("logits")))


@pytest.mark.parametrize("name", SPECS)
def test_forms_are_reductions_of_the_row(name: str) -> None:
    device = RandomModel(SPECS[name], "q4_1").device(threads=2)
    value = "blocks.1.hook_resid_mid"
    taps = [Tap(value), Tap(value, "sample", 7), Tap(value, "stats"), Tap(value, "topk", 5)]
    plan = device.plan(taps)
    rows = np.array([3, 0, 8], np.int32)
    _, seen = plan.run(batch([(TOKENS[:9], 0, PAGES)], []), rows)
    row, sample, stats, top = (plan.of(seen, tap) for tap in taps)
    assert np.array_equal(sample, row[:, [j * row.shape[1] // 7 for j in range(7)]])
    assert np.allclose(stats[:, 0], row.mean(axis=1), atol=1e-6)
    assert np.allclose(stats[:, 1], np.sqrt(np.square(row).mean(axis=1)), rtol=1e-6)
    assert np.array_equal(stats[:, 2:4], np.stack([row.min(axis=1), row.max(axis=1)], axis=1))
    assert not stats[:, 4].any()
    order = np.argsort(-np.abs(row), axis=1, kind="stable")[:, :5]
    assert np.array_equal(top[:, 1], order)
    assert np.array_equal(top[:, 0], np.take_along_axis(row, order, axis=1))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_taps_on_any_batch_change_no_byte(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(SPECS)))
    form = data.draw(st.sampled_from(["q4_k", "q4_1", "f16"]))
    device = RandomModel(SPECS[name], form).device(threads=data.draw(st.sampled_from([1, 2])))
    chosen = data.draw(st.sets(st.sampled_from(names(name)), min_size=1, max_size=6))
    forms = st.sampled_from([("row", 0), ("stats", 0), ("topk", 1), ("sample", 1)])
    taps = [Tap(n, *data.draw(forms)) for n in sorted(chosen)]
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=3))
    parts, at = [], 0
    for i, length in enumerate(lengths):
        parts.append((TOKENS[at : at + length], 0, [2 * i, 2 * i + 1]))
        at += length
    wanted = sorted(data.draw(st.sets(st.integers(0, at - 1))))
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, at - 1)))), np.int32)
    step = batch(parts, wanted)
    plain = device.run(step).copy()
    kept = [device.kv.layer(layer)[: 2 * len(parts)].copy() for layer in range(2)]
    plan = device.plan(taps)
    logits, seen = plan.run(step, rows)
    assert np.array_equal(logits, plain)
    assert seen.shape == (len(rows), plan.width)  # of the rows that are watched, and no neighbour's
    assert all(np.array_equal(device.kv.layer(i)[: 2 * len(parts)], k) for i, k in enumerate(kept))
    assert np.array_equal(device.run(step), plain)


def test_a_tap_on_a_value_of_selected_rows_is_nan_where_no_logits_are_wanted() -> None:
    device = RandomModel(SPECS["gqa"], "q4_0").device()
    plan = device.plan([Tap("ln_final.hook_normalized")])
    _, seen = plan.run(batch([(TOKENS[:9], 0, PAGES)], [8]), np.array([2, 8], np.int32))
    assert np.isnan(seen[0]).all() and np.isfinite(seen[1]).all()


def test_plans_are_kept_by_their_set_and_not_without_end() -> None:
    device = RandomModel(SPECS["gqa"], "q4_0").device()
    a, b = Tap("hook_embed"), Tap("logits")
    assert device.plan([a, b]) is device.plan([b, a, a])
    first = device.plan([a])
    for layer in range(2):
        device.plan([Tap(f"blocks.{layer}.hook_resid_mid")])
        device.plan([Tap(f"blocks.{layer}.hook_resid_post")])
    assert device.plan([a]) is not first


def test_bad_taps_say_what_is_wrong() -> None:
    device = RandomModel(SPECS["gqa"], "q4_0").device()
    with pytest.raises(RequestError, match=r"no value 'blocks\.9"):
        device.plan([Tap("blocks.9.hook_resid_mid")])
    with pytest.raises(RequestError, match="256 numbers; topk of 257"):
        device.plan([Tap("hook_embed", "topk", 257)])
    with pytest.raises(RequestError, match="sample of 0"):
        device.plan([Tap("hook_embed", "sample")])
    with pytest.raises(RequestError, match="no value 'nothing'"):
        device.plan([], ["nothing"])


@pytest.mark.parametrize("name", SPECS)
def test_a_patch_that_leaves_its_value_changes_no_byte(name: str) -> None:
    device = RandomModel(SPECS[name], "q4_1").device(threads=2)
    want = run_all(device, TOKENS[:40], PAGES)
    every = names(name)
    met: list[str] = []
    plan = device.plan([], every)
    hooks = {n: lambda x, n=n: met.append(n) for n in every}
    logits, _ = plan.run(batch([(TOKENS[:40], 0, PAGES)], range(40)), np.empty(0, np.int32), hooks)
    assert np.array_equal(logits, want)
    assert sorted(met) == sorted(every)


@pytest.mark.parametrize("name", SPECS)
def test_a_patched_plan_equals_the_patched_reference(name: str) -> None:
    from pellucid.graph.patch import patched
    from pellucid.graph.reference import Reference

    model = RandomModel(SPECS[name], "f32")
    places = ["blocks.0.attn.hook_z", "blocks.1.hook_mlp_out", "hook_embed", "logits"]
    reference = Reference(
        patched(decoder_graph(SPECS[name]), places), {w.name: w.to_float32() for w in model.weights()}, kv="f16"
    )
    due = reference.run(TOKENS[:30], patch=lambda name, x: x * np.float32(0.5))

    def halve(x: np.ndarray) -> None:
        x *= np.float32(0.5)

    plan = model.device(threads=2).plan([], places)
    got, _ = plan.run(batch([(TOKENS[:30], 0, PAGES)], range(30)), np.empty(0, np.int32), dict.fromkeys(places, halve))
    assert np.median(np.abs(got - due).max(axis=1)) < 1e-3
    assert np.abs(due - model.reference().run(TOKENS[:30])).max() > 0.1
