"""Fields: key-values of a file, read with their type and range checked.

Law: a value that decides a size or an id passes through here; an error names the file, the key, the value and what
was due.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from pellucid.checkpoint.mapped import shown
from pellucid.errors import ModelFileError, UnsupportedModelError


class Fields:
    """Typed look-ups in `values`; `where` names the file. An absent key, or None, gives the default or an error."""

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        self.where = where
        self.values = values

    def fault(self, key: str, problem: str) -> ModelFileError:
        """The error for `key`."""
        return ModelFileError(f"{self.where}: {key}: {problem}")

    def has(self, key: str) -> bool:
        """Whether `key` has a value."""
        return self.values.get(key) is not None

    def _wrong(self, key: str, value: object, due: str) -> ModelFileError:
        if isinstance(value, list | dict | np.ndarray):
            return self.fault(key, f"is {'a table' if isinstance(value, dict) else 'an array'}, not {due}")
        return self.fault(key, f"is {shown(value)} ({type(value).__name__}), not {due}")

    def _get(self, key: str, required: bool) -> object:
        value = self.values.get(key)
        if value is None and required:
            raise self.fault(key, "is missing")
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        """Integer in low..high, or None when absent."""
        return self.integer(key, low, high) if self.has(key) else None

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Integer in low..high. A per-layer array counts as its value when all layers agree."""
        value = self._get(key, default is None)
        if value is None:
            return cast(int, default)
        layers = _numbers(value, "iu")
        if layers is not None and layers.size:
            if (layers != layers[0]).any():
                raise UnsupportedModelError(
                    f"{self.where}: {key} differs from layer to layer ({layers.min()} to {layers.max()}); "
                    "Pellucid runs models whose layers share it"
                )
            value = int(layers[0])
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, value, "an integer")
        if not low <= value <= high:
            raise self.fault(key, f"is {shown(value)}, outside {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """Finite number in low..high."""
        value = self._get(key, default is None)
        if value is None:
            return cast(float, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(key, value, "a number")
        if not math.isfinite(value) or not low <= value <= high:
            raise self.fault(key, f"is {shown(value)}, outside {low:g} to {high:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, False)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default is None)
        if value is None:
            return cast(str, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def optional_text(self, key: str) -> str | None:
        """A string, or None when absent."""
        return self.text(key) if self.has(key) else None

    def strings(self, key: str) -> list[str]:
        """A list of strings."""
        value = self._get(key, True)
        items = cast("list[object]", value) if isinstance(value, list) else [None]
        if not all(isinstance(v, str) for v in items):
            raise self._wrong(key, cast(object, value), "an array of strings")
        return cast("list[str]", items)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """Finite number in low..high, or None when absent."""
        return self.number(key, low, high) if self.has(key) else None

    def numbers(self, key: str, low: float, high: float) -> tuple[float, ...]:
        """A list of finite numbers in low..high."""
        value = self._get(key, True)
        items = cast("list[object]", value) if isinstance(value, list) else [None]
        out: list[float] = []
        for item in items:
            if not isinstance(item, int | float) or isinstance(item, bool):
                raise self._wrong(key, cast(object, value), "an array of numbers")
            if not math.isfinite(item) or not low <= item <= high:
                raise self.fault(key, f"holds {shown(item)}, outside {low:g} to {high:g}")
            out.append(float(item))
        return tuple(out)

    def array(self, key: str, kinds: str) -> np.ndarray[Any, Any] | None:
        """A numeric array whose dtype's kind is in `kinds`, or None when absent."""
        value = self._get(key, False)
        if value is None:
            return None
        numbers = _numbers(value, kinds)
        if numbers is None:
            raise self._wrong(key, value, "an array of " + ("numbers" if "f" in kinds else "integers"))
        return numbers

    def table(self, key: str) -> Fields | None:
        """A nested table, or None when absent."""
        value = self._get(key, False)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "a table")
        return Fields(f"{self.where}: {key}", cast("dict[str, object]", value))


def _numbers(value: object, kinds: str) -> np.ndarray[Any, Any] | None:
    array = cast("np.ndarray[Any, np.dtype[Any]]", value) if isinstance(value, np.ndarray) else None
    return array if array is not None and array.dtype.kind in kinds else None
