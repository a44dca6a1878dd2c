"""Mixtures of experts in files: what they may say, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ggufconvert
from pellucid.checkpoint import open_checkpoint
from pellucid.cli.show import card
from pellucid.errors import ModelFileError, UnsupportedModelError

FAMILIES = Path(__file__).parents[1] / "golden" / "families"
Tensors = dict[str, np.ndarray]


def folder(tmp_path: Path, name: str, **changes: object) -> Path:
    """The family's folder with other settings."""
    copy = Path(shutil.copytree(FAMILIES / name, tmp_path / name))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | changes))
    return copy


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok: is 5, but there are 4 experts"),
        ("mixtral", {"num_experts_per_tok": 0}, "num_experts_per_tok: is 0, outside 1 to"),
        ("mixtral", {"num_local_experts": 5}, r"gate.weight' has shape \[4, 16\], but .* \[5, 16\]"),
        ("mixtral", {"num_local_experts": 3}, r"gate.weight' has shape \[4, 16\], but .* \[3, 16\]"),
        ("mixtral", {"num_local_experts": 1 << 40}, "num_local_experts: is 1099511627776, outside"),
        ("mixtral", {"num_local_experts": -1}, "num_local_experts: is -1, outside"),
        ("mixtral", {"intermediate_size": 25}, r"w1.weight' has shape \[24, 16\], but .* \[25, 16\]"),
        ("qwen2-moe", {"moe_intermediate_size": 11}, r"gate_proj.weight' has shape \[10, 16\], but .* \[11, 16\]"),
        ("qwen2-moe", {"shared_expert_intermediate_size": 8}, r"shared_expert.gate_proj.weight' has shape \[20, 16\]"),
        ("qwen2-moe", {"decoder_sparse_step": 2}, "decoder_sparse_step: 2 is not supported; 1 is"),
        ("qwen2-moe", {"mlp_only_layers": [1]}, "mlp_only_layers: layers without experts"),
        ("qwen3-moe", {"use_sliding_window": True}, "use_sliding_window: not supported for qwen3-moe"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv: clamped q, k and v"),
        ("gpt-oss", {"swiglu_limit": 5.0}, "swiglu_limit: 5 is not supported for gpt-oss; 7.0 is"),
        ("gpt-oss", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config: quantised weights"),
        ("gpt-oss", {"num_local_experts": 4}, r"router.weight' has shape \[5, 32\], but .* \[4, 32\]"),
        ("gpt-oss", {"intermediate_size": 31}, r"gate_up_proj' has shape \[5, 32, 64\], but .* \[5, 32, 62\]"),
        ("gpt-oss-mxfp4", {"hidden_size": 33}, r"embed_tokens.weight' has shape"),
        ("gpt-oss-mxfp4", {"intermediate_size": 64}, r"gate_up_proj_blocks' has shape \[5, 64, 1, 16\]"),
    ],
)
def test_settings_that_cannot_be(name: str, changes: dict[str, object], match: str, tmp_path: Path) -> None:
    with pytest.raises((ModelFileError, UnsupportedModelError), match=match):
        open_checkpoint(folder(tmp_path, name, **changes))


def marred(tmp_path: Path, name: str, tensor: str, value: np.ndarray | None) -> Path:
    """The family's folder with one tensor replaced, or left out."""
    copy = folder(tmp_path, name)
    tensors: Tensors = load_file(copy / "model.safetensors")
    full = next(n for n in tensors if n.endswith(tensor))
    tensors |= {} if value is None else {full: value}
    save_file({n: t for n, t in tensors.items() if n != full or value is not None}, copy / "model.safetensors")
    return copy


@pytest.mark.parametrize(
    ("name", "tensor", "value", "match"),
    [
        ("gpt-oss-mxfp4", "0.mlp.experts.down_proj_scales", None, "down_proj_scales' is missing"),
        ("gpt-oss-mxfp4", "0.mlp.experts.down_proj_blocks", None, "down_proj' is missing"),
        (
            "gpt-oss-mxfp4",
            "0.mlp.experts.down_proj_scales",
            np.zeros((5, 32, 2), np.uint8),
            r"down_proj_scales' has shape \[5, 32, 2\], but the model's sizes call for \[5, 32, 1\]",
        ),
        (
            "gpt-oss-mxfp4",
            "0.mlp.experts.down_proj_blocks",
            np.zeros((5, 32, 1, 16), np.float32),
            "down_proj_blocks' is stored as F32, not U8",
        ),
        ("gpt-oss", "0.self_attn.sinks", np.zeros(5, np.float32), r"sinks' has shape \[5\], but .* \[4\]"),
        (
            "gpt-oss",
            "0.mlp.router.weight",
            np.zeros((5, 32), np.uint8),
            "stored as U8, which here stands for no number",
        ),
        ("mixtral", "2.block_sparse_moe.experts.3.w2.weight", None, "experts.3.w2.weight' is missing"),
        ("mixtral", "0.block_sparse_moe.experts.2.w1.weight", np.zeros((24, 16), np.float16), "are of several formats"),
        ("mixtral", "0.block_sparse_moe.experts.2.w1.weight", np.zeros((16, 24), np.float32), r"has shape \[16, 24\]"),
        ("olmoe", "0.mlp.gate.weight", np.zeros((7, 16), np.float32), r"gate.weight' has shape \[7, 16\]"),
    ],
)
def test_tensors_that_cannot_be(name: str, tensor: str, value: np.ndarray | None, match: str, tmp_path: Path) -> None:
    with pytest.raises((ModelFileError, UnsupportedModelError), match=match):
        open_checkpoint(marred(tmp_path, name, tensor, value))


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("expert_used_count", 9, "expert_used_count: is 9, but there are 6 experts"),
        ("expert_used_count", 0, "expert_used_count: is 0, outside 1 to"),
        ("expert_count", 1 << 31, "expert_count: is 2147483648, outside 0 to"),
        ("expert_count", 0, "expert_count: a model without experts is not supported"),
        ("expert_count", 5, r"ffn_gate_inp.weight' has shape \[6, 16\], but .* \[5, 16\]"),
        ("expert_feed_forward_length", 12, r"ffn_gate_exps.weight' has shape \[6, 10, 16\], but .* \[6, 12, 16\]"),
        ("expert_weights_scale", 2, "expert_weights_scale: scaled weights of experts"),
    ],
)
def test_keys_that_cannot_be(key: str, value: int, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = gguf.GGUFWriter.write_kv_data_to_file

    def changed(w: gguf.GGUFWriter) -> None:
        w.kv_data[0][f"qwen3moe.{key}"] = gguf.gguf_writer.GGUFValue(value, gguf.GGUFValueType.UINT32)
        write(w)

    header = gguf.GGUFWriter.write_header_to_file

    def counted(w: gguf.GGUFWriter, path: Path | None = None) -> None:
        w.kv_data[0][f"qwen3moe.{key}"] = gguf.gguf_writer.GGUFValue(value, gguf.GGUFValueType.UINT32)
        header(w, path)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", counted)
    monkeypatch.setattr(gguf.GGUFWriter, "write_kv_data_to_file", changed)
    with pytest.raises((ModelFileError, UnsupportedModelError), match=match):
        open_checkpoint(ggufconvert.convert(FAMILIES / "qwen3-moe", tmp_path / "m.gguf"))


def test_the_architecture_of_two_families() -> None:
    """A llama with experts is a mixtral."""
    with open_checkpoint(FAMILIES / "mixtral") as c:
        assert (c.spec.family, c.spec.experts is not None) == ("mixtral", True)


def test_the_card_tells_active_from_all() -> None:
    with open_checkpoint(FAMILIES / "qwen2-moe") as c:
        about, spec = card(c, None, None, None), c.spec
    experts = spec.n_layers * 6 * 3 * 10 * 16
    assert about["parameters"]["total"] - about["active_parameters"] == experts // 2
    looked_up = spec.vocab * spec.d_model
    assert about["weights_per_token"] == 4 * (about["active_parameters"] - looked_up)
    assert about["shape"]["experts"] == 6
    assert about["shape"]["experts_per_token"] == 3
    assert about["shape"]["shared_expert"] == 20
