"""The plans of the families as text: a change to the decoder, to fusion or to lowering shows as a readable diff.

To accept a change: PELLUCID_UPDATE_GOLDEN=1 pytest tests/devices/test_plan_dump.py, and read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from devices.models import spec
from pellucid.devices.lower import lower
from pellucid.graph.fuse import fuse
from pellucid.models.decoder import decoder_graph
from pellucid.models.spec import ExpertsSpec

FOLDER = Path(__file__).parents[1] / "golden" / "plans"
SPECS = {
    "llama": spec(tied=True),
    "qwen2": spec(qkv_bias=True),
    "experts": spec(d_ff=64, experts=ExpertsSpec(8, 2, normalized=True, d_shared=96, shared_gated=True), sinks=True),
    "gemma3": spec(
        windows=(512, 0), qk_norm="head", post_norms=True, activation="gelu_tanh", embed_scale=16.0, tied=True
    ),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("weights", ["int8", "float"])
def test_plan_equals_its_golden_dump(name: str, weights: str) -> None:
    plan = lower(fuse(decoder_graph(SPECS[name])), lambda _: weights == "int8").dump()
    path = FOLDER / f"{name}-{weights}.txt"
    if os.environ.get("PELLUCID_UPDATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(plan, encoding="utf-8")
    assert plan == path.read_text(encoding="utf-8")


def test_a_tapped_value_is_in_the_plan_and_no_tap_leaves_it_as_it_was() -> None:
    graph = decoder_graph(SPECS["llama"])
    plain = lower(fuse(graph), lambda _: True).dump()
    tapped = lower(fuse(graph, keep={"blocks.0.ln1.hook_normalized"}), lambda _: True).dump()
    assert "blocks.0.ln1.hook_normalized" not in plain
    assert "blocks.0.ln1.hook_normalized" in tapped
    assert lower(fuse(graph, keep=()), lambda _: True).dump() == plain
