"""The native plan against the reference, and the law of batch invariance, on small random models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from devices.models import RandomModel, batch, difference, run_all, spec
from pellucid import _core
from pellucid.devices.cpu import FLOAT_FORMATS, CpuDevice
from pellucid.errors import ConfigError, EngineError
from pellucid.formats import FORMATS, Weight
from pellucid.graph.fuse import fuse
from pellucid.graph.graph import Graph
from pellucid.kv.store import unpack_page
from pellucid.models.decoder import decoder_graph
from pellucid.models.spec import ExpertsSpec

SPECS = {
    "gqa": spec(),
    "mha": spec(heads=3, kv_heads=3, d_head=64),
    "wide-group": spec(heads=10, kv_heads=1, d_head=32),
    "odd-head": spec(heads=2, kv_heads=1, d_head=24, d_ff=768),
    "biased": spec(qkv_bias=True),
    "gemma": spec(
        windows=(20, 20, 0), qk_norm="head", post_norms=True, activation="gelu_tanh", embed_scale=16.0, tied=True
    ),
    "capped": spec(windows=(20, 0), attn_softcap=1.5, logit_softcap=2.0, logit_scale=0.7, residual_scale=0.6),
    "post-only": spec(pre_norms=False, post_norms=True, qk_norm="whole", residual_scale=0.5),
    "plain": spec(
        norm="layer",
        norm_bias=True,
        gated=False,
        activation="gelu_tanh",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        learned_positions=True,
        unrotated=(0, 1),
        context=512,
    ),
    "parallel": spec(norm="layer", parallel=True, qk_norm="each", logit_scale=0.4, unrotated=(1,), tied=True),
    "partial": spec(rotated=24, d_head=40),
    "window-300": spec(windows=(300, 0)),
    "experts": spec(d_ff=96, experts=ExpertsSpec(9, 3, normalized=True)),
    "experts-biased": spec(
        windows=(20, 0),
        d_ff=64,
        experts=ExpertsSpec(4, 2, normalized=True),
        sinks=True,
        mlp_bias=True,
        activation="clamped",
        residual_scale=0.7,
    ),
    "expert-shared": spec(d_ff=72, experts=ExpertsSpec(20, 5, normalized=False, d_shared=160, shared_gated=True)),
}
TOKENS = np.random.default_rng(7).integers(0, 201, 400).tolist()
PAGES = list(np.random.default_rng(8).permutation(64)[:32])


def pages_for(n: int) -> list[int]:
    return PAGES[: -(-n // 16)]


def most_rows(a: np.ndarray, b: np.ndarray) -> float:
    """The difference over three rows of four: in the rest the choice of some expert may hang on rounding."""
    by_row = [difference(a[i : i + 1], b[i : i + 1]) for i in range(len(a))]
    kept = np.argsort(by_row)[: len(a) * 3 // 4]
    return difference(a[kept], b[kept])


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_float_plan_equals_the_reference(name: str, kv: str) -> None:
    """In float32 the plan differs from NumPy by rounding alone: the order of sums, a code of the cache at times."""
    model = RandomModel(SPECS[name], "f32")
    if kv == "q8_0" and SPECS[name].d_head % 32:
        with pytest.raises(ConfigError, match="multiple of 32"):
            model.device(kv=kv)
        return
    got = run_all(model.device(kv=kv), TOKENS[:330], pages_for(330))
    off = most_rows if model.spec.experts else difference
    assert off(got, model.reference(kv).run(TOKENS[:330])) < (5e-5 if kv == "f16" else 1e-3)
    # What the cache's format itself costs.
    assert off(got, model.reference(None).run(TOKENS[:330])) < (
        5e-4 if kv == "f16" else 0.025 if model.spec.experts else 0.016
    )


@pytest.mark.parametrize("format_", [name for name, f in FORMATS.items() if f.native or name == "f64"])
def test_each_format_within_its_bound(format_: str) -> None:
    """Float formats round only; int8 activations cost two or three percent of the spread of log-probabilities."""
    model = RandomModel(SPECS["gqa"], format_)
    got = run_all(model.device(), TOKENS[:60], pages_for(60))
    assert difference(got, model.reference().run(TOKENS[:60])) < (1e-4 if format_ in {*FLOAT_FORMATS, "f64"} else 0.03)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("format_", ["q4_k", "bf16"])
def test_bits_do_not_depend_on_chunks(name: str, format_: str) -> None:
    model = RandomModel(SPECS[name], format_)
    whole = run_all(model.device(), TOKENS[:300], pages_for(300))
    for chunk in (1, 7, 64, 299):
        assert np.array_equal(run_all(model.device(), TOKENS[:300], pages_for(300), chunk), whole), chunk


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("isa", _core.isas())
def test_bits_do_not_depend_on_threads_nor_instruction_set(isa: str, kv: str) -> None:
    model = RandomModel(SPECS["gemma"], "q4_1")
    # 40 keys: one chunk. 290 keys, one row at the end: two chunks shared between the threads.
    want = run_all(model.device(kv=kv), TOKENS[:290], pages_for(290))
    for threads in (1, 2, 3):
        device = model.device(threads=threads, isa=isa, kv=kv)
        assert np.array_equal(run_all(device, TOKENS[:40], pages_for(40)), want[:40])
        run_all(device, TOKENS[:289], pages_for(290))
        last = device.run(batch([(TOKENS[289:290], 289, pages_for(290))], [0]))
        assert np.array_equal(last[0], want[289])


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("format_", ["q4_1", "q6_k", "f16"])
def test_a_fused_plan_equals_its_ops_to_the_bit(name: str, format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few rows, where each thread does the norms for itself, with many, and with any value looked at."""
    model = RandomModel(SPECS[name], format_)
    graph = decoder_graph(model.spec)
    fused = model.device(threads=3)

    def device(fusion: Callable[[Graph], Graph]) -> CpuDevice:
        monkeypatch.setattr("pellucid.devices.cpu.fuse", fusion)
        return model.device(threads=3)

    plans = [device(lambda graph: graph)]
    hidden = sorted({v.name for v in graph.values()} - {v.name for v in fuse(graph).values()})
    for keep in (hidden[::2], hidden[1::2], [v.name for v in graph.values()]):
        plans.append(device(lambda graph, keep=keep: fuse(graph, keep)))
    assert len({plan.lowered.dump() for plan in (fused, *plans)}) >= 4  # two sets may break the same fusions
    for chunk in (1, 3, 40):
        want = run_all(fused, TOKENS[:40], pages_for(40), chunk)
        for plan in plans:
            assert np.array_equal(run_all(plan, TOKENS[:40], pages_for(40), chunk), want)


def test_bits_do_not_depend_on_neighbours() -> None:
    model = RandomModel(SPECS["gqa"], "q6_k")
    alone = model.device()
    a, b, c = TOKENS[:50], TOKENS[50:90], TOKENS[90:100]
    pa, pb, pc = [3, 1, 7, 9], [0, 2, 4], [5]
    want_a, want_b, want_c = (run_all(alone, t, p) for t, p in ((a, pa), (b, pb), (c, pc)))

    device = model.device(threads=2)
    device.run(batch([(b[:39], 0, pb)], []))
    got = device.run(batch([(b[39:], 39, pb), (a, 0, pa), (c, 0, pc)], [0, 50, 51, 60]))
    assert np.array_equal(got[0], want_b[39])
    assert np.array_equal(got[1], want_a[49])
    assert np.array_equal(got[2], want_c[0])
    assert np.array_equal(got[3], want_c[9])


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_pages_hold_what_the_reference_stores(kv: str) -> None:
    model = RandomModel(SPECS["gqa"], "f32")
    device = model.device(kv=kv)
    run_all(device, TOKENS[:40], [5, 2, 9], chunk=16)
    seen: dict[str, np.ndarray] = {}
    model.reference(kv).run(TOKENS[:40], watch=seen.__setitem__)
    for layer in range(2):
        pages = [unpack_page(device.kv.page(layer, p), device.geometry) for p in (5, 2, 9)]
        k = np.concatenate([p[0] for p in pages], axis=1)[:, :40].transpose(1, 0, 2)
        v = np.concatenate([p[1] for p in pages], axis=1)[:, :40].transpose(1, 0, 2)
        tolerance = 2e-3 if kv == "f16" else 3e-2
        assert np.abs(k - seen[f"blocks.{layer}.attn.hook_rot_k"]).max() < tolerance * np.abs(k).max()
        assert np.abs(v - seen[f"blocks.{layer}.attn.hook_v"]).max() < tolerance * np.abs(v).max()


def test_geometry_is_the_cores() -> None:
    for kv, d_head in (("f16", 64), ("f16", 24), ("q8_0", 64)):
        model = RandomModel(spec(d_head=d_head, heads=2, kv_heads=1), "f32")
        device = model.device(kv=kv)
        assert device.geometry.bytes_per_page == device.kv.page_bytes
        assert device.kv.nbytes == device.kv.page_bytes * 64


@pytest.mark.parametrize(
    ("parts", "rows", "message"),
    [
        ([([201], 0, [0])], [0], "not in the vocabulary"),
        ([([-1], 0, [0])], [0], "not in the vocabulary"),
        ([([1], 512, list(range(33)))], [0], "outside the context"),
        ([([1], -1, [0])], [0], "outside the context"),
        ([([1], 16, [0])], [0], "too short"),
        ([([1], 0, [64])], [0], "does not exist"),
        ([([1], 0, [-1])], [0], "does not exist"),
        ([([1], 0, [0])], [1], "logit row"),
        ([([1] * 600, 0, list(range(38)))], [0], "rows"),
    ],
)
def test_a_broken_step_is_refused_before_anything_is_written(parts: list, rows: list, message: str) -> None:
    device = RandomModel(SPECS["gqa"], "q8_0").device()
    before = device.kv.page(0, 0).copy()
    with pytest.raises(EngineError, match=message):
        device.run(batch(parts, rows))
    assert np.array_equal(device.kv.page(0, 0), before)
    assert np.isfinite(device.run(batch([([1], 0, [0])], [0]))).all()


def test_a_step_that_wants_no_logits() -> None:
    device = RandomModel(SPECS["gqa"], "q8_0").device()
    assert device.run(batch([([1, 2, 3], 0, [0])], [])).shape == (0, 201)


def test_a_profile_is_the_same_step_with_its_times() -> None:
    device = RandomModel(SPECS["gqa"], "q4_0").device(threads=2)
    step = batch([(TOKENS[:40], 0, pages_for(40))], [38, 39])
    plain = device.run(step).copy()
    logits, times = device.profile(step)
    assert np.array_equal(logits, plain)
    assert times.shape == (2, len(device.lowered.records), 2)
    assert (times >= 0).all() and times[:, :, 0].any(axis=0).all()
    walk = times.sum(axis=(1, 2))
    assert walk[0] == pytest.approx(walk[1], rel=0.5)


def test_a_device_under_another_configuration_shares_the_weights() -> None:
    device = RandomModel(SPECS["gqa"], "q4_0").device()
    other = device.with_config(replace(device.config, kv_pages=8, ctx=128))
    assert other.matrices is device.matrices
    assert np.array_equal(run_all(other, TOKENS[:40], [5, 1, 7]), run_all(device, TOKENS[:40], pages_for(40)))


@pytest.mark.parametrize("where", ["one expert", "all experts", "infinite"])
@pytest.mark.parametrize("format_", ["f32", "q4_k"])
def test_logits_of_a_router_that_are_no_numbers_choose_the_same_everywhere(where: str, format_: str) -> None:
    """A NaN is less than any number, so an expert of that logit is chosen last; if all are NaN, so is the row."""
    model = RandomModel(SPECS["experts"], format_)
    for i, w in enumerate(model._weights):
        if w.name == "blocks.1.mlp.W_router":
            values = w.to_float32()
            if where == "infinite":
                values[3] = np.float32(3e38)  # some rows' logit is +inf, of others -inf
            else:
                values[0 if where == "one expert" else slice(None)] = np.nan
            model._weights[i] = Weight.from_float32(w.name, values, FORMATS["f32"])
    tokens = TOKENS[:40]
    due = run_all(model.device(), tokens, pages_for(40))
    for isa in _core.isas():
        for threads, chunk in ((1, 1), (2, 7), (3, 40)):
            got = run_all(model.device(isa=isa, threads=threads), tokens, pages_for(40), chunk)
            assert np.array_equal(got, due, equal_nan=True)
    if where == "one expert":
        assert np.isfinite(due).all()
        if format_ == "f32":
            assert most_rows(due, model.reference().run(tokens)) < 5e-5
    if where == "all experts":
        assert np.isnan(due).all()


def test_no_expert_is_read_that_was_not_chosen() -> None:
    """With NaN in all others, a token's logits are what they were."""
    model, marred = (RandomModel(SPECS["experts"], "f32") for _ in range(2))
    chosen: dict[str, list[int]] = {}

    def watch(name: str, value: np.ndarray) -> None:
        if name.endswith("hook_expert_indices"):
            chosen[name.split(".")[1]] = value[0].astype(int).tolist()

    model.reference().run(TOKENS[:1], watch=watch)
    for i, w in enumerate(marred._weights):
        if ".experts.W_" in w.name:
            values = w.to_float32()
            values[np.setdiff1d(np.arange(len(values)), chosen[w.name.split(".")[1]])] = np.nan
            marred._weights[i] = Weight.from_float32(w.name, values, FORMATS["f32"])
    due = run_all(model.device(), TOKENS[:1], pages_for(1))
    assert np.isfinite(due).all()
    assert np.array_equal(run_all(marred.device(), TOKENS[:1], pages_for(1)), due)
