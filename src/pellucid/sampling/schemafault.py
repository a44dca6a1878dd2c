"""Where in a JSON schema the fault is for which no grammar can be made of it.

Law: blamed is the innermost schema that fails by itself for the same reason, found in a bounded number of looks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

MOST_LOOKS = 64
_NAMED = ("$defs", "definitions", "properties", "patternProperties")
_LISTED = ("prefixItems", "anyOf", "oneOf", "allOf", "items")
_ALONE = ("items", "additionalProperties", "not")


def place_of(schema: Mapping[str, Any], reason: str, fault: Callable[[Mapping[str, Any]], str]) -> str:
    """Return the place within a schema, such as `.properties.city.items`; "": the schema itself.

    Args:
        schema: it fails.
        reason: for which it does.
        fault: tells why a schema fails; "": it does not.
    """
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    at, looks = "", 0
    inner: Mapping[str, Any] | None = schema
    while inner is not None:
        schema, inner = inner, None
        for place, child in _children(schema):
            looks += 1
            if looks > MOST_LOOKS:
                return at
            if fault({**shared, **child}) == reason:
                at, inner = at + place, child
                break
    return at


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the schemas right inside a schema, each with its place."""
    for key in _NAMED:
        if isinstance(named := schema.get(key), dict):
            for name, child in cast("dict[str, Any]", named).items():
                if isinstance(child, dict):
                    yield f".{key}{_step(name)}", cast("dict[str, Any]", child)
    for key in _LISTED:
        if isinstance(listed := schema.get(key), list):
            for i, child in enumerate(cast("list[Any]", listed)):
                if isinstance(child, dict):
                    yield f".{key}[{i}]", cast("dict[str, Any]", child)
    for key in _ALONE:
        if isinstance(child := schema.get(key), dict):
            yield f".{key}", cast("dict[str, Any]", child)


def _step(name: str) -> str:
    return f".{name}" if re.fullmatch(r"[A-Za-z_$][\w$-]{0,63}", name, re.ASCII) else f"[{name[:64]!r}]"
