"""What was seen, in JSON's own types."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np


def plain(value: object) -> Any:
    """The value in JSON's own types: NumPy's numbers as numbers, infinities and NaN as null, bytes as text."""
    if isinstance(value, np.ndarray):
        return plain(cast("object", value.tolist()))
    if isinstance(value, np.generic):
        return plain(cast("object", value.item()))
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in cast("dict[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in cast("list[object]", value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    return value
