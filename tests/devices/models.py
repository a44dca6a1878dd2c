"""Small models of random weights, and batches over them, for tests of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.config import EngineConfig
from pellucid.devices.base import Batch
from pellucid.devices.cpu import CpuDevice
from pellucid.formats import FORMATS, Weight
from pellucid.graph.reference import Reference
from pellucid.models.decoder import decoder_graph
from pellucid.models.spec import LayerSpec, ModelSpec, RopeSpec, is_matrix


@dataclass
class RandomModel:
    """A source of weights, as a checkpoint is: seeded, in one format."""

    spec: ModelSpec
    format: str
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self._weights = []
        for name, shape in self.spec.weight_shapes().items():
            if not is_matrix(name):
                values = rng.uniform(0.5, 1.5, shape) if name.endswith(".w") else rng.standard_normal(shape) * 0.1
                format_ = "f32"
            else:
                values = rng.standard_normal(shape) / np.sqrt(shape[-1])
                # As files do: rows that are not whole blocks of the format are stored in q8_0, or f16.
                fitting = (f for f in (self.format, "q8_0", "f16") if shape[-1] % FORMATS[f].block == 0)
                # Routers, as in files, are in f32: a choice that hangs on eight bits is no choice.
                format_ = "f32" if name.endswith("W_router") else next(fitting)
            self._weights.append(Weight.from_float32(name, values.astype(np.float32), FORMATS[format_]))

    def weights(self) -> Iterator[Weight]:
        yield from self._weights

    def mapped(self, weight: Weight) -> bool:
        return False

    def release(self, weight: Weight) -> None:
        pass

    def device(self, **options: object) -> CpuDevice:
        config = EngineConfig(**({"threads": 1, "kv_pages": 64, "ctx": 512} | options))  # type: ignore[arg-type]
        return CpuDevice.load(self, decoder_graph(self.spec), config)

    def reference(self, kv: str | None = "f16") -> Reference:
        return Reference(decoder_graph(self.spec), {w.name: w.to_float32() for w in self._weights}, kv=kv)


def spec(
    *,
    heads: int = 4,
    kv_heads: int = 2,
    d_head: int = 32,
    windows: Sequence[int] = (0, 0),
    context: int = 1024,
    rotated: int | None = None,
    unrotated: Sequence[int] = (),
    **options: object,
) -> ModelSpec:
    """`rotated`: how many values of a head; `unrotated`: layers without rotation."""
    ropes = [
        None if i in unrotated else RopeSpec(1e4 if w == 0 else 1e3, rotated or d_head) for i, w in enumerate(windows)
    ]
    layers = tuple(LayerSpec(w, rope) for w, rope in zip(windows, ropes, strict=True))
    values = {
        "family": "test", "name": "test", "vocab": 201, "d_model": 256, "d_ff": 512, "n_heads": heads,
        "n_kv_heads": kv_heads, "d_head": d_head, "layers": layers, "context": context, "norm_eps": 1e-5,
        "attn_scale": d_head**-0.5,
    }  # fmt: skip
    return ModelSpec(**(values | options))  # type: ignore[arg-type]


def batch(parts: Sequence[tuple[Sequence[int], int, Sequence[int]]], rows: Sequence[int]) -> Batch:
    """A batch of (tokens, first position, pages) parts; `rows` are those whose logits are wanted."""
    tokens, positions, starts = [], [], [0]
    width = max(len(p[2]) for p in parts)
    tables = np.full((len(parts), width), -1, np.int32)
    for i, (ids, first, pages) in enumerate(parts):
        tokens += list(ids)
        positions += range(first, first + len(ids))
        starts.append(len(tokens))
        tables[i, : len(pages)] = pages
    as_int = lambda x: np.asarray(x, np.int32)  # noqa: E731
    return Batch(as_int(tokens), as_int(positions), as_int(starts), tables, as_int(rows))


def run_all(device: CpuDevice, tokens: Sequence[int], pages: Sequence[int], chunk: int | None = None) -> np.ndarray:
    """Logits of every token of one sequence, computed `chunk` rows at a time."""
    step = chunk or len(tokens)
    out = []
    for at in range(0, len(tokens), step):
        part = tokens[at : at + step]
        out.append(device.run(batch([(part, at, pages)], range(len(part)))).copy())
    return np.concatenate(out)


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square of the difference of log-probabilities, as a share of their spread."""
    a, b = log_softmax(a), log_softmax(b)
    return float(np.sqrt(np.mean((a - b) ** 2)) / b.std())


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
