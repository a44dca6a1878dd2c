"""A strict reader of GGUF, versions 2 and 3, whole or split.

Law: every count, length, offset and product is checked against the file before it is used (Python integers do not
wrap), and what is built from the header is bounded by the file's size, so that no file makes us crash, hang or take
more than twice its size and 64 MiB. Nothing here knows what a key means, but `general.alignment` and `split.*`.
Source: ggml's docs/gguf.md.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pellucid.checkpoint.fields import Fields
from pellucid.checkpoint.mapped import MappedFile, Stored, shown
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.formats import FORMATS

MAGIC = b"GGUF"
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_DTYPES = {kind: np.dtype(code) for kind, code in _NUMBERS.items()}
_BY_TYPE = {f.ggml_type: f for f in FORMATS.values() if f.ggml_type is not None}
_OTHER_TYPES = {
    9: "Q8_1",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    40: "NVFP4",
    41: "Q1_0",
}
"""ggml's other types, so that an error can name them."""

_MAX_KEYS, _MAX_TENSORS, _MAX_NAME = 1 << 14, 1 << 14, 1 << 16
_MAX_TENSOR_NAME, _MAX_DIMS = 255, 4
_BLOCK = 4096
"""Strings of an array that are taken together."""


@dataclass(frozen=True)
class GGUF:
    """What a GGUF model says: key-values and tensors, from all its files."""

    files: list[MappedFile]
    metadata: dict[str, object]
    """int, float, bool, str, list[str] or a NumPy array by key; of the first file."""
    tensors: dict[str, Stored]


class _Header:
    """A cursor over the header of one file."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.pos = 0
        self.strings_left = (1 << 18) + file.size // 64
        self.text_left = (8 << 20) + file.size // 8

    def fault(self, problem: str, at: int | None = None) -> ModelFileError:
        return ModelFileError(f"{self.file.name}: at byte {self.pos if at is None else at}: {problem}")

    def need(self, nbytes: int, what: str) -> None:
        if nbytes > self.file.size - self.pos:
            raise self.fault(f"{what} takes {nbytes} bytes, but the file ends at {self.file.size} (cut off?)")

    def number(self, kind: int, what: str) -> int | float | bool:
        dtype = _DTYPES[kind]
        self.need(dtype.itemsize, what)
        value = np.frombuffer(self.file.map, dtype, 1, self.pos)[0].item()
        if kind == _BOOL:
            if value > 1:
                raise self.fault(f"{what} is {value}, not 0 or 1 for a bool")
            value = bool(value)
        self.pos += dtype.itemsize
        return value

    def u32(self, what: str) -> int:
        return int(self.number(4, what))

    def u64(self, what: str) -> int:
        return int(self.number(10, what))

    def string(self, what: str, limit: int | None = None) -> str:
        start = self.pos
        size = self.u64(f"the length of {what}")
        if limit is not None and size > limit:
            raise self.fault(f"{what} is {size} bytes long; at most {limit} are allowed", start)
        self.need(size, what)
        self.take_text(size, what)
        try:
            text = self.file.map[self.pos : self.pos + size].decode()
        except UnicodeDecodeError as e:
            raise self.fault(f"{what} is not UTF-8", self.pos + e.start) from None
        self.pos += size
        return text

    def take_text(self, size: int, what: str) -> None:
        self.text_left -= size
        if self.text_left < 0:
            raise self.fault(f"{what}: more text in the header than a file of {self.file.size} bytes may hold")

    def value(self, what: str) -> object:
        kind = self.u32(f"the type of {what}")
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self.array(what)
        if kind not in _DTYPES:
            raise self.fault(f"{what} has the unknown value type {kind}", self.pos - 4)
        return self.number(kind, what)

    def array(self, what: str) -> list[str] | NDArray[Any]:
        start = self.pos
        kind = self.u32(f"the element type of {what}")
        count = self.u64(f"the length of {what}")
        if kind == _ARRAY:
            raise self.fault(f"{what} is an array of arrays, which no model needs", start)
        if kind == _STRING:
            return self.string_array(count, what)
        if kind not in _DTYPES:
            raise self.fault(f"{what} has the unknown element type {kind}", start)
        dtype = _DTYPES[kind]
        self.need(count * dtype.itemsize, f"{what} ({count} elements)")
        values = np.frombuffer(self.file.map, dtype, count, self.pos).copy()
        if kind == _BOOL and (values > 1).any():
            raise self.fault(f"{what} holds a bool that is not 0 or 1")
        self.pos += count * dtype.itemsize
        return values.astype(np.bool_) if kind == _BOOL else values

    def string_array(self, count: int, what: str) -> list[str]:
        """`count` strings, in blocks: lengths are walked, the text of a block is decoded and split at once."""
        self.need(count * 8, f"{what} ({count} strings)")
        self.strings_left -= count
        if self.strings_left < 0:
            raise self.fault(f"{what}: {count} strings are more than a file of {self.file.size} bytes may hold")
        out: list[str] = []
        while len(out) < count:
            start = self.pos
            places = self.walk(min(_BLOCK, count - len(out)), f"{what}, entry {len(out)}")
            self.take_text(self.pos - start - 8 * len(places), what)
            out += self.split(start, places, what, len(out))
        return out

    def walk(self, count: int, what: str) -> NDArray[np.int64]:
        """Pass over `count` strings; the places of their lengths, from here. First as if all were shorter than 256."""
        data, at = self.file.map, self.pos
        places: list[int] = []
        try:
            for _ in range(count):
                places.append(at)
                at += 8 + data[at]
        except IndexError:
            at = self.file.size + 1
        starts = np.array(places, np.int64)
        if at <= self.file.size:
            raw = self.file.view(self.pos, at - self.pos)
            if not raw[(starts - self.pos)[:, None] + np.arange(1, 8)].any():
                self.pos = at
                return starts - starts[0]
        return self.walk_long(count, what)

    def walk_long(self, count: int, what: str) -> NDArray[np.int64]:
        first, places = self.pos, np.empty(count, np.int64)
        for i in range(count):
            places[i] = self.pos - first
            self.need(8, f"the length of a string of {what} on")
            (size,) = struct.unpack_from("<Q", self.file.map, self.pos)
            self.pos += 8
            self.need(size, f"a string of {what} on")
            self.pos += size
        return places

    def split(self, start: int, places: NDArray[np.int64], what: str, index: int) -> list[str]:
        """The strings of one block; each length's last byte becomes a separator that the text does not hold."""
        raw = self.file.view(start, self.pos - start)
        keep = np.ones(len(raw), np.bool_)
        keep[(places[:, None] + np.arange(7)).ravel()] = False
        block = raw.copy()
        for separator in (0, 1, 31):
            block[places + 7] = separator
            text = block[keep].tobytes()
            if text.count(separator) == len(places):
                try:
                    return text[1:].decode().split(chr(separator))
                except UnicodeDecodeError:
                    break
        ends = np.append(places[1:], len(raw))
        out: list[str] = []
        for i, (a, b) in enumerate(zip(places.tolist(), ends.tolist(), strict=True)):
            try:
                out.append(raw[a + 8 : b].tobytes().decode())
            except UnicodeDecodeError:
                raise self.fault(f"{what}, entry {index + i} is not UTF-8", start + a) from None
        return out


def _read_file(path: Path) -> tuple[MappedFile, dict[str, object], dict[str, Stored]]:
    file = MappedFile(path)
    head = _Header(file)
    if file.map[:4] != MAGIC:
        raise head.fault(f"begins with {shown(file.map[:4])}, not GGUF")
    head.pos = 4
    version = head.u32("the version")
    if version and not version & 0xFFFF:
        raise UnsupportedModelError(f"{file.name}: a big-endian GGUF file; convert it to little-endian")
    if version not in (2, 3):
        raise UnsupportedModelError(f"{file.name}: GGUF version {version}; versions 2 and 3 are supported")
    n_tensors, n_keys = head.u64("the number of tensors"), head.u64("the number of keys")
    for count, least, most, what in ((n_tensors, 33, _MAX_TENSORS, "tensors"), (n_keys, 14, _MAX_KEYS, "keys")):
        if count > most:
            raise head.fault(f"{count} {what} are declared; at most {most} are allowed", 8)
        head.need(count * least, f"the table of {count} {what}")
    metadata: dict[str, object] = {}
    for i in range(n_keys):
        key = head.string(f"key {i}", _MAX_NAME)
        if key in metadata:
            raise head.fault(f"the key {shown(key)} occurs twice")
        metadata[key] = head.value(shown(key))
    tensors = _read_tensors(head, n_tensors, _alignment(file, metadata))
    file.release(0, head.pos)  # all of it is copied
    return file, metadata, tensors


def _alignment(file: MappedFile, metadata: dict[str, object]) -> int:
    key = "general.alignment"
    fields = Fields(file.name, metadata)
    align = fields.integer(key, 1, 1 << 24, 32)
    if align & (align - 1):
        raise fields.fault(key, f"is {align}, not a power of two")
    return align


def _read_tensors(head: _Header, count: int, align: int) -> dict[str, Stored]:
    infos: dict[str, tuple[tuple[int, ...], int, int, int]] = {}
    for i in range(count):
        at = head.pos
        name = head.string(f"the name of tensor {i}", _MAX_TENSOR_NAME)
        if name in infos:
            raise head.fault(f"the tensor {shown(name)} occurs twice", at)
        n_dims = head.u32(f"the number of dimensions of {shown(name)}")
        if not 1 <= n_dims <= _MAX_DIMS:
            raise head.fault(f"the tensor {shown(name)} has {n_dims} dimensions; 1 to {_MAX_DIMS} are allowed", at)
        dims = tuple(head.u64(f"a dimension of {shown(name)}") for _ in range(n_dims))
        kind = head.u32(f"the type of {shown(name)}")
        infos[name] = dims[::-1], kind, head.u64(f"the offset of {shown(name)}"), at
    base = -(-head.pos // align) * align
    tensors: dict[str, Stored] = {}
    for name, (shape, kind, offset, at) in infos.items():
        tensors[name] = _stored(head, name, shape, kind, offset, base, align, at)
    _check_order(head, sorted(tensors.values(), key=lambda t: t.offset), base, align)
    return tensors


def _check_order(head: _Header, tensors: list[Stored], base: int, align: int) -> None:
    """Tensors lie one behind the other, padded, and fill the file; else a table that lost an entry shifts them all."""
    name = head.file.name
    at, last = base, None
    for t in tensors:
        if last is not None and t.offset < last.offset + last.nbytes:
            raise ModelFileError(
                f"{name}: the tensors {shown(last.name)} and {shown(t.name)} overlap at byte {t.offset}"
            )
        if t.offset != at:
            raise ModelFileError(
                f"{name}: {t.offset - at} bytes before the tensor {shown(t.name)} at {at} belong to none"
            )
        at, last = base + -(-(t.offset + t.nbytes - base) // align) * align, t
    if head.file.size > at:
        raise ModelFileError(f"{name}: {head.file.size - at} bytes behind the last tensor at {at} belong to none")


def _stored(
    head: _Header, name: str, shape: tuple[int, ...], kind: int, offset: int, base: int, align: int, at: int
) -> Stored:
    what = f"the tensor {shown(name)}"
    if 0 in shape:
        raise head.fault(f"{what} has a dimension of 0", at)
    if prod(shape) >= 1 << 63:
        raise head.fault(f"{what} has dimensions {list(shape)}, whose product overflows", at)
    fmt = _BY_TYPE.get(kind)
    if fmt is None:
        if kind in _OTHER_TYPES:
            raise UnsupportedModelError(
                f"{head.file.name}: {what} is stored as {_OTHER_TYPES[kind]}; supported are "
                + ", ".join(f.upper() for f in FORMATS)
            )
        raise head.fault(f"{what} has the unknown type {kind}", at)
    if shape[-1] % fmt.block:
        raise head.fault(f"{what} has rows of {shape[-1]}, not whole {fmt.name.upper()} blocks of {fmt.block}", at)
    nbytes = prod(shape[:-1]) * fmt.row_bytes(shape[-1])
    if offset % align:
        raise head.fault(f"{what} lies at offset {offset}, which is not a multiple of the alignment {align}", at)
    if base + offset + nbytes > head.file.size:
        raise head.fault(
            f"{what} ends at byte {base + offset + nbytes}, but the file ends at {head.file.size} (cut off?)", at
        )
    return Stored(name, shape, fmt, head.file, base + offset, nbytes)


_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def read_gguf(path: Path) -> GGUF:
    """Read a GGUF model: `path` is its file, or the first file of a split one (…-00001-of-0000N.gguf).

    Raises ModelFileError (corrupt, cut off, a part missing) or UnsupportedModelError (version, byte order, a type).
    """
    file, metadata, tensors = _read_file(path)
    fields = Fields(file.name, metadata)
    count = fields.integer("split.count", 0, 99999, 0)
    files = [file]
    if count > 1:
        match = _SPLIT.fullmatch(path.name)
        if match is None or int(match[3]) != count:
            raise ModelFileError(
                f"{file.name}: one of {count} parts, but not named like …-00001-of-{count:05d}.gguf; "
                "restore the names of the parts"
            )
        names = [f"{match[1]}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
        if path.name != names[0]:
            raise ModelFileError(f"{file.name}: part {int(match[2])} of {count}; open the first, {names[0]}")
        missing = [n for n in names if not path.with_name(n).is_file()]
        if missing:
            raise ModelFileError(f"{file.name}: {len(missing)} of its {count} parts are missing: {missing[0]}")
        _check_part(fields, 0, count)
        for i, name in enumerate(names[1:], 1):
            part, part_metadata, part_tensors = _read_file(path.with_name(name))
            _check_part(Fields(part.name, part_metadata), i, count)
            for twice in tensors.keys() & part_tensors.keys():
                raise ModelFileError(f"{part.name}: the tensor {shown(twice)} occurs in an earlier part too")
            tensors |= part_tensors
            files.append(part)
    total = fields.integer("split.tensors.count", 0, 1 << 31, len(tensors))
    if total != len(tensors):
        raise fields.fault("split.tensors.count", f"is {total}, but there are {len(tensors)} tensors")
    return GGUF(files, metadata, tensors)


def _check_part(fields: Fields, no: int, count: int) -> None:
    if fields.integer("split.no", 0, 99999) != no:
        raise fields.fault("split.no", f"is {fields.integer('split.no', 0, 99999)}, not {no} as the file's name says")
    if fields.integer("split.count", 0, 99999) != count:
        raise fields.fault(
            "split.count", f"is {fields.integer('split.count', 0, 99999)}, not {count} as in the first part"
        )
