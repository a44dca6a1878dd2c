"""Weights on their way into the native core, packed by threads of the core while Python does something else.

Law: what the file holds is packed in the order of its weights, which a checkpoint gives as they lie in its files, so
that a slow disk reads on and on. Of a mapped file, pages leave memory as soon as they are
packed; of weights that had to be copied, at most MOST_COPIED bytes wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pellucid import _core
from pellucid.config import EngineConfig
from pellucid.errors import MemoryPlanError
from pellucid.formats import FORMATS, Weight
from pellucid.kv.store import KVGeometry
from pellucid.models.spec import is_matrix

MOST_COPIED = 64 << 20


class Shape(Protocol):
    """What the device needs to know of a model beside its graph (a ModelSpec has it)."""

    @property
    def vocab(self) -> int:
        """Tokens of the vocabulary."""
        ...

    @property
    def context(self) -> int:
        """Longest sequence, in tokens."""
        ...

    @property
    def n_heads(self) -> int:
        """Query heads."""
        ...

    @property
    def n_kv_heads(self) -> int:
        """KV heads."""
        ...

    @property
    def d_head(self) -> int:
        """Values of a head."""
        ...

    @property
    def n_layers(self) -> int:
        """Layers."""
        ...


class WeightSource(Protocol):
    """Where weights come from (a Checkpoint has it)."""

    @property
    def spec(self) -> Shape:
        """Sizes of the model."""
        ...

    def weights(self) -> Iterator[Weight]:
        """Every weight, in canonical names, as they lie in the files."""
        ...

    def mapped(self, weight: Weight) -> bool:
        """Whether the weight's data is a view of a mapped file, read again when its pages are dropped."""
        ...

    def release(self, weight: Weight) -> None:
        """Let go of the memory behind a weight."""
        ...


def room_for(weight: Weight) -> _core.Matrix:
    """The core's matrix, not yet packed, of a weight that multiplies; (experts, rows, columns) are one of many."""
    format = weight.format if weight.format.native else FORMATS["f32"]
    rows, cols = weight.shape[-2:]
    return _core.Matrix(format.name, rows, cols, count=prod(weight.shape[:-2]))


class Loading:
    """Begins to pack the weights of a source; `finish` waits for them. Use as a context manager: it ends early then.

    Raises MemoryPlanError: the weights do not fit this machine.
    """

    config: EngineConfig
    """Resolved for the source's model."""
    matrices: dict[str, _core.Matrix]
    """By canonical name; packed once `finish` has returned."""
    vectors: dict[str, NDArray[np.float32]]

    def __init__(
        self, source: WeightSource, config: EngineConfig, progress: Callable[[int], None] | None = None
    ) -> None:
        """`config` as the user gave it; what is open is resolved here. `progress` is called, from this thread, with the
        number of bytes that were packed since it was last."""
        shape = source.spec
        geometry = KVGeometry(config.kv, shape.n_layers, config.page_size, shape.n_kv_heads, shape.d_head)
        self.source = source
        self.config = config.resolve(model_context=shape.context, bytes_per_page=geometry.bytes_per_page)
        self.matrices, self.vectors = {}, {}
        self._packing: _core.Packing | None = _core.Packing(self.config.threads or 1)
        self._vector_bytes = 0
        self._progress, self._told = progress, 0
        try:
            self._begin(self._packing)
        except BaseException:
            self._packing = None
            raise

    def _begin(self, packing: _core.Packing) -> None:
        for weight in self.source.weights():
            if not is_matrix(weight.name):
                self.vectors[weight.name] = weight.to_float32()
                self._vector_bytes += weight.data.nbytes
                self.source.release(weight)
            else:
                self._pack(weight, packing)

    def _pack(self, weight: Weight, packing: _core.Packing) -> None:
        try:
            held = weight
            if not weight.format.native:
                held = Weight.from_float32(weight.name, weight.to_float32(), FORMATS["f32"])
            matrix = room_for(weight)
        except MemoryError as e:
            raise MemoryPlanError(f"no memory for {weight.name}: the weights do not fit this machine") from e
        mapped = held is weight and self.source.mapped(weight)
        packing.add(matrix, np.ascontiguousarray(held.data), mapped)
        if not mapped:
            self.source.release(weight)
            while packing.unmapped_bytes_left > MOST_COPIED:
                packing.wait(0.01)
                self._tell(packing)
        self.matrices[weight.name] = matrix

    def finish(self) -> None:
        """Wait until all is packed."""
        packing = self._packing
        while packing is not None:
            done = packing.wait(0.1)  # Ctrl-C is heard between
            self._tell(packing)
            if done:
                packing = self._packing = None

    def _tell(self, packing: _core.Packing) -> None:
        if self._progress is not None:
            now = packing.bytes_done + self._vector_bytes
            self._progress(now - self._told)
            self._told = now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._packing = None
