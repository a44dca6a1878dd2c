"""Every family from GGUF and from a Hugging Face folder gives the same spec and the same canonical weights."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import tinyfiles
from pellucid.checkpoint import open_checkpoint
from pellucid.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from pellucid.formats import FORMATS
from pellucid.models.spec import LayerSpec, ModelSpec, RopeSpec

FAMILIES = pytest.mark.parametrize("spec", tinyfiles.SPECS.values(), ids=tinyfiles.SPECS.keys())
LLAMA = tinyfiles.LLAMA


def same(got: ModelSpec, due: ModelSpec, **but: object) -> None:
    due = replace(due, name=got.name, **but)
    assert replace(got, norm_eps=due.norm_eps) == due
    assert got.norm_eps == pytest.approx(due.norm_eps)


@pytest.mark.covers("opened", "fmt")
@FAMILIES
@pytest.mark.parametrize("fmt", ["f32", "bf16", "f64", "q8_0", "q4_1", "q5_1", "iq4_nl", "mxfp4"])
def test_gguf(spec: ModelSpec, fmt: str, tmp_path: Path) -> None:
    values = tinyfiles.weights(spec)
    path = tinyfiles.write_gguf(tmp_path / "m.gguf", spec, values, fmt=fmt)
    with open_checkpoint(path) as c:
        same(c.spec, spec, family="llama" if spec.family == "mistral" else spec.family)
        names = []
        for w in c.weights():
            v = values[w.name]
            assert w.shape == v.shape == c.spec.weight_shapes()[w.name]
            if v.ndim == 2:
                v = w.format.decode_rows(w.format.encode_rows(v))
            assert np.array_equal(w.to_float32(), v), w.name
            c.release(w)
            names.append(w.name)
        assert names == list(spec.weight_shapes())  # the order in which they were written
        assert c.files == [path]
        assert c.metadata["general.name"] == "tiny"


@pytest.mark.covers("opened", "fmt")
@FAMILIES
@pytest.mark.parametrize("fmt", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_hf(spec: ModelSpec, fmt: str, shards: int, tmp_path: Path) -> None:
    values = tinyfiles.weights(spec)
    folder = tinyfiles.write_hf(tmp_path / "m", spec, values, fmt=fmt, shards=shards)
    with open_checkpoint(folder) as c:
        same(c.spec, spec)
        tolerance = {"f64": 3e-7, "f32": 3e-7, "f16": 2e-3, "bf16": 1.6e-2}[fmt]
        names = []
        for w in c.weights():
            assert np.abs(w.to_float32() - values[w.name]).max() <= tolerance * 4, w.name
            names.append(w.name)
        assert sorted(names) == sorted(values)
        assert c.nbytes == sum(v.size for v in values.values()) * FORMATS[fmt].nbytes


def test_hf_written_by_the_safetensors_package(tmp_path: Path) -> None:
    values = tinyfiles.weights(LLAMA)
    folder = tinyfiles.write_hf(tmp_path, LLAMA, values)
    save_file(
        {tinyfiles.hf_name(n, False): v for n, v in values.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    for w in open_checkpoint(folder).weights():
        assert np.array_equal(w.to_float32(), values[w.name])


def test_views_outlive_the_checkpoint(tmp_path: Path) -> None:
    values = tinyfiles.weights(LLAMA)
    c = open_checkpoint(tinyfiles.write_gguf(tmp_path / "m.gguf", LLAMA, values, fmt="f32"))
    w = next(c.weights())
    c.release(w)
    c.close()
    assert np.array_equal(w.to_float32(), values[w.name])


def test_llama3_scaling_is_the_same_from_both(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = tinyfiles.hf_config(LLAMA) | {"rope_theta": 500000.0, "rope_scaling": scaling}
    values = tinyfiles.weights(LLAMA)
    hf = open_checkpoint(tinyfiles.write_hf(tmp_path / "hf", LLAMA, values, config=config))
    factors = hf.spec.layers[0].rope.factors
    assert factors is not None
    inverse = 500000.0 ** -(np.arange(8) / 8)
    waves = 2 * math.pi / inverse
    for factor, wave in zip(factors, waves, strict=True):
        if wave < 8192 / 4:
            assert factor == 1.0
        elif wave > 8192:
            assert factor == 32.0
        else:
            smooth = (8192 / wave - 1) / 3
            assert factor == pytest.approx(1 / ((1 - smooth) / 32 + smooth))
    assert 1.0 < sorted(factors)[-3] < 32.0 or 1.0 < sorted(factors)[4] < 32.0
    spec = replace(LLAMA, layers=(LayerSpec(0, RopeSpec(500000.0, 16, 1.0, factors)),) * 2)
    g = open_checkpoint(tinyfiles.write_gguf(tmp_path / "m.gguf", spec, values))
    assert g.spec.layers[0].rope.factors == pytest.approx(factors, rel=1e-6)


def test_transformers_5_rope_parameters(tmp_path: Path) -> None:
    gemma = tinyfiles.SPECS["gemma3"]
    config = tinyfiles.hf_config(gemma)
    del config["rope_theta"], config["rope_scaling"]
    config["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    config["layer_types"] = ["full_attention" if i == 5 else "sliding_attention" for i in range(7)]
    same(open_checkpoint(tinyfiles.write_hf(tmp_path, gemma, tinyfiles.weights(gemma), config=config)).spec, gemma)


def test_gemma_inside_a_larger_model(tmp_path: Path) -> None:
    gemma = tinyfiles.SPECS["gemma3"]
    text = tinyfiles.hf_config(gemma)
    del text["eos_token_id"], text["tie_word_embeddings"]
    outer = {"model_type": "gemma3", "text_config": text, "vision_config": {}, "eos_token_id": [1, 3]}
    values = tinyfiles.weights(gemma)
    tinyfiles.write_hf(tmp_path, gemma, values, config=outer)
    tensors = {"language_model." + n: t for n, t in tinyfiles.hf_tensors(gemma, values).items()}
    tensors["vision_tower.x.weight"] = {"dtype": "F64", "shape": [3], "data": bytes(24)}
    tinyfiles.save_safetensors(tmp_path / "model.safetensors", tensors)
    with open_checkpoint(tmp_path) as c:
        same(c.spec, gemma)
        assert c.tokenizer.eot_ids == (2, 5, 1, 3)


def test_gemma_4b_is_silent_about_its_sizes(tmp_path: Path) -> None:
    """What text_config of google/gemma-3-4b-it says is not much; the class fills in the rest."""
    from pellucid.checkpoint.from_hf import read_config, spec_from_hf

    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    spec = spec_from_hf(read_config(tmp_path), tied_by_absence=True)
    assert (spec.vocab, spec.n_heads, spec.n_kv_heads, spec.d_head) == (262208, 8, 4, 256)
    assert spec.layers[0] == LayerSpec(1024, RopeSpec(10000.0, 256))
    assert spec.layers[5] == LayerSpec(0, RopeSpec(1e6, 256, 8.0))
    assert spec.context == 131072
    assert spec.tied
    assert spec.attn_scale == 256**-0.5


def test_qwen_windows(tmp_path: Path) -> None:
    qwen = tinyfiles.SPECS["qwen2"]
    config = tinyfiles.hf_config(qwen) | {"sliding_window": 64, "max_window_layers": 1}
    values = tinyfiles.weights(qwen)
    off = open_checkpoint(tinyfiles.write_hf(tmp_path / "a", qwen, values, config=config))
    assert [layer.window for layer in off.spec.layers] == [0, 0]
    on = open_checkpoint(tinyfiles.write_hf(tmp_path / "b", qwen, values, config=config | {"use_sliding_window": True}))
    assert [layer.window for layer in on.spec.layers] == [0, 64]


def test_tied_with_an_lm_head_too(tmp_path: Path) -> None:
    values = tinyfiles.weights(LLAMA)
    config = tinyfiles.hf_config(LLAMA) | {"tie_word_embeddings": True}
    c = open_checkpoint(tinyfiles.write_hf(tmp_path, LLAMA, values, config=config))
    assert c.spec.tied
    assert "unembed.W_U" not in [w.name for w in c.weights()]


def test_gguf_window_pattern_and_per_layer_arrays(tmp_path: Path) -> None:
    gemma, values = tinyfiles.SPECS["gemma3"], tinyfiles.weights(tinyfiles.SPECS["gemma3"])
    pattern = [True, False] * 3 + [True]
    path = tinyfiles.write_gguf(
        tmp_path / "m.gguf",
        gemma,
        values,
        gemma3__attention__sliding_window_pattern=pattern,
        gemma3__rope__freq_base_swa=5000.0,
    )
    layers = open_checkpoint(path).spec.layers
    assert [bool(layer.window) for layer in layers] == pattern
    assert layers[0].rope.base == 5000.0
    path = tinyfiles.write_gguf(
        tmp_path / "n.gguf", LLAMA, tinyfiles.weights(LLAMA), llama__attention__head_count_kv=[2, 2]
    )
    assert open_checkpoint(path).spec.n_kv_heads == 2
    path = tinyfiles.write_gguf(
        tmp_path / "o.gguf", LLAMA, tinyfiles.weights(LLAMA), llama__attention__head_count_kv=[2, 4]
    )
    with pytest.raises(UnsupportedModelError, match="head_count_kv differs from layer to layer"):
        open_checkpoint(path)


def test_gemma_27b_scales_by_its_width(tmp_path: Path) -> None:
    gemma = tinyfiles.SPECS["gemma3"]
    wide = replace(
        gemma, layers=tuple(tinyfiles.GEMMA_GLOBAL if i % 6 == 5 else tinyfiles.GEMMA_LOCAL for i in range(62))
    )
    wide = replace(wide, layers=(*wide.layers[:60], tinyfiles.GEMMA_GLOBAL, wide.layers[61]))
    path = tinyfiles.write_gguf(tmp_path / "m.gguf", wide, tinyfiles.weights(wide))
    assert open_checkpoint(path).spec.attn_scale == pytest.approx((64 / 4) ** -0.5)


def test_split(tmp_path: Path) -> None:
    values = tinyfiles.weights(LLAMA)
    tinyfiles.write_gguf(tmp_path / "m.gguf", LLAMA, values, fmt="f32", split=5)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) == 5
    with open_checkpoint(parts[0]) as c:
        assert c.files == parts
        for w in c.weights():
            assert np.array_equal(w.to_float32(), values[w.name])
    with pytest.raises(ModelFileError, match=r"part 2 of 5; open the first, m-00001-of-00005.gguf"):
        open_checkpoint(parts[1])
    parts[3].unlink()
    with pytest.raises(ModelFileError, match=r"1 of its 5 parts are missing: m-00004-of-00005.gguf"):
        open_checkpoint(parts[0])


def test_tokenizer_source_of_gguf(tmp_path: Path) -> None:
    spm = open_checkpoint(tinyfiles.write_gguf(tmp_path / "a.gguf", LLAMA, tinyfiles.weights(LLAMA))).tokenizer
    assert (spm.kind, spm.bos_id, spm.eos_id, spm.unk_id, spm.add_bos, spm.add_space_prefix) == (
        "spm",
        1,
        2,
        0,
        True,
        True,
    )
    assert list(spm.pieces) == tinyfiles.PIECES
    assert spm.types is not None
    assert spm.types.tolist() == tinyfiles.TYPES
    assert spm.scores is not None
    assert spm.scores[7] == -7
    assert spm.eot_ids == (2, 3)
    qwen = tinyfiles.SPECS["qwen2"]
    bpe = open_checkpoint(tinyfiles.write_gguf(tmp_path / "b.gguf", qwen, tinyfiles.weights(qwen))).tokenizer
    assert (bpe.kind, bpe.pre, bpe.add_bos, bpe.merges) == ("bpe", "qwen2", False, ["t 1", "t 2"])
    assert bpe.chat_template == "{{ messages }}"


def test_tokenizer_source_of_a_folder(tmp_path: Path) -> None:
    folder = tinyfiles.write_hf(tmp_path, LLAMA, tinyfiles.weights(LLAMA))
    t = open_checkpoint(folder).tokenizer
    assert (t.kind, t.json_path, t.bos_id, t.eos_id, t.add_bos) == ("json", folder / "tokenizer.json", 1, 2, True)
    assert t.eot_ids == (2, 5, 3)
    assert t.chat_template == "{{ 1 }}"
    (folder / "chat_template.jinja").write_text("{{ 2 }}")
    assert open_checkpoint(folder).tokenizer.chat_template == "{{ 2 }}"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; known are llama"),
        ({"rope_scaling": {"rope_type": "mrope", "factor": 4.0}}, "rotary scaling 'mrope' is not supported"),
        ({"rope_scaling": {"type": "proportional", "factor": 4.0}}, "'proportional'"),
        ({"hidden_act": "relu"}, "hidden_act: 'relu' is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping: soft-capped logits"),
        ({"logits_scaling": 8.0}, "logits_scaling: scaled logits"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"layer_types": ["linear_attention"] * 2}, "layer_types: 'linear_attention'"),
    ],
)
def test_unsupported_settings_are_named(change: dict[str, object], match: str, tmp_path: Path) -> None:
    config = tinyfiles.hf_config(LLAMA) | change
    folder = tinyfiles.write_hf(tmp_path, LLAMA, tinyfiles.weights(LLAMA), config=config)
    with pytest.raises(UnsupportedModelError, match=match):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({"llama__expert_count": 8, "llama__expert_group_count": 4}, "experts in groups"),
        (
            {"llama__expert_count": 8, "llama__expert_used_count": 2, "llama__expert_gating_func": 2},
            "expert_gating_func: 2 is not supported; softmax is",
        ),
        ({"llama__rope__scaling__type": "mrope"}, "llama.rope.scaling.type: 'mrope' is not supported"),
        ({"llama__attn_logit_softcapping": 50.0}, "soft-capped attention"),
        ({"llama__attention__causal": False}, "only causal attention"),
        ({"llama__rope__dimension_count": 8}, "rotating 8 of 16 values"),
        ({"llama__attention__value_length": 8}, "8 for V beside 16 for K"),
        ({"tokenizer__ggml__model": "t5"}, "tokenizer.ggml.model: 't5' is not supported; known are gpt2"),
        ({"general__architecture": "mamba"}, "architecture 'mamba' is not supported; known are llama"),
    ],
)
def test_unsupported_keys_are_named(extra: dict[str, object], match: str, tmp_path: Path) -> None:
    path = tinyfiles.write_gguf(tmp_path / "m.gguf", LLAMA, tinyfiles.weights(LLAMA), **extra)
    with pytest.raises(UnsupportedModelError, match=match):
        open_checkpoint(path)


def test_left_over_and_missing_tensors_are_named(tmp_path: Path) -> None:
    values = tinyfiles.weights(LLAMA)
    tensors = tinyfiles.hf_tensors(LLAMA, values)
    folder = tinyfiles.write_hf(tmp_path, LLAMA, values)
    extra = tensors | {"model.layers.0.self_attn.o_proj.bias": tensors["model.norm.weight"]}
    tinyfiles.save_safetensors(folder / "model.safetensors", extra)
    with pytest.raises(
        UnsupportedModelError, match=r"'model.layers.0.self_attn.o_proj.bias' is not part of a llama model"
    ):
        open_checkpoint(folder)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tinyfiles.save_safetensors(folder / "model.safetensors", tensors)
    with pytest.raises(ModelFileError, match=r"'model.layers.1.mlp.up_proj.weight' is missing"):
        open_checkpoint(folder)


def test_a_name_cannot_drive_the_terminal(tmp_path: Path) -> None:
    spec = replace(LLAMA, name="a\x1b[2Jb\nc")
    assert (
        open_checkpoint(tinyfiles.write_gguf(tmp_path / "m.gguf", spec, tinyfiles.weights(spec))).spec.name
        == "a?[2Jb?c"
    )


def test_wrong_places(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        open_checkpoint(tmp_path / "none.gguf")
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(ModelNotFoundError, match="no such file"):
            open_checkpoint(name)
    with pytest.raises(ModelFileError, match=r"no config.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "m.safetensors").write_bytes(b"x")
    with pytest.raises(ModelFileError, match="give the folder"):
        open_checkpoint(tmp_path / "m.safetensors")
