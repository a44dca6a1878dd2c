"""The memory a model will take, counted before any of it is loaded.

Law: nothing is estimated that the device itself can tell: the ledger is that of a real device, built over weights that
were given memory and never packed, so no page of it is touched. Only the program around it (interpreter, libraries,
tokenizer) is measured, in this very process.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pellucid import _core
from pellucid.config import EngineConfig, available_memory
from pellucid.devices.cpu import CpuDevice
from pellucid.devices.loading import Shape, WeightSource, room_for
from pellucid.errors import ConfigError, MemoryPlanError
from pellucid.graph.graph import Graph
from pellucid.kv.store import KVGeometry
from pellucid.models.spec import is_matrix

PARTS = {"embed": "embedding", "unembed": "unembedding", "attn": "attention", "mlp": "feed-forward"}
"""Piece of a canonical name → part of the model; what has none of them is a norm."""


HUGE_PAGE = 2 << 20
KV_NAMES = ("f16", "q8_0")
CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)


def part_of(weight: str) -> str:
    """The part of the model that a weight belongs to."""
    pieces = [] if weight.endswith("norm.w") else [piece for piece in weight.split(".") if piece in PARTS]
    return PARTS[pieces[-1]] if pieces else "norms"


@dataclass(frozen=True)
class Ledger:
    """Bytes by what they are for, when the cache is full and a step as large as it may be."""

    config: EngineConfig
    """Resolved."""
    weights: dict[str, int]
    """By part of the model, packed as the kernels read them."""
    padding: int
    """What huge pages add at the ends of the weights."""
    kv_per_page: int
    kv: int
    scratch: int
    """Of a step: activations of `token_budget` rows and of the threads."""
    logits: int
    """Of `max_seqs` rows."""
    program: int
    """Interpreter, libraries, tokenizer and tables: resident in this process now; 0 where that cannot be told."""

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.lines().values())

    def lines(self) -> dict[str, int]:
        """What `CpuDevice.memory` tells after the load, and the rest."""
        weights = sum(self.weights.values())
        return {
            "weights": weights,
            "padding": self.padding,
            "kv": self.kv,
            "scratch": self.scratch,
            "logits": self.logits,
            "program": self.program,
        }


@dataclass(frozen=True)
class Unloaded:
    """A device whose weights were never packed: it can tell its sizes, and must not run."""

    device: CpuDevice
    parts: dict[str, int]
    """Bytes of weights by part of the model."""
    config: EngineConfig
    """Resolved; the device itself has the fewest pages that it may have."""


def unloaded(source: WeightSource, graph: Graph, config: EngineConfig) -> Unloaded:
    """Build the device of `source` under `config` (as the user gave it) without its weights.

    Raises ConfigError as EngineConfig.resolve, MemoryPlanError if not even the addresses can be had.
    """
    shape = source.spec
    config = config.resolve(
        model_context=shape.context, bytes_per_page=_geometry(config.kv, shape, config.page_size).bytes_per_page
    )
    parts: Counter[str] = Counter()
    matrices: dict[str, _core.Matrix] = {}
    vectors: dict[str, NDArray[np.float32]] = {}
    for weight in source.weights():
        if is_matrix(weight.name):
            matrices[weight.name] = room_for(weight)
            nbytes = matrices[weight.name].nbytes
        else:
            vectors[weight.name] = weight.to_float32()
            nbytes = vectors[weight.name].nbytes
        parts[part_of(weight.name)] += nbytes
        source.release(weight)
    # The plan does not depend on how many pages there are; the least spare addresses.
    least = -(-(config.ctx or 0) // config.page_size)
    return Unloaded(CpuDevice(graph, shape, matrices, vectors, replace(config, kv_pages=least)), dict(parts), config)


def ledger_of(unloaded: Unloaded) -> Ledger:
    """Count what the device will take once it is loaded and in full use."""
    device, config = unloaded.device, unloaded.config
    per_page = device.geometry.bytes_per_page
    return Ledger(
        config=config,
        weights=unloaded.parts,
        padding=sum(padding(matrix.nbytes) for matrix in device.matrices.values()) if huge_pages() else 0,
        kv_per_page=per_page,
        kv=per_page * (config.kv_pages or 0),
        scratch=device.memory()["scratch"],
        logits=4 * device.vocab_size * config.max_seqs,
        program=resident(),
    )


def room(ledger: Ledger, shape: Shape, available: int) -> dict[str, dict[int, int]]:
    """Sequences of full length that fit into `available` bytes beside the weights: by KV format, then by context.

    Formats that the model's heads do not fit are left out.
    """
    config, fixed = ledger.config, ledger.total - ledger.kv
    contexts = sorted({min(n, shape.context) for n in (*CONTEXTS, config.ctx or 0)})
    fits: dict[str, dict[int, int]] = {}
    for name in KV_NAMES:
        try:
            page = _geometry(name, shape, config.page_size).bytes_per_page
        except ConfigError:
            continue
        fits[name] = {n: max(0, (available - fixed) // (-(-n // config.page_size) * page)) for n in contexts}
    return fits


def refusal(ledger: Ledger, shape: Shape, available: int) -> str:
    """One line for what takes more than `available` bytes: how much it takes, and what would fit instead."""
    need = f"{ledger.config.model} with these options takes {_gigabytes(ledger.total)} of {_gigabytes(available)}"
    for name, counts in room(ledger, shape, available).items():
        for n, count in sorted(counts.items(), reverse=True):
            if count:
                pages = min(count, 4) * -(-n // ledger.config.page_size)
                return f"{need}; this would fit: --kv {name} --ctx {n} --kv-pages {pages}"
    return f"{need}; not even one short sequence fits beside its weights: take a smaller model or quantization"


def require_room(source: WeightSource, graph: Graph, config: EngineConfig, *, file_bytes: int) -> None:
    """Raise MemoryPlanError, which names what would fit, if the machine has no room for `config` as the user gave it.

    Counted in full only where it may be tight: packed, a file takes at most twice its size (bfloat16 as float32).
    """
    shape, available = source.spec, available_memory()
    page = _geometry(config.kv, shape, config.page_size).bytes_per_page
    kv = page * (config.resolve(model_context=shape.context, bytes_per_page=page).kv_pages or 0)
    if 2 * (2 * file_bytes + kv) < available:
        return
    ledger = ledger_of(unloaded(source, graph, config))
    ledger = replace(ledger, program=0)  # what this process holds already is not in `available`
    if ledger.total > available:
        raise MemoryPlanError(refusal(ledger, shape, available))


def _geometry(kv: str, shape: Shape, page_size: int) -> KVGeometry:
    return KVGeometry(kv, shape.n_layers, page_size, shape.n_kv_heads, shape.d_head)


def _gigabytes(n: int) -> str:
    return f"{n / 1e9:.2f} GB"


def padding(nbytes: int) -> int:
    """Bytes by which a buffer of the core grows in huge pages (native/memory.h): from 2 MiB on it has whole ones."""
    return -nbytes % HUGE_PAGE if nbytes >= HUGE_PAGE else 0


def huge_pages() -> bool:
    """Whether the system backs memory by huge pages where it is asked to."""
    try:
        return "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    except OSError:
        return False


def resident() -> int:
    """Bytes of this process that are in memory now; 0 where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return 0
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:")), 0)
