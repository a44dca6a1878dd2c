"""A strict reader of safetensors files and of their index.

Law: as the format's own reader demands (huggingface/safetensors, its README): a JSON header whose tensors lie one
behind the other and fill the file, to the byte. No name of a shard leaves its folder.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import cast

from pellucid.checkpoint import strict_json
from pellucid.checkpoint.fields import Fields
from pellucid.checkpoint.mapped import MappedFile, Stored, shown
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.formats import FORMATS
from pellucid.formats.numbers import U8

_MAX_HEADER = 4 << 20
_MAX_RANK = 8
_BY_DTYPE = {f.safetensors_dtype: f for f in FORMATS.values() if f.safetensors_dtype is not None}
_RAW = {"U8": U8}
"""What stands for parts of other formats."""
INDEX = "model.safetensors.index.json"


def read_safetensors(path: Path, skip: tuple[str, ...] = ()) -> tuple[MappedFile, dict[str, Stored]]:
    """The tensors of one file, but those whose names begin with one of `skip` (of which only the extent is checked)."""
    file = MappedFile(path)
    if file.size < 10:
        raise ModelFileError(f"{file.name}: {file.size} bytes are too few for a header (cut off?)")
    length = int.from_bytes(file.map[:8], "little")
    if length > file.size - 8:
        raise ModelFileError(
            f"{file.name}: at byte 0: a header of {length} bytes, but the file ends at {file.size} (cut off?)"
        )
    if length > _MAX_HEADER:
        raise ModelFileError(f"{file.name}: at byte 0: a header of {length} bytes; at most {_MAX_HEADER} are read")
    header = strict_json.parse(file.map[8 : 8 + length], f"{file.name}: header", depth=4)
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(v, str) for v in cast("dict[str, object]", notes).values()):
        raise ModelFileError(f"{file.name}: __metadata__ is not a table of strings")
    base, size = 8 + length, file.size - 8 - length
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, Stored] = {}
    for name, entry in header.items():
        what = f"{file.name}: the tensor {shown(name)}"
        dtype, shape, begin, end = _entry(what, entry, size)
        spans.append((begin, end, name))
        if name.startswith(skip):
            continue
        fmt = _BY_DTYPE.get(dtype) or _RAW.get(dtype)
        if fmt is None:
            raise UnsupportedModelError(f"{what} is stored as {shown(dtype)}; supported are {', '.join(_BY_DTYPE)}")
        if prod(shape) * fmt.nbytes != end - begin:
            raise ModelFileError(
                f"{what} takes {end - begin} bytes, but {dtype} {list(shape)} calls for {prod(shape) * fmt.nbytes}"
            )
        tensors[name] = Stored(name, shape, fmt, file, base + begin, end - begin)
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            problem = "overlaps the one before it" if begin < at else f"leaves a gap behind byte {at}"
            raise ModelFileError(f"{file.name}: the tensor {shown(name)} at byte {begin} {problem}")
        at = end
    if at != size:
        raise ModelFileError(f"{file.name}: {size - at} bytes behind the last tensor belong to none")
    return file, tensors


def _entry(what: str, entry: object, size: int) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict):
        raise ModelFileError(f"{what} has an entry that is not a table")
    table = cast("dict[str, object]", entry)
    if set(table) != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(f"{what} must have dtype, shape and data_offsets; it has {shown(sorted(table))}")
    dtype = table["dtype"]
    if not isinstance(dtype, str):
        raise ModelFileError(f"{what} has a dtype that is not a string")
    shape, offsets = _integers(what, "shape", table["shape"]), _integers(what, "data_offsets", table["data_offsets"])
    if not 1 <= len(shape) <= _MAX_RANK:
        raise ModelFileError(f"{what} has {len(shape)} dimensions; 1 to {_MAX_RANK} are allowed")
    if 0 in shape:
        raise ModelFileError(f"{what} has a dimension of 0")
    if prod(shape) >= 1 << 63:
        raise ModelFileError(f"{what} has a shape whose product overflows")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelFileError(f"{what} has data_offsets {shown(list(offsets))}, not a beginning and an end")
    if offsets[1] > size:
        raise ModelFileError(f"{what} ends at byte {shown(offsets[1])} of the data, which has {size} (cut off?)")
    return dtype, shape, offsets[0], offsets[1]


def _integers(what: str, key: str, value: object) -> tuple[int, ...]:
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    out: list[int] = []
    for item in items:
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            raise ModelFileError(f"{what} has {key} {shown(cast(object, value))}, not a list of integers from 0 on")
        out.append(item)
    return tuple(out)


def read_folder(folder: Path, skip: tuple[str, ...] = ()) -> tuple[list[MappedFile], dict[str, Stored]]:
    """The tensors of a Hugging Face folder: of model.safetensors, or of the shards that its index names."""
    index = folder / INDEX
    if index.exists():
        return _read_shards(folder, index, skip)
    found = sorted(p.name for p in folder.glob("*.safetensors"))
    if "model.safetensors" in found:
        found = ["model.safetensors"]
    if not found:
        pickled = sorted(p.name for p in folder.glob("*.bin"))
        if pickled:
            raise UnsupportedModelError(
                f"{folder}: weights only as {shown(pickled[0])}; pickle files can run code and are never read: "
                "convert them to safetensors"
            )
        raise ModelFileError(f"{folder}: no *.safetensors and no {INDEX}; the download is incomplete")
    if len(found) > 1:
        raise ModelFileError(
            f"{folder}: {len(found)} safetensors files but no {INDEX} to say which belong to the model"
        )
    file, tensors = read_safetensors(folder / found[0], skip)
    return [file], tensors


def _read_shards(folder: Path, index: Path, skip: tuple[str, ...]) -> tuple[list[MappedFile], dict[str, Stored]]:
    fields = Fields(INDEX, strict_json.read(MappedFile(index)))
    table = fields.table("weight_map")
    if table is None or not table.values:
        raise fields.fault("weight_map", "is missing or empty")
    owner: dict[str, str] = {}
    for name, shard in table.values.items():
        if (
            not isinstance(shard, str)
            or Path(shard).name != shard
            or "\\" in shard
            or not shard.endswith(".safetensors")
        ):
            raise ModelFileError(
                f"{INDEX}: weight_map: {shown(shard)} is not the name of a safetensors file in this folder"
            )
        owner[name] = shard
    shards = sorted(set(owner.values()))
    present = {p.name for p in folder.iterdir()}
    missing = [s for s in shards if s not in present]
    if missing:
        raise ModelFileError(f"{INDEX}: {len(missing)} of {len(shards)} shards are missing: {shown(missing[0])}")
    files: list[MappedFile] = []
    tensors: dict[str, Stored] = {}
    for shard in shards:
        file, part = read_safetensors(folder / shard, skip)
        files.append(file)
        for name, tensor in part.items():
            if owner.get(name) != shard:
                raise ModelFileError(f"{shard}: the tensor {shown(name)} is not this shard's by {INDEX}")
            tensors[name] = tensor
    lost = [n for n in owner if n not in tensors and not n.startswith(skip)]
    if lost:
        raise ModelFileError(f"{INDEX}: the tensor {shown(lost[0])} is not in {shown(owner[lost[0]])}")
    return files, tensors
