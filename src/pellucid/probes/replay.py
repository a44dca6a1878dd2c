"""Replay: exact token ids run again, on a device of their own, as one clean forward in chunks.

Law: the weights are the served ones and nothing else is shared: the served request's pages, threads and plan are never
touched. What a chunk needs is counted before it is allocated, against the budget. By batch invariance the bits are
those that were served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pellucid.devices.base import Batch, Tap
from pellucid.devices.cpu import CpuDevice
from pellucid.devices.tapped import TappedPlan
from pellucid.errors import ContextLengthError, MemoryPlanError, RequestError
from pellucid.graph.patch import tail
from pellucid.kv.store import unpack_key_groups, unpack_tokens
from pellucid.probes.anatomy import Anatomy

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Hook = Callable[[F32, I32], None]
"""Called on a fork with (rows, *shape) of a value, which it may write to, and the positions of the rows."""

CHUNKS = (512, 256, 128, 64, 32, 16)
"""Rows of a chunk, the most that the budget allows."""
DEFAULT_BUDGET = 512 << 20
HEAD_ROOM = 16 << 20
"""Bytes kept for the interpreter's own small things."""

TAPPED_PLANS, PLANS = 2, 3.5
"""Plans with taps that are kept; and what these and the tail's take of a plain plan's memory: taps make one larger."""


def budget_bytes(budget: int | str | None) -> int:
    """Bytes of "512MB", "2GiB" or a number. Raises RequestError."""
    if budget is None:
        return DEFAULT_BUDGET
    if isinstance(budget, int) and not isinstance(budget, bool):
        return budget
    text = str(budget).strip().upper().removesuffix("B")
    units = {"K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "": 1}
    number = text.rstrip("KMGI")
    try:
        return int(float(number) * units[text[len(number) :]])
    except (ValueError, KeyError, OverflowError):
        raise RequestError(f"budget={budget!r} is no size; give one like 512MB or 2GiB", param="budget") from None


@dataclass(frozen=True)
class Part:
    """What one chunk showed."""

    positions: I32
    """Of the rows that were watched, ascending."""
    computed: int
    """Positions 0 to this, not included, have K and V by now."""
    plan: TappedPlan
    seen: F32

    def of(self, tap: Tap | str) -> F32:
        """What a tap saw, (watched rows, *shape)."""
        return self.plan.of(self.seen, Tap(tap) if isinstance(tap, str) else tap)


class Replay:
    """One sequence, to be run as often as is asked. Not thread-safe."""

    def __init__(self, device: CpuDevice, tokens: Sequence[int], budget: int = DEFAULT_BUDGET) -> None:
        """Prepare.

        Raises:
            RequestError, ContextLengthError: the ids cannot be run.
            MemoryPlanError: not even the smallest chunk fits the budget.
        """
        n = len(tokens)
        if not n:
            raise RequestError("there is nothing to replay; give at least one token", param="prompt")
        if n > device.context:
            raise ContextLengthError(f"{n} tokens do not fit the context of {device.context}", param="prompt")
        if min(tokens) < 0 or max(tokens) >= device.vocab_size:
            raise RequestError(f"a token id is outside 0..{device.vocab_size - 1}", param="prompt")
        self.tokens = np.asarray(tokens, np.int32)
        self.budget = budget
        pages = max(2, -(-n // device.page_size))
        self._kv_bytes = pages * device.geometry.bytes_per_page
        row = device.lowered.arena_row_bytes
        fixed = device.memory()["scratch"] - row * (device.config.token_budget or 0)

        def needs(rows: int) -> int:
            return self._kv_bytes + int(PLANS * (fixed + rows * row))

        fits = [c for c in CHUNKS if needs(c) + HEAD_ROOM <= budget]
        if not fits:
            least = needs(CHUNKS[-1]) + HEAD_ROOM
            raise MemoryPlanError(
                f"{n} tokens of this model take at least {-(-least // 10**6)} MB to look into, more than the budget of "
                f"{budget // 10**6} MB; raise --budget, or give fewer tokens"
            )
        self.chunk = min(fits[0], max(16, -(-n // 16) * 16))
        self.nbytes = needs(self.chunk)
        """Memory that it keeps between looks: keys, values and plans; at most."""
        self.device = device.with_config(replace(device.config, kv_pages=pages, token_budget=self.chunk))
        self.anatomy = Anatomy.of(device.graph)
        self._pages = np.arange(pages, dtype=np.int32)[None]
        self._tail: tuple[TappedPlan, str] | None = None
        self._behind: frozenset[str] | None = None
        self.computed = 0
        """Leading positions whose K and V stand in the cache, as the last run over them left them."""
        self.clean = 0
        """Of these, the leading ones that no fork has touched."""

    @property
    def threads(self) -> int:
        """Threads that may be used beside the device's own."""
        return max(1, self.device.config.threads or 1)

    @property
    def spare(self) -> int:
        """Bytes of the budget that are left for results."""
        return max(1 << 20, self.budget - HEAD_ROOM - self.nbytes)

    def rows_of(self, nbytes: int) -> int:
        """Rows of so many bytes that a quarter of what is left of the budget holds; at least one."""
        return max(1, min(self.chunk, self.spare // 4 // max(1, nbytes)))

    def run(
        self,
        taps: Sequence[Tap | str],
        positions: Sequence[int] | None = None,
        *,
        hooks: Mapping[str, Hook] | None = None,
        start: int | None = None,
        stop: int | None = None,
    ) -> Iterator[Part]:
        """Run the tokens and yield, chunk by chunk, what the taps see.

        Args:
            taps: values, by name or as Tap.
            positions: rows that are watched; None: all.
            hooks: what is done to values on the way; they make this run a fork.
            start: first position to compute; those before keep what earlier runs left, forks too. None: with hooks 0,
                else the first that is watched or was not computed yet.
            stop: position to stop at, not included; None: the end.
        """
        n = len(self.tokens) if stop is None else stop
        if start is None:
            start = 0 if hooks or positions is None else min(self.clean, min(positions, default=n))
        if start > self.computed:
            raise RequestError(f"positions before {start} were not computed yet")
        named = [Tap(t) if isinstance(t, str) else t for t in taps]
        plan = self.device.plan(named, tuple(hooks or ()), TAPPED_PLANS)
        watched = None if positions is None else np.unique(np.asarray(positions, np.int32))
        step = min(self.chunk, max(16, self.spare // 4 // max(1, 4 * plan.width))) if taps else self.chunk
        if hooks:
            self.clean = min(self.clean, start)
        for at in range(start, n, step):
            rows = np.arange(at, min(n, at + step), dtype=np.int32)
            chosen = rows if watched is None else watched[(watched >= rows[0]) & (watched <= rows[-1])]
            end = int(rows[-1]) + 1
            batch = self._batch(self.tokens[rows], rows, np.empty(0, np.int32))
            within = {name: _at(hook, rows) for name, hook in (hooks or {}).items()}
            _, seen = plan.run(batch, (chosen - rows[0]).astype(np.int32), within)
            self.computed = max(self.computed, end)
            if not hooks and self.clean >= at:
                self.clean = max(self.clean, end)
            yield Part(chosen, end, plan, seen)

    def _batch(self, tokens: I32, positions: I32, wanted: I32) -> Batch:
        return Batch(tokens, positions, np.array([0, len(tokens)], np.int32), self._pages, wanted)

    def unembed(self, resid: F32, hook: Hook | None = None) -> Iterator[tuple[int, F32]]:
        """Logits of vectors (rows, d_model) of the residual stream, read as the last layer's: (first row, logits).

        The logits are valid until the next ones. By the served model's own ops: of the last layer they are its bits.
        """
        if self._tail is None:
            self._tail = self.device.tail()
        plan, name = self._tail
        step = min(self.rows_of(8 * self.device.vocab_size), len(self._pages[0]) * self.device.page_size)
        for at in range(0, len(resid), step):
            part = resid[at : at + step]
            rows = np.arange(len(part), dtype=np.int32)

            def put(x: F32, part: F32 = part) -> None:
                x[:] = part

            logits, _ = plan.run(self._batch(np.zeros(len(part), np.int32), rows, rows), rows[:0], {name: put})
            yield at, logits

    @property
    def behind(self) -> frozenset[str]:
        """Values that exist only for rows whose logits are wanted."""
        if self._behind is None:
            graph, name = tail(self.device.graph)
            made = {value.name for value in graph.values()}
            self._behind = frozenset(made & set(self.anatomy.names)) - {name}
        return self._behind

    def tail_values(self, resid: F32, names: Sequence[str]) -> Iterator[tuple[int, dict[str, F32]]]:
        """As `unembed`, the named values behind the last layer: (first row, name → (rows, *shape))."""
        plan, name = self.device.tail([Tap(n) for n in names])
        step = min(self.rows_of(16 * self.device.vocab_size), len(self._pages[0]) * self.device.page_size)
        for at in range(0, len(resid), step):
            part = resid[at : at + step]
            rows = np.arange(len(part), dtype=np.int32)

            def put(x: F32, part: F32 = part) -> None:
                x[:] = part

            _, seen = plan.run(self._batch(np.zeros(len(part), np.int32), rows, rows), rows, {name: put})
            yield at, {n: plan.of(seen, Tap(n)) for n in names}

    def keys(self, layer: int, kv_head: int, stop: int | None = None) -> tuple[F32, F32]:
        """K and V of one KV head at positions 0 to `stop`, each (stop, d_head), as the cache holds them."""
        n = self.computed if stop is None else stop
        pages = self.device.kv.layer(layer)[: -(-n // self.device.page_size)]
        k, v = unpack_tokens(pages, self.device.geometry, kv_head)
        return k[:n], v[:n]

    def key_groups(self, layer: int, kv_head: int, stop: int) -> F32:
        """K of one KV head at positions 0 to `stop`, as the cache holds it: (groups, d_head, 16)."""
        pages = self.device.kv.layer(layer)[: -(-stop // self.device.page_size)]
        return unpack_key_groups(pages, self.device.geometry, kv_head)

    @property
    def previous(self) -> F32:
        """The token before each position, as numbers, up to one position more than there is room for."""
        room = self._pages.size * self.device.page_size
        out = np.full(room + 1, -1, np.float32)
        out[1 : len(self.tokens) + 1] = self.tokens
        return out

    def sinks(self, layer: int) -> F32 | None:
        """The sink of each head of a layer, where there are any."""
        name = self.anatomy.layers[layer].sinks
        return None if name is None else self.device.vectors[name]


def _at(hook: Hook, rows: I32) -> Callable[[F32], None]:
    return lambda x: hook(x, rows)
