"""The CPU device: loads a checkpoint's weights into the native core, builds its plan, runs steps.

Law: everything is decided at load. `run` checks nothing that the core checks, and is one native call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pellucid import _core
from pellucid.config import EngineConfig
from pellucid.devices.affinity import own_processors
from pellucid.devices.base import Batch, Tap
from pellucid.devices.loading import Loading, Shape, WeightSource
from pellucid.devices.lower import QUANT_SUFFIX, LinearPart, Lowered, Record, Turn, lower
from pellucid.devices.tapped import TappedPlan
from pellucid.errors import ConfigError, EngineError, MemoryPlanError
from pellucid.graph.fuse import fuse
from pellucid.graph.graph import Graph
from pellucid.graph.hidden import HIDDEN, hidden_size, with_hidden
from pellucid.graph.ops import RopeSpec, Value
from pellucid.graph.patch import patched, tail
from pellucid.graph.reference import rope_angles
from pellucid.kv.store import KVGeometry

FLOAT_FORMATS = frozenset({"f32", "f16", "bf16"})
"""Formats whose products take float activations; all others take int8 rows."""
MOST_PLANS = 4
"""Tapped plans that are kept beside the plain one; each has activations of its own."""


class CpuDevice:
    """A model on the CPU. Build it with `load`."""

    def __init__(
        self,
        graph: Graph,
        shape: Shape,
        matrices: dict[str, _core.Matrix],
        vectors: dict[str, NDArray[np.float32]],
        config: EngineConfig,
    ) -> None:
        """Build the plan over loaded weights; `config` is resolved."""
        if config.threads is None or config.ctx is None or config.kv_pages is None:
            raise ConfigError("the configuration of a device must be resolved first")
        self.config = config
        self.matrices = matrices
        """The weights that multiply, as the core holds them, by canonical name."""
        self._source = (graph, shape, vectors)
        self.vocab_size = shape.vocab
        self.context = config.ctx
        self.page_size = config.page_size
        self.page_count = config.kv_pages
        self.max_rows = config.token_budget
        self.geometry = KVGeometry(config.kv, shape.n_layers, config.page_size, shape.n_kv_heads, shape.d_head)
        self.weight_bytes = sum(m.nbytes for m in matrices.values()) + sum(v.nbytes for v in vectors.values())
        try:
            self.kv = _core.KvStore(
                config.kv, shape.n_layers, config.kv_pages, config.page_size, shape.n_kv_heads, shape.d_head
            )
            self.pool = _core.Pool(config.threads, own_processors(config.threads) if config.pin else [])
            self.lowered = lower(fuse(graph), lambda name: matrices[name].format not in FLOAT_FORMATS)
            self._plan = _core.Plan(
                self.pool, self.kv, config.isa or "", shape.n_heads, shape.vocab, config.ctx, config.token_budget,
                self.lowered.arena_row_bytes,
            )  # fmt: skip
        except MemoryError as e:
            raise MemoryPlanError(
                f"no memory for a KV cache of {config.kv_pages} pages ({config.ctx} tokens a sequence); "
                "lower --ctx or --max-seqs, or use --kv q8_0"
            ) from e
        except ValueError as e:
            raise ConfigError(str(e)) from e
        _Builder(self._plan, self.lowered, matrices, vectors, shape.d_head, config.ctx).build()
        self._logits = np.empty((1, shape.vocab), np.float32)
        self._plans: dict[tuple[tuple[Tap, ...], tuple[str, ...]], TappedPlan] = {}

    @classmethod
    def load(
        cls,
        source: WeightSource,
        graph: Graph,
        config: EngineConfig,
        progress: Callable[[int], None] | None = None,
    ) -> CpuDevice:
        """Repack the weights of `source` and build the device.

        Args:
            source: weights in canonical names; each is released after it is repacked.
            graph: the model's graph, not fused.
            config: as the user gave it; what is open is resolved here.
            progress: called with the number of bytes done.
        """
        with Loading(source, config, progress) as loading:
            return cls.of(loading, graph)

    @classmethod
    def of(cls, loading: Loading, graph: Graph) -> CpuDevice:
        """Build the device of weights that are being loaded, once they are there."""
        loading.finish()
        return cls(graph, loading.source.spec, loading.matrices, loading.vectors, loading.config)

    def with_config(self, config: EngineConfig) -> CpuDevice:
        """A device of the same weights, which both share, under another configuration; it must be resolved."""
        graph, shape, vectors = self._source
        return CpuDevice(graph, shape, self.matrices, vectors, config)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Compute one step. Returns logits (wanted, vocab_size), valid until the next run."""
        logits = self._room(len(batch.logit_rows))
        try:
            self._plan.run(
                batch.tokens, batch.positions, batch.seq_starts, batch.page_tables, batch.logit_rows, self._logits
            )
        except ValueError as e:
            raise EngineError(str(e)) from e
        return logits

    @property
    def graph(self) -> Graph:
        """What is computed, not fused."""
        return self._source[0]

    @property
    def d_model(self) -> int:
        """Numbers of a hidden state. Raises RequestError: the graph has none."""
        return hidden_size(self.graph)

    @property
    def vectors(self) -> Mapping[str, NDArray[np.float32]]:
        """The weights that do not multiply: norms and biases, by canonical name."""
        return self._source[2]

    def plan(self, taps: Sequence[Tap], patches: Sequence[str] = (), most: int = MOST_PLANS) -> TappedPlan:
        """The plan that also shows what `taps` see, and stops where `patches` may be changed; kept by its set.

        most: plans that are kept, this one with them; each has memory of its own.

        Raises RequestError: the model has no such value, or it has fewer numbers than are asked for.
        """
        key = (tuple(sorted(set(taps), key=repr)), tuple(sorted(set(patches))))
        found = self._plans.pop(key, None)
        if found is None:
            while len(self._plans) >= most:
                del self._plans[next(iter(self._plans))]
            seen = any(tap.name == HIDDEN for tap in key[0])
            found = self._tapped(patched(with_hidden(self.graph) if seen else self.graph, key[1]), key[0])
        self._plans[key] = found
        return found

    def tail(self, taps: Sequence[Tap] = ()) -> tuple[TappedPlan, str]:
        """A plan of what follows the last layer, and the name of its patch: see graph.patch.tail."""
        graph, name = tail(self.graph)
        return self._tapped(graph, tuple(taps)), name

    def _tapped(self, graph: Graph, taps: tuple[Tap, ...]) -> TappedPlan:
        _, shape, vectors = self._source
        config, context = self.config, self.context
        fused = fuse(graph, keep={tap.name for tap in taps})
        lowered = lower(fused, lambda name: self.matrices[name].format not in FLOAT_FORMATS, taps)
        try:
            plan = _core.Plan(
                self.pool, self.kv, config.isa or "", shape.n_heads, shape.vocab, context, config.token_budget,
                lowered.arena_row_bytes,
            )  # fmt: skip
        except MemoryError as e:
            raise MemoryPlanError("no memory for the values that are looked at; look at fewer") from e
        builder = _Builder(plan, lowered, self.matrices, vectors, shape.d_head, context)
        builder.build()
        return TappedPlan(plan, lowered, builder.slots, builder.taps, shape.vocab)

    def profile(self, batch: Batch) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """As `run`, and what it took: (threads, records, 2) nanoseconds of each of `lowered.records` and of the wait
        for the other threads after it."""
        logits = self._room(len(batch.logit_rows))
        times = np.empty((self.pool.threads, len(self.lowered.records), 2), np.int64)
        try:
            self._plan.profile(
                batch.tokens,
                batch.positions,
                batch.seq_starts,
                batch.page_tables,
                batch.logit_rows,
                self._logits,
                times,
            )
        except ValueError as e:
            raise EngineError(str(e)) from e
        return logits, times

    def _room(self, wanted: int) -> NDArray[np.float32]:
        if wanted > len(self._logits):
            self._logits = np.empty((wanted, self.vocab_size), np.float32)
        return self._logits[:wanted]

    def memory(self) -> dict[str, int]:
        """Bytes by part: weights, the whole KV cache, scratch of the plan, logits of the largest step so far."""
        return {
            "weights": self.weight_bytes,
            "kv": self.kv.nbytes,
            "scratch": self._plan.scratch_bytes,
            "logits": self._logits.nbytes,
        }


class _Builder:
    """Hands the records to the native plan, once."""

    def __init__(
        self,
        plan: _core.Plan,
        lowered: Lowered,
        matrices: dict[str, _core.Matrix],
        vectors: dict[str, NDArray[np.float32]],
        d_head: int,
        context: int,
    ) -> None:
        self.plan = plan
        self.lowered = lowered
        self.matrices = matrices
        self.vectors = vectors
        self.d_head = d_head
        self.context = context
        self.slots: dict[str, int] = {lowered.result: _core.RESULT}
        self.constants: dict[str, int] = {}
        self.ropes: dict[RopeSpec, tuple[int, int]] = {}
        self.taps: dict[Tap, int] = {}
        for name, offset in lowered.offsets.items():
            self.slots[name] = plan.slot(offset, lowered.row_bytes[name])

    def build(self) -> None:
        for record in self.lowered.records:
            self._add(record)

    def _slot(self, value: Value | None) -> int:
        return _core.NONE if value is None else self.slots[value.name]

    def _constant(self, weight: str | None) -> int:
        if weight is None:
            return -1
        if weight not in self.constants:
            self.constants[weight] = self.plan.constant(self.vectors[weight].ravel())
        return self.constants[weight]

    def _rope(self, rope: RopeSpec) -> tuple[int, int]:
        if rope not in self.ropes:
            cos, sin = rope_angles(rope.at(self.context), np.arange(self.context))
            self.ropes[rope] = (self.plan.constant(cos.ravel()), self.plan.constant(sin.ravel()))
        return self.ropes[rope]

    def _part(self, part: LinearPart) -> tuple[int, _core.Matrix, int]:
        return self.slots[part.out.name], self.matrices[part.weight], self._constant(part.bias)

    def _step(self, r: Record) -> tuple[int, int, int, int, int, int, int, float, str, int]:
        """What the core's RowStep takes: kind, out, x, y, groups, n, weight, number, activation, quant."""
        if r.out is None:
            raise EngineError(f"plan: {r.describe()} makes nothing")
        reads = [self.slots[v.name] for v in (*r.reads, r.chosen) if v is not None]
        n = {"route": r.reads[0].size, "mix": r.out.size}.get(r.kind, r.out.size // r.groups)
        return (
            _core.STEP_KINDS.index(r.kind), self.slots[r.out.name], reads[0], reads[-1], r.groups, n,
            self._constant(r.weight), r.number, r.activation or "", self._slot(r.quant),
        )  # fmt: skip

    def _turn(self, turn: Turn) -> tuple[int, int, int, int, float, int, int, int, int]:
        """What the core's Turn takes: out, x, normed, weight, eps, heads, half, cos, sin."""
        normed = turn.normed or turn.out
        return (
            self.slots[turn.out.name], self.slots[turn.x.name], self.slots[normed.name], self._constant(turn.weight),
            turn.eps, turn.out.shape[0], turn.rope.dims // 2, *self._rope(turn.rope),
        )  # fmt: skip

    def _add(self, r: Record) -> None:
        plan, reads = self.plan, [self.slots[v.name] for v in r.reads]
        steps = [self._step(step) for step in r.steps]
        match r.kind:
            case "rows":
                plan.rows(steps, r.selected)
            case "linear":
                parts = [self._part(p) for p in r.parts]
                x = reads[0] if reads else _core.NONE
                plan.linear(
                    steps, x, self._slot(r.quant_in), parts, self._slot(r.residual), r.activation or "",
                    self._slot(r.quant), r.selected,
                )  # fmt: skip
            case "expert_linear":
                (part,), x = r.parts, reads[0] if reads else _core.NONE
                top, width = part.out.shape[0], self.matrices[part.weight].cols
                shared = (r.quant_in or r.reads[0]).size == width
                plan.expert_linear(
                    steps, x, self._slot(r.quant_in), self._slot(r.chosen), self._part(part), top, shared
                )  # fmt: skip
            case "experts" if r.out is not None:
                weights, *floats = reads
                scratch = {v.name: self.slots[v.name] for v in r.scratch}
                together = f"{r.parts[0].out.name}.sorted"
                post = [s for name, s in scratch.items() if not name.startswith(together)]
                plan.experts(
                    steps, floats[0] if floats else _core.NONE, self._slot(r.quant_in), self._slot(r.chosen), weights,
                    [self._part(p) for p in r.parts], r.activation or "", r.groups,
                    scratch.get(together, _core.NONE), scratch.get(together + QUANT_SUFFIX, _core.NONE),
                    post[0] if post else _core.NONE, self.slots[r.out.name],
                )  # fmt: skip
            case "rope_store_kv":
                plan.rope_store_kv([self._turn(turn) for turn in r.turns], reads[0], r.layer)
            case "store_kv":
                plan.store_kv(reads[0], reads[1], r.layer)
            case "embed" | "embed_position" if r.out is not None:
                table = self.matrices[r.weight or ""]
                plan.embed(self.slots[r.out.name], table, r.number, r.kind == "embed_position")
            case "rope" if r.out is not None and r.rope is not None:
                heads, width = r.out.shape
                plan.rope(self.slots[r.out.name], reads[0], heads, width, r.rope.dims // 2, *self._rope(r.rope))
            case "attention" if r.out is not None:
                heads = r.out.shape[0]
                plan.attention(
                    self.slots[r.out.name], reads[0], r.layer, heads, r.number, r.cap, r.window,
                    self._constant(r.weight),
                )  # fmt: skip
            case "patch" if r.out is not None:
                plan.patch(self.slots[r.out.name], reads[0], r.out.size, r.selected)
            case "tap" if r.tap is not None:
                self.taps[r.tap] = plan.tap(reads[0], r.reads[0].size, r.tap.form, r.tap.count, r.selected)
            case _:
                raise EngineError(f"plan: no native op {r.kind!r}")
