"""Loading at scale: many shards, many tensors, tensors of more than 2**31 elements, memory, order and progress."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import gguf
import numpy as np
import pytest

from pellucid.checkpoint.open import open_checkpoint
from pellucid.config import EngineConfig
from pellucid.devices.loading import Loading
from pellucid.llm import _loading
from pellucid.models.spec import ModelSpec
from tinyfiles import LLAMA, gguf_name, hf_config, hf_name, hf_tensors, weights, write_gguf, write_hf

MANY = replace(LLAMA, layers=LLAMA.layers[:1] * 120)
"""1083 tensors."""
HUGE = replace(LLAMA, d_model=1 << 16, d_ff=(1 << 15) + 32, layers=LLAMA.layers[:1], n_heads=16, n_kv_heads=1)
"""Feed-forward matrices of 2**31 + 2**21 elements."""


def test_a_hundred_shards(tmp_path: Path) -> None:
    values = weights(MANY)
    folder = write_hf(tmp_path / "m", MANY, values, shards=100)
    with open_checkpoint(folder) as checkpoint:
        assert len(checkpoint.files) == 100
        got = {weight.name: weight.to_float32() for weight in checkpoint.weights()}
    assert got.keys() == values.keys()
    assert all((got[name] == values[name]).all() for name in values)


def test_weights_come_as_they_lie_in_the_files(tmp_path: Path) -> None:
    folder = write_hf(tmp_path / "m", LLAMA, weights(LLAMA), shards=7)
    places: list[tuple[str, int]] = []
    with open_checkpoint(folder) as checkpoint:
        for weight in checkpoint.weights():
            bound = checkpoint._bound[weight.name]
            places.append((bound.parts[0].file.name, bound.place))
    assert places == sorted(places)
    assert len({name for name, _ in places}) == 7


def sparse_hf(folder: Path, spec: ModelSpec, last: bytes) -> Path:
    """A folder whose tensors are all holes, but for the last bytes of each. Returns the folder."""
    tiny = replace(spec, d_model=64, d_ff=96, n_heads=4, n_kv_heads=2)
    write_hf(folder, tiny, weights(tiny), config=hf_config(spec))
    header: dict[str, object] = {}
    at = 0
    for name, shape in spec.weight_shapes().items():
        size = 2 * prod(shape)
        header[hf_name(name, False)] = {"dtype": "F16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + at)
        for entry in header.values():
            f.seek(8 + len(text) + entry["data_offsets"][1] - len(last))  # type: ignore[index]
            f.write(last)
    return folder


def sparse_gguf(path: Path, spec: ModelSpec, last: bytes) -> Path:
    tiny = replace(spec, vocab=40, d_model=64, d_ff=96, n_heads=4, n_kv_heads=2)
    write_gguf(path.with_suffix(".tiny"), tiny, weights(tiny))
    reader = gguf.GGUFReader(path.with_suffix(".tiny"))
    w = gguf.GGUFWriter(path, "llama")
    changed = {"llama.embedding_length": spec.d_model, "llama.feed_forward_length": spec.d_ff}
    changed |= {"llama.attention.head_count": spec.n_heads, "llama.attention.head_count_kv": spec.n_kv_heads}
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            sub = field.types[1] if len(field.types) > 1 else None
            w.add_key_value(key, changed.get(key, field.contents()), field.types[0], sub_type=sub)
    for key, value in (("key_length", spec.d_head), ("value_length", spec.d_head)):
        w.add_uint32(f"llama.attention.{key}", value)
    ends: list[int] = []
    at = 0
    for name, shape in spec.weight_shapes().items():
        kind, size = (np.float32, 4) if len(shape) == 1 else (np.float16, 2)
        nbytes = size * prod(shape)
        w.add_tensor_info(gguf_name(name), shape, np.dtype(kind), nbytes)
        ends.append(at + nbytes)
        at += -(-nbytes // 32) * 32
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    w.close()
    base = -(-path.stat().st_size // 32) * 32
    with path.open("r+b") as f:
        f.truncate(base + at)
        for end in ends:
            f.seek(base + end - len(last))
            f.write(last)
    return path


@pytest.mark.parametrize("make", [sparse_hf, sparse_gguf])
def test_tensors_of_more_than_2_to_the_31_elements(tmp_path: Path, make: object) -> None:
    last = np.array([1.5, -2.25], np.float16).tobytes()
    path = make(tmp_path / "huge.gguf", HUGE, last)  # type: ignore[operator]
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.spec.parameters() > 3 << 31
        for part in ("W_gate", "W_in", "W_out"):
            weight = checkpoint.weight(f"blocks.0.mlp.{part}")
            assert prod(weight.shape) > 1 << 31
            row = weight.format.decode_rows(weight.data[-1:])
            assert row[0, -2:].tolist() == [1.5, -2.25]
            assert not row[0, :-2].any()
            assert not weight.format.decode_rows(weight.data[-2:-1]).any()
            checkpoint.release(weight)


LARGE = replace(LLAMA, vocab=16384, d_model=1024, d_ff=3072, n_heads=16, d_head=64, layers=LLAMA.layers[:1] * 20)
"""About 580 MB in F16."""
MEASURE = """
import sys
from pellucid.checkpoint.open import open_checkpoint
from pellucid.config import EngineConfig
from pellucid.devices.loading import Loading

def status(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name + ":"))

with open_checkpoint(sys.argv[1]) as checkpoint:
    before = status("VmRSS")
    done = []
    with Loading(checkpoint, EngineConfig(threads=2, ctx=64, kv_pages=4), done.append) as loading:
        loading.finish()
    print(checkpoint.nbytes, sum(done), status("VmRSS") - before, status("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_is_the_result_and_a_few_layers(tmp_path: Path) -> None:
    """The highest mark while a model is packed lies little above what is left when it is packed. The file is written
    layer by layer from one block of values, so that the test itself is quick."""
    folder = tmp_path / "m"
    tiny = replace(LARGE, vocab=40, d_model=64, d_ff=96, n_heads=4, d_head=16)
    write_hf(folder, tiny, {}, config=hf_config(LARGE))
    block = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float16)
    header: dict[str, object] = {}
    at = 0
    for name, shape in LARGE.weight_shapes().items():
        header[hf_name(name, False)] = {
            "dtype": "F16",
            "shape": list(shape),
            "data_offsets": [at, at + 2 * prod(shape)],
        }
        at += 2 * prod(shape)
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for shape in LARGE.weight_shapes().values():
            f.write(np.resize(block, shape).tobytes())
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder)], capture_output=True, text=True, check=True, timeout=120
    )
    nbytes, told, kept, most = map(int, done.stdout.split())
    assert nbytes > 500 << 20
    assert told == nbytes  # progress by bytes, to the last
    layer = 2 * sum(prod(s) for n, s in LARGE.weight_shapes().items() if n.startswith("blocks.0."))
    assert most - kept < 4 * layer
    assert kept < 1.1 * nbytes + (32 << 20)


def test_progress_is_told_in_bytes_while_copies_wait(tmp_path: Path) -> None:
    """Rows that are put in another order are copies; progress goes on then too, and ends at the whole."""
    path = write_gguf(tmp_path / "m.gguf", LLAMA, weights(LLAMA))
    told: list[int] = []
    with open_checkpoint(path) as checkpoint:
        with Loading(checkpoint, EngineConfig(threads=1, ctx=64, kv_pages=8), told.append) as loading:
            loading.finish()
        assert sum(told) == checkpoint.nbytes
        assert min(told) >= 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_by_bytes_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream, total, shown in (
        (Terminal(), 1 << 30, True),
        (Terminal(), 1 << 20, False),
        (io.StringIO(), 1 << 30, False),
    ):
        monkeypatch.setattr("sys.stderr", stream)
        with _loading(total, True) as tick:
            assert (tick is not None) == shown
            if tick is not None:
                tick(total // 2)
        assert ("GB" in stream.getvalue()) == shown


def test_hf_tensors_of_the_hundred_shards_are_small(tmp_path: Path) -> None:
    """An index that names a shard for each tensor, and shards of one tensor."""
    folder = write_hf(tmp_path / "m", LLAMA, weights(LLAMA), shards=len(hf_tensors(LLAMA, weights(LLAMA))))
    with open_checkpoint(folder) as checkpoint:
        assert len(checkpoint.files) == len(LLAMA.weight_shapes())
