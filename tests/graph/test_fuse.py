"""Fusion changes no value and hides none that is wanted."""

from __future__ import annotations

import numpy as np
import pytest

from devices.models import RandomModel, spec
from pellucid.errors import PellucidError
from pellucid.graph.fuse import fuse
from pellucid.graph.graph import Graph
from pellucid.graph.ops import Add, Embed, Fused, Linear, Multiply, Normalize, Value, outputs
from pellucid.graph.reference import Reference
from pellucid.models.decoder import decoder_graph

SPEC = spec(qk_norm="head", post_norms=True, qkv_bias=True)


def test_fused_means_its_parts() -> None:
    model = RandomModel(SPEC, "f32")
    weights = {w.name: w.to_float32() for w in model.weights()}
    graph = decoder_graph(SPEC)
    fused = fuse(graph)
    assert len(fused.ops) < len(graph.ops)
    tokens = list(range(30))
    assert np.array_equal(Reference(fused, weights).run(tokens), Reference(graph, weights).run(tokens))


def test_what_is_kept_stays_visible() -> None:
    graph = decoder_graph(SPEC)
    hidden = {v.name for v in graph.values()} - {v.name for v in fuse(graph).values()}
    assert "blocks.0.ln1.hook_normalized" in hidden
    assert "blocks.1.attn.q_norm.hook_normalized" in hidden
    for name in hidden:
        seen = {v.name for v in fuse(graph, keep={name}).values()}
        assert name in seen
    everything = {v.name for v in graph.values()}
    assert {v.name for v in fuse(graph, keep=everything).values()} == everything


def test_a_layer_is_six_ops() -> None:
    for options in ({}, {"qk_norm": "head", "post_norms": True}):
        few, more = (len(fuse(decoder_graph(spec(windows=(0,) * n, **options))).ops) for n in (2, 3))
        assert more - few == 6


def test_names_are_transformer_lens_names() -> None:
    names = {v.name for v in decoder_graph(SPEC).values()}
    for i in range(2):
        b = f"blocks.{i}."
        for name in (
            "ln1.hook_normalized", "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_rot_q", "attn.hook_rot_k",
            "attn.hook_z", "hook_attn_out", "hook_resid_mid", "ln2.hook_normalized", "mlp.hook_pre",
            "mlp.hook_pre_linear", "mlp.hook_post", "hook_mlp_out", "hook_resid_post",
        ):  # fmt: skip
            assert b + name in names
    assert {"hook_embed", "ln_final.hook_normalized", "logits"} <= names


def test_a_value_with_two_readers_is_not_fused_away() -> None:
    x, n, m, y = (Value(name, (4,)) for name in ("x", "n", "m", "y"))
    graph = Graph((Embed(x, "t", 1.0), Normalize(n, x, 1e-5), Multiply(m, n, "w"), Add(y, m, n)), y)
    (_, rows) = fuse(graph).ops
    assert isinstance(rows, Fused) and rows.kind == "rows" and rows.parts == graph.ops[1:]


def test_a_linear_that_is_the_result_is_not_fused_away() -> None:
    x, y, z = (Value(name, (4,)) for name in ("x", "y", "z"))
    ops = (Embed(x, "t", 1.0), Linear(y, x, "w"), Add(z, x, y))
    assert [type(op) for op in fuse(Graph(ops, y)).ops] == [Embed, Linear, Add]
    assert isinstance(fuse(Graph(ops, z)).ops[1], Fused)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Add(Value("y", (4,)), Value("x", (4,)), Value("x", (4,))),), "read before it is made"),
        ((Embed(Value("y", (4,)), "t", 1.0), Embed(Value("y", (4,)), "t", 1.0)), "made twice"),
        ((Embed(Value("x", (4,)), "t", 1.0), Normalize(Value("y", (5,)), Value("x", (4,)), 1e-5)), "differ in shape"),
        ((Embed(Value("x", (4,)), "t", 1.0),), "nothing makes the result"),
    ],
)
def test_a_graph_that_contradicts_itself_is_refused(ops: tuple, message: str) -> None:
    with pytest.raises(PellucidError, match=message):
        Graph(ops, Value("y", (4,)))


def test_every_op_of_a_decoder_makes_what_it_names() -> None:
    for op in fuse(decoder_graph(SPEC)).ops:
        assert len({v.name for v in outputs(op)}) == len(outputs(op))
