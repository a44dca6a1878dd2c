"""Models of real shapes and random weights: written as GGUF, loaded and decoded by the engine, without a download.

    python benchmarks/shapes.py [llama-8b qwen3-30b-a3b] [--layers N] [--folder PATH] [--write] [--threads N] [--json]

Prints tokens a second of decoding and their share of the machine's roofline (bytes that a token must read over the
read bandwidth measured in the same run). Weights are blocks of random numbers, quantised by the formats' own encoders
with the spread that a trained layer has, in the mix of formats of a Q4_K_M file. A file is written to a folder of its
own that goes again at the end, or to --folder, where the next run finds it; --write only writes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from pellucid.bench.cells import Cell, Settings
from pellucid.bench.measure import loading_config, measure
from pellucid.checkpoint import open_checkpoint
from pellucid.config import available_cores
from pellucid.devices.cpu import CpuDevice
from pellucid.formats import FORMATS
from pellucid.models.decoder import decoder_graph

POOL = 4096
"""Different blocks of a tensor; the rest repeats them, for CHUNK bytes in random order."""
CHUNK = 64 << 20


@dataclass(frozen=True)
class Shape:
    """Sizes of one model."""

    architecture: str
    layers: int
    vocab: int
    d_model: int
    d_ff: int
    heads: int
    kv_heads: int
    d_head: int
    rope_base: float
    experts: int = 0
    top: int = 0
    qk_norm: bool = False


SHAPES = {
    "llama-8b": Shape("llama", 32, 128256, 4096, 14336, 32, 8, 128, 500000.0),
    "qwen3-30b-a3b": Shape("qwen3moe", 48, 151936, 2048, 768, 32, 4, 128, 1e6, experts=128, top=8, qk_norm=True),
}
SLICES = {"qwen3-30b-a3b": 24}
"""Layers that are written where the whole model would not fit 20 GiB beside the cache."""


def tensors(s: Shape, layers: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and format of every tensor, as Q4_K_M has them."""
    yield "token_embd.weight", (s.vocab, s.d_model), "q4_k"
    for i in range(layers):
        b = f"blk.{i}."
        # llama.cpp's rule for the layers whose V and down projections get more bits.
        more = "q6_k" if i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2 else "q4_k"
        yield b + "attn_norm.weight", (s.d_model,), "f32"
        yield b + "attn_q.weight", (s.heads * s.d_head, s.d_model), "q4_k"
        yield b + "attn_k.weight", (s.kv_heads * s.d_head, s.d_model), "q4_k"
        yield b + "attn_v.weight", (s.kv_heads * s.d_head, s.d_model), more
        if s.qk_norm:
            yield b + "attn_q_norm.weight", (s.d_head,), "f32"
            yield b + "attn_k_norm.weight", (s.d_head,), "f32"
        yield b + "attn_output.weight", (s.d_model, s.heads * s.d_head), "q4_k"
        yield b + "ffn_norm.weight", (s.d_model,), "f32"
        if s.experts:
            yield b + "ffn_gate_inp.weight", (s.experts, s.d_model), "f32"
        end, lead = ("_exps", (s.experts,)) if s.experts else ("", ())
        yield f"{b}ffn_gate{end}.weight", (*lead, s.d_ff, s.d_model), "q4_k"
        yield f"{b}ffn_up{end}.weight", (*lead, s.d_ff, s.d_model), "q4_k"
        yield f"{b}ffn_down{end}.weight", (*lead, s.d_model, s.d_ff), more
    yield "output_norm.weight", (s.d_model,), "f32"
    yield "output.weight", (s.vocab, s.d_model), "q6_k"


@cache
def chunk(format_name: str, spread: float) -> NDArray[np.uint8]:
    """CHUNK bytes of blocks in the random order in which a tensor goes on."""
    f, rng = FORMATS[format_name], np.random.default_rng(0)
    pool = f.encode((rng.standard_normal((POOL, f.block)) * spread).astype(np.float32))
    return pool[rng.integers(POOL, size=CHUNK // f.nbytes)]


def blocks(name: str, shape: tuple[int, ...], format_name: str) -> Iterator[NDArray[np.uint8]]:
    """The tensor's bytes, a chunk at a time."""
    f = FORMATS[format_name]
    if len(shape) == 1:
        yield f.encode(np.ones((shape[0], 1), np.float32))
        return
    count = prod(shape) // f.block
    whole = chunk(format_name, 1.0 if name.startswith("token_embd") else shape[-1] ** -0.5)
    for at in range(0, count, len(whole)):
        yield whole[: count - at]


def write(path: Path, shape: Shape, layers: int) -> None:
    """Write the model; no more than a chunk is held in memory."""
    w = gguf.GGUFWriter(path, shape.architecture)
    w.add_name("random")
    w.add_block_count(layers)
    w.add_context_length(8192)
    w.add_embedding_length(shape.d_model)
    w.add_feed_forward_length(shape.d_ff)
    w.add_head_count(shape.heads)
    w.add_head_count_kv(shape.kv_heads)
    w.add_key_length(shape.d_head)
    w.add_value_length(shape.d_head)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(shape.rope_base)
    if shape.experts:
        w.add_expert_count(shape.experts)
        w.add_expert_used_count(shape.top)
        w.add_expert_feed_forward_length(shape.d_ff)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list([f"t{i}" for i in range(shape.vocab)])
    w.add_token_types([1] * shape.vocab)
    w.add_token_merges(["t 1"])
    w.add_eos_token_id(0)
    todo = list(tensors(shape, layers))
    for name, dims, format_name in todo:
        f = FORMATS[format_name]
        stored = dims if f.block == 1 else (*dims[:-1], f.row_bytes(dims[-1]))
        nbytes = prod(dims[:-1]) * f.row_bytes(dims[-1])
        kind = np.dtype(np.float32 if f.block == 1 else np.uint8)
        w.add_tensor_info(name, stored, kind, nbytes, gguf.GGMLQuantizationType(f.ggml_type))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    w.close()
    with path.open("r+b") as out:
        out.seek(0, 2)
        for name, dims, format_name in todo:
            out.write(bytes(-out.tell() % 32))
            for part in blocks(name, dims, format_name):
                out.write(memoryview(part).cast("B"))
        out.write(bytes(-out.tell() % 32))


def run(path: Path, settings: Settings) -> tuple[dict[str, object], list[Cell]]:
    """Load and decode: facts of the model and the load, and the measured cells."""
    cells: list[Cell] = []
    with open_checkpoint(path) as checkpoint:
        spec = checkpoint.spec
        began = time.perf_counter()
        device = CpuDevice.load(checkpoint, decoder_graph(spec), loading_config(settings))
        loaded = time.perf_counter() - began
        facts: dict[str, object] = {
            "layers": spec.n_layers,
            "parameters": spec.parameters(),
            "active_parameters": spec.active_parameters(),
            "weights": checkpoint.nbytes,
            "load_seconds": loaded,
        }
        measure(device, spec.context, settings, cells, say=lambda text: None)
    return facts, cells


def main() -> None:
    """Every model that is named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--layers", type=int, help="write only so many layers")
    parser.add_argument("--folder", type=Path, help="where files stay, and are found again")
    parser.add_argument("--write", action="store_true", help="write the files, measure nothing")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--tokens", type=int, default=32, help="decoded in one repetition")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in SHAPES]:
        parser.error(f"{unknown[0]} is not one of {', '.join(SHAPES)}")
    settings = Settings(
        prompts=(), streams=(1,), threads=(asked.threads,), generate=asked.tokens, repeat=asked.repeat, warmup=1
    )
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="pellucid-shapes-") as own:
        folder: Path = asked.folder or Path(own)
        for name in asked.names or SHAPES:
            layers = min(asked.layers or SLICES.get(name, SHAPES[name].layers), SHAPES[name].layers)
            path = folder / f"{name}-{layers}.gguf"
            if not path.is_file():
                write(path.with_suffix(".part"), SHAPES[name], layers)
                path.with_suffix(".part").rename(path)
            if asked.write:
                continue
            facts, (cell,) = run(path, settings)
            if not asked.folder:
                path.unlink()
            results.append({"name": name, **facts, "whole_model_layers": SHAPES[name].layers, **cell.as_dict()})
            if not asked.json:
                gibibytes = float(str(facts["weights"])) / 2**30
                print(
                    f"{name}, {layers} of {SHAPES[name].layers} layers: {gibibytes:.2f} GiB, "
                    f"loaded in {facts['load_seconds']:.1f} s; {cell.rate:.2f} tokens/s, {cell.share:.1%} of the "
                    f"roofline of {cell.roofline:.2f} ({cell.work.nbytes / cell.total / 1e9:.3f} GB a token, "
                    f"{cell.peak.bandwidth / 1e9:.1f} GB/s)"
                )
                sys.stdout.flush()
    if asked.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
