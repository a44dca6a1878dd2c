"""The native plan on the tiny models of the dense families: against the reference, against Hugging Face, and the law
of batch invariance, in every instruction set."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from devices.models import batch, difference
from pellucid import _core
from pellucid.checkpoint import open_checkpoint
from pellucid.config import EngineConfig
from pellucid.devices.cpu import CpuDevice
from pellucid.graph.reference import Reference
from pellucid.models.decoder import decoder_graph

GOLDEN = Path(__file__).parent.parent / "golden"
FAMILIES = GOLDEN / "families"
NAMES = sorted(p.name for p in FAMILIES.iterdir() if (p / "config.json").is_file())
EARLIER = sorted(p.name for p in (GOLDEN / "tiny").iterdir() if (p / "config.json").is_file())
"""Models of one prompt, whose continuation is not known."""
FLIPPED_BOUND = 1e-2
"""Native against reference, K and V in f16 in both: where float32 noise turns the rounding of a value to f16, one value
is off by 2**-10 of itself. Few are: half of all log-probabilities must agree to USUAL_BOUND."""
USUAL_BOUND = 1e-4
F16_BOUND = 0.1
"""Against Hugging Face, which keeps K and V in float32."""
INT8 = "gpt-oss-mxfp4"
"""The one model whose weights are quantised: its activations are, too, which costs more than rounding."""
FLOATS = [n for n in NAMES if n != INT8]
PAGES = [2, 0, 3]


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64) - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def folder(name: str) -> Path:
    return GOLDEN / ("tiny" if name in EARLIER else "families") / name


def device(name: str, ctx: int, isa: str | None = None, threads: int = 1) -> CpuDevice:
    config = EngineConfig(threads=threads, ctx=ctx, kv_pages=4, token_budget=64, isa=isa)
    with open_checkpoint(folder(name)) as checkpoint:
        return CpuDevice.load(checkpoint, decoder_graph(checkpoint.spec), config)


@cache
def golden(name: str) -> dict[str, np.ndarray]:
    return dict(np.load(folder(name) / "golden.npz"))


def run(cpu: CpuDevice, tokens: list[int], chunk: int) -> np.ndarray:
    """Logits of every token, `chunk` rows at a time."""
    out = []
    for at in range(0, len(tokens), chunk):
        part = tokens[at : at + chunk]
        out.append(cpu.run(batch([(part, at, PAGES)], range(len(part)))).copy())
    return np.concatenate(out)


@pytest.mark.covers("native", "name")
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize(("prompt", "ctx"), [(0, 40), (1, 32)])
def test_native_equals_the_reference(name: str, prompt: int, ctx: int) -> None:
    """The context is that of Hugging Face's pass, so that length-dependent positions are the same."""
    tokens = golden(name)[f"tokens_{prompt}"].tolist()
    with open_checkpoint(FAMILIES / name) as checkpoint:
        weights = {w.name: w.to_float32() for w in checkpoint.weights()}
        reference = Reference(decoder_graph(checkpoint.spec), weights, kv="f16", context=ctx)
    got = log_softmax(run(device(name, ctx), tokens, 64))
    off = np.abs(got - log_softmax(reference.run(tokens)))
    assert off.max() <= FLIPPED_BOUND
    assert np.median(off) <= USUAL_BOUND
    assert np.abs(got - log_softmax(golden(name)[f"logits_{prompt}"])).max() <= F16_BOUND


@pytest.mark.parametrize(("prompt", "ctx"), [(0, 40), (1, 32)])
def test_quantised_experts_stay_within_their_bound(prompt: int, ctx: int) -> None:
    tokens, due = golden(INT8)[f"tokens_{prompt}"].tolist(), golden(INT8)[f"logits_{prompt}"]
    got = run(device(INT8, ctx), tokens, 64)
    assert difference(got, due) < 0.06
    assert np.mean(got.argmax(axis=1) == due.argmax(axis=1)) > 0.9


@pytest.mark.covers("bits", "name")
@pytest.mark.parametrize("name", [*NAMES, *EARLIER])
def test_bits_are_the_same_in_every_instruction_set_chunk_and_thread(name: str) -> None:
    tokens = golden(name)["tokens" if name in EARLIER else "tokens_0"].tolist()
    due = run(device(name, 48), tokens, 64)
    for isa in _core.isas():
        for threads, chunk in ((1, 7), (2, 1), (3, 39)):
            assert np.array_equal(run(device(name, 48, isa, threads), tokens, chunk), due), (isa, threads, chunk)


@pytest.mark.parametrize("name", ["gemma2", "granite", "cohere2"])
def test_scaled_logits_take_no_second_row_of_them(name: str) -> None:
    assert not [n for n in device(name, 40).lowered.offsets if n.startswith("logits")]


@pytest.mark.covers("greedy", "name")
@pytest.mark.parametrize("name", [n for n in FLOATS if n != "llama-dynamic"])  # whose positions hang on each length
@pytest.mark.parametrize(("prompt", "ctx"), [(0, 48), (1, 32)])
def test_greedy_ids_are_those_of_hugging_face(name: str, prompt: int, ctx: int) -> None:
    tokens = golden(name)[f"tokens_{prompt}"].tolist()
    cpu = device(name, ctx)
    row = run(cpu, tokens, 64)[-1]
    for due in golden(name)[f"greedy_{prompt}"].tolist():
        assert int(np.argmax(row)) == due
        row = cpu.run(batch([([due], len(tokens), PAGES)], [0]))[0]
        tokens.append(due)
