"""JSON of model folders, read under limits.

Law: depth and number of values are counted before anything is built, so that memory and time are bounded by the limits
and not by what the text would grow to. Duplicate keys, NaN and Infinity are refused.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn, cast

from pellucid.checkpoint.mapped import MappedFile, shown
from pellucid.errors import ModelFileError

_STRUCTURE = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL
)  # a string that never ends matches to the end


def extent(text: str, start: int, where: str, *, depth: int, values: int) -> int:
    """End of the JSON array or object that begins at `start`; refuses more than `depth` levels or `values` values."""
    level = count = 0
    for m in _STRUCTURE.finditer(text, start):
        c = text[m.start()]
        if c == '"':
            continue
        count += 1
        if count > values:
            raise ModelFileError(f"{where}: more than {values} values in its JSON")
        if c in "[{":
            level += 1
            if level > depth:
                raise ModelFileError(f"{where}: JSON nested more than {depth} levels deep")
        elif c in "]}":
            level -= 1
            if level <= 0:
                return m.end()
    raise ModelFileError(f"{where}: JSON that does not end (cut off?)")


def parse(data: bytes, where: str, *, depth: int = 16, values: int = 1 << 17) -> dict[str, object]:
    """The JSON object in `data` (UTF-8). Raises ModelFileError that begins with `where`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ModelFileError(f"{where}: not UTF-8 at byte {e.start}") from None
    if not text.lstrip().startswith("{"):
        raise ModelFileError(f"{where}: not a JSON object")
    extent(text, 0, where, depth=depth, values=values)

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(items)
        if len(table) < len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    raise ModelFileError(f"{where}: the key {shown(key)} occurs twice")
                seen.add(key)
        return table

    def constant(name: str) -> NoReturn:
        raise ModelFileError(f"{where}: {name} is not JSON")

    try:
        return cast("dict[str, object]", json.loads(text, object_pairs_hook=pairs, parse_constant=constant))
    except (ValueError, RecursionError) as e:
        raise ModelFileError(f"{where}: not JSON ({e})") from None


def read(file: MappedFile, *, limit: int = 4 << 20, values: int = 1 << 17) -> dict[str, object]:
    """The JSON object of a whole file of at most `limit` bytes."""
    if file.size > limit:
        raise ModelFileError(f"{file.name}: {file.size} bytes of JSON; at most {limit} are read")
    return parse(file.map[:], file.name, values=values)
