"""Every tiny model of a dense family, written as GGUF (tests/ggufconvert.py), opens to the same spec and weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ggufconvert
from pellucid.checkpoint import open_checkpoint
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.models.spec import LayerSpec, ModelSpec, RopeSpec

GOLDEN = Path(__file__).parent.parent / "golden"
FOLDERS = {
    p.name: p
    for p in sorted([*(GOLDEN / "families").iterdir(), GOLDEN / "tiny" / "llama", GOLDEN / "tiny" / "qwen3"])
    if (p / "config.json").is_file() and p.name != "llama-dynamic"  # GGUF has no word for a dynamic scaling
}


def rounded(spec: ModelSpec) -> ModelSpec:
    """As a GGUF file can state it: numbers in float32, to six digits, since some are computed again."""

    def number(x: float) -> float:
        return float(f"{np.float32(x):.6g}")

    def factors(f: tuple[float, ...] | None) -> tuple[float, ...] | None:
        return None if f is None else tuple(map(number, f))

    def rope(r: RopeSpec | None) -> RopeSpec | None:
        if r is None:
            return None
        return replace(
            r,
            base=number(r.base),
            linear=number(r.linear),
            factors=factors(r.factors),
            magnitude=number(r.magnitude),
            long_factors=factors(r.long_factors),
        )

    scalings = ("norm_eps", "attn_scale", "embed_scale", "residual_scale", "attn_softcap", "logit_scale")
    return replace(
        spec,
        name="tiny",
        family="llama" if spec.family == "mistral" else spec.family,
        layers=tuple(LayerSpec(layer.window, rope(layer.rope)) for layer in spec.layers),
        **{name: number(getattr(spec, name)) for name in (*scalings, "logit_softcap")},
    )


@pytest.mark.covers("gguf", "name")
@pytest.mark.parametrize("name", FOLDERS)
def test_gguf_equals_hugging_face(name: str, tmp_path: Path) -> None:
    path = ggufconvert.convert(FOLDERS[name], tmp_path / "m.gguf")
    with open_checkpoint(path) as g, open_checkpoint(FOLDERS[name]) as hf:
        due = hf.spec
        if name == "gemma2":  # its GGUF does not state the scale; the real ones follow from their sizes
            assert due.attn_scale == 12**-0.5
            due = replace(due, attn_scale=due.d_head**-0.5)
        assert rounded(g.spec) == rounded(due)
        # Each in the order of its own file.
        assert sorted(w.name for w in g.weights()) == sorted(w.name for w in hf.weights())
        for a in g.weights():
            b = hf.weight(a.name)
            assert a.shape == b.shape == due.weight_shapes()[a.name]
            assert np.array_equal(a.to_float32(), b.to_float32()), a.name
            g.release(a)
            hf.release(b)
        assert g.nbytes == hf.nbytes == sum(w.data.nbytes for w in g.weights())


@pytest.mark.covers("opened", "fmt")
@pytest.mark.parametrize("fmt", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", FOLDERS)
def test_matrices_in_other_floats(name: str, fmt: str, tmp_path: Path) -> None:
    path = ggufconvert.convert(FOLDERS[name], tmp_path / "m.gguf", fmt)
    with open_checkpoint(path) as g, open_checkpoint(FOLDERS[name]) as hf:
        due = {w.name: w.to_float32() for w in hf.weights()}
        for w in g.weights():
            values = due[w.name]
            # What a runtime keeps as it is: biases, a gate of one row, and codes.
            if values.ndim >= 2 and ".b_" not in w.name and values.shape[0] > 1 and w.format.name != "mxfp4":
                assert w.format.name == fmt
                rows = w.format.encode_rows(values.reshape(-1, values.shape[-1]))
                values = w.format.decode_rows(rows).reshape(values.shape)
            assert np.array_equal(w.to_float32(), values), w.name


def test_the_one_member_with_a_scale_of_its_own() -> None:
    from pellucid.checkpoint.families import FAMILIES
    from pellucid.checkpoint.from_gguf import _attn_scale

    gemma2 = next(f for f in FAMILIES if f.name == "gemma2")
    assert _attn_scale(gemma2, 46, 4608, 32, 128) == 144**-0.5
    assert _attn_scale(gemma2, 42, 3584, 16, 256) == 256**-0.5


def write(tmp_path: Path, name: str, **changes: object) -> Path:
    """The family's folder with other settings."""
    folder = Path(shutil.copytree(FOLDERS[name], tmp_path / name))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
        ("gpt2", {"n_embd": 20}, r"wte.weight' has shape \[96, 16\], but the model's sizes call for \[96, 20\]"),
        ("gpt2", {"n_inner": 32}, r"h.0.mlp.c_fc.weight' has shape \[16, 64\], but the .* call for \[16, 32\]"),
        ("phi3", {"intermediate_size": 25}, r"gate_up_proj.weight' has shape \[48, 16\], but .* \[50, 16\]"),
        ("phi3", {"num_key_value_heads": 4}, r"qkv_proj.weight' has shape \[32, 16\], but .* \[48, 16\]"),
        ("phi4-mini", {"partial_rotary_factor": 0.82}, "partial_rotary_factor: rotates 13 of 16"),
        (
            "phi4-mini",
            {"rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}},
            "short_factor: has 1 entries for 6 frequencies",
        ),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers: has 2 entries for 5 layers"),
        ("smollm3", {"no_rope_layers": [1, 0, 1, 1, "x"]}, "no_rope_layers: is an array, not an array of numbers"),
        ("granite", {"logits_scaling": 0.0}, "logits_scaling: is 0.0"),
        ("starcoder2", {"use_bias": False}, "is not part of a starcoder2 model"),
        ("command-r", {"use_qk_norm": False}, "k_norm.weight' and .* is not part of a command-r model"),
    ],
)
def test_settings_that_contradict_the_weights(
    name: str, changes: dict[str, object], match: str, tmp_path: Path
) -> None:
    with pytest.raises((ModelFileError, UnsupportedModelError), match=match):
        open_checkpoint(write(tmp_path, name, **changes))
