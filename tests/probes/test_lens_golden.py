"""What is looked at, against Hugging Face's eager float32 (tests/golden/make_lens.py) and the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pellucid import LLM
from pellucid.graph.reference import Reference
from pellucid.models.decoder import decoder_graph
from pellucid.probes.attention import METRICS

GOLDEN = Path(__file__).parents[1] / "golden"
MODELS = sorted(str(p.parent.relative_to(GOLDEN)) for p in GOLDEN.glob("*/*/lens.npz"))
BOUND = 0.02
"""K and V are f16 here and float32 there: a thousandth of each, and the layers behind."""


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Iterator[tuple[LLM, list[int], np.lib.npyio.NpzFile]]:
    folder = GOLDEN / request.param
    golden = np.load(folder / "golden.npz")
    tokens = golden["tokens"] if "tokens" in golden else golden["tokens_0"]
    with LLM(folder, threads=1, ctx=64, progress=False) as llm:
        yield llm, tokens.tolist(), np.load(folder / "lens.npz")


def close(got: np.ndarray, due: np.ndarray, bound: float = BOUND) -> None:
    assert got.shape == due.shape
    assert np.abs(got - due).max() <= bound * max(1.0, np.abs(due).max())


def test_there_are_models_of_each_kind() -> None:
    assert {"tiny/llama", "tiny/mistral", "families/gpt2"} <= set(MODELS)


def test_patterns_are_hugging_faces(model: tuple) -> None:
    llm, tokens, golden = model
    _, cache = llm.run_with_cache(tokens, "blocks.*.attn.hook_pattern")
    for layer, due in enumerate(golden["attentions"]):
        got = cache[f"blocks.{layer}.attn.hook_pattern"]
        close(got, due)
        sinks = llm.device.vectors.get(f"blocks.{layer}.attn.sinks")  # type: ignore[attr-defined]
        total = got.sum(axis=-1)
        if sinks is None:
            assert np.abs(total - 1).max() < 1e-5
        else:
            assert (total < 1).all()
        assert not np.triu(got, 1).any()


def test_outputs_are_in_hugging_faces_shapes(model: tuple) -> None:
    llm, tokens, golden = model
    from pellucid import SamplingParams

    [result] = llm.generate(
        [tokens[:37]],
        SamplingParams(temperature=0.9, top_k=5, max_tokens=3, ignore_eos=True, seed=1),
        output_attentions=True,
        output_hidden_states=True,
        output_scores=True,
        output_logits=True,
    )
    answer = result.outputs[0]
    layers, heads = golden["attentions"].shape[:2]
    width = golden["hidden"].shape[-1]
    assert answer.attentions and answer.hidden_states and answer.scores and answer.logits
    assert [len(x) for x in (answer.attentions, answer.hidden_states, answer.scores, answer.logits)] == [3] * 4
    assert [a[0].shape for a in answer.attentions] == [(1, heads, 37, 37), (1, heads, 1, 38), (1, heads, 1, 39)]
    assert [len(h) for h in answer.hidden_states] == [layers + 1] * 3
    assert [h[0].shape for h in answer.hidden_states] == [(1, 37, width), (1, 1, width), (1, 1, width)]
    for layer in range(layers):
        close(answer.attentions[0][layer][0], golden["attentions"][layer][:, :37, :37])
    for layer in range(layers + 1):
        close(answer.hidden_states[0][layer][0], golden["hidden"][layer][:37], 0.05)
    for raw, score in zip(answer.logits, answer.scores, strict=True):
        assert raw.shape == score.shape == (1, llm.device.vocab_size)
        kept = np.isfinite(score[0])
        assert kept.sum() == 5
        assert set(np.flatnonzero(kept)) == set(np.argsort(-raw[0], kind="stable")[:5])
        assert np.allclose(score[0][kept], raw[0][kept] / 0.9)


def test_scores_and_every_value_are_the_references(model: tuple) -> None:
    llm, tokens, _ = model
    assert llm.checkpoint is not None
    weights = {w.name: w.to_float32() for w in llm.checkpoint.weights()}
    due: dict[str, np.ndarray] = {}
    reference = Reference(decoder_graph(llm.spec), weights, kv="f16", context=llm.device.context)
    reference.run(tokens, watch=due.__setitem__)
    logits, cache = llm.run_with_cache(tokens)
    assert np.array_equal(logits, cache["logits"])
    for name, value in due.items():
        if "expert" in name or (name.startswith("blocks.") and llm.spec.experts is not None):
            continue  # where a choice of experts hangs on rounding, rows differ
        close(cache[name], value, 0.01)
    scores = cache["blocks.0.attn.hook_attn_scores"]
    assert np.isneginf(scores[:, 0, 1:]).all() and np.isfinite(scores[:, 0, 0]).all()


def test_weights_by_value_are_those_times_the_length_of_v(model: tuple) -> None:
    llm, tokens, _ = model
    trace = llm.inspect(tokens, level="tokens")
    heads = range(llm.spec.n_heads)
    for layer in range(llm.spec.n_layers):
        plain = trace.attention(layer, heads)
        _, cache = llm.run_with_cache(trace.ids, [f"blocks.{layer}.attn.hook_v"])
        v = np.linalg.norm(cache[f"blocks.{layer}.attn.hook_v"], axis=-1)  # keys, KV heads
        due = plain * np.repeat(v.T, llm.spec.n_heads // llm.spec.n_kv_heads, axis=0)[:, None, : plain.shape[2]]
        assert np.allclose(trace.attention(layer, heads, by_value=True), due, rtol=2e-3, atol=1e-6)


def test_head_metrics_are_those_of_the_patterns(model: tuple) -> None:
    llm, tokens, golden = model
    trace = llm.inspect(tokens[:20] + tokens[:20], level="heads")
    metrics = trace.head_metrics()
    n = len(trace.ids)
    segmented = trace.head_metrics([("begin", 0, 4), ("rest", 4, n)])
    for layer in range(len(golden["attentions"])):
        p = trace.attention(layer, range(golden["attentions"].shape[1])).astype(np.float64)
        i, j = np.arange(n)[:, None], np.arange(n)[None]
        ids = np.array(trace.ids)
        follows = np.zeros((n, n), bool)
        follows[:, 1:] = ids[:, None] == ids[None, :-1]
        sink = 1 - p.sum(axis=-1) if trace.source().sinks(layer) is not None else np.zeros(p.shape[:2])
        away = (p * (i - j)).sum(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(p > 0, p * np.log(p), 0).sum(axis=-1) + np.where(sink > 1e-12, sink * np.log(sink), 0)
        due = {
            "self": p[:, np.arange(n), np.arange(n)].mean(axis=1),
            "previous": p[:, np.arange(1, n), np.arange(n - 1)].sum(axis=1) / n,
            "first": p[:, :, 0].mean(axis=1),
            "local": (p * ((i - j < 16) & (i >= j))).sum(axis=-1).mean(axis=1),
            "entropy": -parts.mean(axis=1),
            "distance": away.mean(axis=1),
            "spread": np.sqrt(((p * (i - j) ** 2).sum(axis=-1) - away**2).mean(axis=1).clip(0)),
            "induction": (p * (follows & (i >= j))).sum(axis=-1).mean(axis=1),
            "sink": sink.mean(axis=1),
        }
        assert set(due) == set(METRICS)
        for name, value in due.items():
            assert np.allclose(metrics.values[name][layer], value, atol=2e-4), (layer, name)
        assert np.allclose(segmented.segments["begin"][layer], p[..., :4].sum(axis=-1).mean(axis=1), atol=2e-4)
        assert np.allclose(segmented.segments["rest"][layer], p[..., 4:].sum(axis=-1).mean(axis=1), atol=2e-4)


def test_the_last_lens_is_the_logits_and_the_rest_the_references(model: tuple) -> None:
    llm, tokens, _ = model
    trace = llm.inspect(tokens, level="tokens")
    lens = trace.logit_lens(pos=range(1, len(trace.ids)), top_k=4)
    assert lens.layers == tuple(range(llm.spec.n_layers + 1))
    assert np.array_equal(lens.logprobs[-1], trace.scores.logprobs)
    assert np.array_equal(lens.ranks[-1], trace.scores.ranks)
    logits, _ = llm.run_with_cache(trace.ids, "hook_embed")
    for pos in (1, 9, len(trace.ids) - 1):
        assert np.array_equal(trace.logits(pos), logits[pos - 1])
        assert lens.top[-1][pos - 1][0][0] == int(logits[pos - 1].argmax())
    assert lens.top[0][3] != lens.top[-1][3]


def test_attribution_adds_up_to_the_logit(model: tuple) -> None:
    llm, tokens, _ = model
    trace = llm.inspect(tokens, level="tokens")
    found = trace.attribution(-1)
    assert next(name for name, _ in found.parts) == "hook_embed"
    total = sum(value for _, value in found.parts)
    assert abs(found.logit - total - found.remainder) < 1e-6
    assert abs(found.remainder) < 0.02 * max(1.0, abs(found.logit))
    if found.heads is not None and not llm.spec.out_bias:
        by_layer = dict(found.parts)
        for layer in range(llm.spec.n_layers):
            assert found.heads[layer].sum() == pytest.approx(by_layer[f"blocks.{layer}.hook_attn_out"], abs=0.02)
