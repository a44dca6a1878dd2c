"""What is looked at in real models, against Hugging Face's eager float32 (tests/golden/make_lens_real.py).

Twice: on float32 weights, where only K and V in f16 and the order of sums differ; and on the quantised weights as they
are served, whose rows are rounded to eight bits before each product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from pellucid.checkpoint import open_checkpoint
from pellucid.checkpoint.open import Checkpoint
from pellucid.config import EngineConfig
from pellucid.devices.cpu import CpuDevice
from pellucid.formats import FORMATS, Weight
from pellucid.models.decoder import decoder_graph
from pellucid.probes.attention import rows_of
from pellucid.probes.lens import logit_lens
from pellucid.probes.replay import Replay

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Bounds:
    """The largest difference that is allowed."""

    attn: float
    """Of an attention weight."""
    mean_attn: float
    """Of the mean weight's difference."""
    norm: float
    """Of a residual vector's length, as a share of it."""
    logprob: float
    """In nats, of a layer's five likeliest tokens."""


CASES = {
    "smollm2 in float32": ("smollm2", "smollm2-135m", True, Bounds(0.002, 1e-4, 0.005, 0.02)),
    "smollm2 as served": ("smollm2", "smollm2-135m", False, Bounds(0.08, 0.005, 0.2, 1.0)),
    "qwen as served": ("qwen-0.5b", "qwen2.5-coder-0.5b", False, Bounds(0.08, 0.005, 0.2, 1.0)),
}


class Dequantised:
    """A checkpoint's weights in float32."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self.spec = checkpoint, checkpoint.spec

    def weights(self) -> Iterator[Weight]:
        for weight in self.checkpoint.weights():
            yield Weight.from_float32(weight.name, weight.to_float32(), FORMATS["f32"])

    def mapped(self, weight: Weight) -> bool:
        return False

    def release(self, weight: Weight) -> None:
        pass


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, real_model: Callable[[str], Path]) -> Iterator[tuple]:
    name, golden, dequantised, bounds = CASES[request.param]
    found = np.load(GOLDEN / f"lens_{golden}.npz")
    with open_checkpoint(real_model(name)) as checkpoint:
        source = Dequantised(checkpoint) if dequantised else checkpoint
        config = EngineConfig(threads=2, ctx=256, kv_pages=16)
        device = CpuDevice.load(source, decoder_graph(checkpoint.spec), config)
        yield Replay(device, found["tokens"].tolist()), found, bounds


def test_attention_residuals_and_lens_are_hugging_faces(case: tuple) -> None:
    replay, golden, bounds = case
    tokens, worst = golden["tokens"], {}
    _, heads, rows, n = golden["attn"].shape
    for layer, due in zip(golden["attn_layers"], golden["attn"], strict=True):
        [(_, got)] = rows_of(replay, int(layer), range(heads), range(n - rows, n))
        assert got.shape == due.shape
        worst[f"attn {layer}"] = float(np.abs(got - due).max())
        assert worst[f"attn {layer}"] <= bounds.attn, worst
        assert np.abs(got - due).mean() <= bounds.mean_attn, worst
    names = replay.anatomy.resid()[:-1]
    parts = [[np.linalg.norm(part.of(name), axis=1) for name in names] for part in replay.run(names)]
    norms = np.concatenate(parts, axis=1)
    worst["norm"] = float(np.abs(norms / golden["norms"] - 1).max())
    places, ids = golden["lens_rows"], golden["lens_ids"]
    targets = ids[-1, :, 0].tolist()
    lens = logit_lens(replay, range(len(names) + 1), places.tolist(), targets, 20)
    off = []
    for layer, by_place in enumerate(lens.top):
        for place, top in enumerate(by_place):
            got = dict(top)
            due = dict(zip(ids[layer, place].tolist(), golden["lens_logprobs"][layer, place].tolist(), strict=True))
            off += [abs(got[id] - logprob) if id in got else np.inf for id, logprob in due.items()]
            assert top[0][0] == ids[layer, place, 0] or due[int(ids[layer, place, 0])] - due.get(top[0][0], -9) < (
                2 * bounds.logprob
            )
    worst["lens"] = max(off)
    print({name: f"{value:.2g}" for name, value in worst.items()}, len(tokens))
    assert worst["norm"] <= bounds.norm and worst["lens"] <= bounds.logprob, worst
