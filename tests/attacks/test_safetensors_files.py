"""Hostile safetensors files and folders: each is refused with an error that names its fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import tinyfiles
from pellucid.checkpoint import open_checkpoint
from pellucid.errors import ModelFileError, PellucidError, UnsupportedModelError
from rawgguf import SPEC

NORM = "model.norm.weight"
INDEX = "model.safetensors.index.json"
HUGE = 1 << 60


def pack(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def parts() -> tuple[dict[str, dict[str, object]], bytes]:
    """Header and data of a sound file."""
    raw = tinyfiles.safetensors_bytes(tinyfiles.hf_tensors(SPEC, tinyfiles.weights(SPEC)))
    n = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


@dataclass(frozen=True)
class Attack:
    name: str
    make: Callable[[dict[str, dict[str, object]], bytes], object]
    """Changes the header, or returns the file's bytes."""
    match: str
    error: type[PellucidError] = ModelFileError


def entry(key: str, value: object) -> Callable[[dict[str, dict[str, object]], bytes], None]:
    def change(h: dict[str, dict[str, object]], d: bytes) -> None:
        h[NORM][key] = value

    return change


def moved(by: int, grow: int = 0) -> Callable[[dict[str, dict[str, object]], bytes], None]:
    def change(h: dict[str, dict[str, object]], d: bytes) -> None:
        begin, end = h[NORM]["data_offsets"]  # type: ignore[misc]
        h[NORM]["data_offsets"] = [begin + by, end + by + grow]

    return change


def twice(h: dict[str, dict[str, object]], d: bytes) -> bytes:
    text = json.dumps(h)
    return pack((text[:-1] + f', "{NORM}": ' + json.dumps(h[NORM]) + "}").encode(), d)


def replaced(old: str, new: str) -> Callable[[dict[str, dict[str, object]], bytes], bytes]:
    return lambda h, d: pack(json.dumps(h).replace(old, new, 1).encode(), d)


def added(h: dict[str, dict[str, object]], d: bytes) -> bytes:
    return pack(
        h | {"model.mystery": {"dtype": "F32", "shape": [1], "data_offsets": [len(d), len(d) + 4]}}, d + bytes(4)
    )


FILES = [
    Attack("empty", lambda h, d: b"", "the file is empty"),
    Attack("five-bytes", lambda h, d: b"\x02\0\0\0\0", "5 bytes are too few for a header"),
    Attack(
        "header-beyond-the-file", lambda h, d: (1 << 20).to_bytes(8, "little") + b"{}", "a header of 1048576 bytes, but"
    ),
    Attack("header-2^60", lambda h, d: HUGE.to_bytes(8, "little") + b"{}", f"a header of {HUGE} bytes"),
    Attack("header-2^64-1", lambda h, d: b"\xff" * 8 + b"{}", "a header of 18446744073709551615 bytes"),
    Attack("header-too-large", lambda h, d: pack(b"{" + b" " * (5 << 20) + b"}", d), "at most 4194304 are read"),
    Attack("header-empty", lambda h, d: pack(b"", d), "header: not a JSON object"),
    Attack("header-not-utf-8", lambda h, d: pack(b'{"\xff": 1}', d), "header: not UTF-8 at byte 2"),
    Attack("header-is-a-list", lambda h, d: pack([1], d), "header: not a JSON object"),
    Attack("header-cut-off", lambda h, d: pack(json.dumps(h).encode()[:-5], d), "JSON that does not end"),
    Attack("header-string-never-ends", lambda h, d: pack(b'{"' + b'\\"' * 100_000, d), "JSON that does not end"),
    Attack("header-deep", lambda h, d: pack(b'{"a":' + b"[" * 100_000, d), "nested more than 4 levels"),
    Attack("header-wide", lambda h, d: pack(b'{"a":[' + b"0," * 300_000 + b"0]}", d), "more than 131072 values"),
    Attack("header-trailing-comma", replaced("}}", "},}"), "header: not JSON"),
    Attack("header-with-nan", entry("shape", [float("nan")]), "header: NaN is not JSON"),
    Attack("header-integer-of-9999-digits", replaced('"shape": [12', '"shape": [' + "9" * 9999), "header: not JSON"),
    Attack("tensor-twice", twice, f"header: the key '{NORM}' occurs twice"),
    Attack("key-twice-in-an-entry", replaced('"dtype"', '"dtype": "F32", "dtype"'), "the key 'dtype' occurs twice"),
    Attack(
        "metadata-not-text",
        lambda h, d: pack(h | {"__metadata__": {"a": 1}}, d),
        "__metadata__ is not a table of strings",
    ),
    Attack("entry-not-a-table", lambda h, d: pack(h | {"x": 3}, d), "'x' has an entry that is not a table"),
    Attack("entry-of-other-keys", entry("note", 1), f"'{NORM}' must have dtype, shape and data_offsets"),
    Attack("dtype-not-text", entry("dtype", 3), "a dtype that is not a string"),
    Attack("dtype-unknown", entry("dtype", "F8_E4M3"), "stored as 'F8_E4M3'; supported are F32", UnsupportedModelError),
    Attack("shape-negative", entry("shape", [-32]), r"has shape \[-32\], not a list of integers from 0 on"),
    Attack("shape-of-floats", entry("shape", [32.0]), r"has shape \[32.0\]"),
    Attack("shape-of-bools", entry("shape", [True, 32]), "has shape"),
    Attack("shape-not-a-list", entry("shape", "32"), "has shape '32'"),
    Attack("shape-0", entry("shape", [32, 0]), "has a dimension of 0"),
    Attack("shape-empty", entry("shape", []), "has 0 dimensions"),
    Attack("shape-of-99-dimensions", entry("shape", [1] * 99), "has 99 dimensions"),
    Attack("shape-overflows", entry("shape", [HUGE, HUGE]), "whose product overflows"),
    Attack("shape-larger-than-its-bytes", entry("shape", [33]), r"takes 128 bytes, but F32 \[33\] calls for 132"),
    Attack("offsets-reversed", entry("data_offsets", [128, 0]), "not a beginning and an end"),
    Attack("offsets-three", entry("data_offsets", [0, 1, 2]), "not a beginning and an end"),
    Attack("offsets-negative", entry("data_offsets", [-4, 124]), "not a list of integers from 0 on"),
    Attack(
        "offsets-beyond-the-file",
        entry("data_offsets", [HUGE, HUGE + 128]),
        "ends at byte 1152921504606847104 of the data",
    ),
    Attack("offsets-of-4000-digits", entry("data_offsets", [0, 10**4000]), "ends at byte '1000.*of the data"),
    Attack("offsets-overlap", moved(-64), "at byte .* overlaps the one before it"),
    Attack("offsets-the-same", entry("data_offsets", [0, 128]), "overlaps the one before it"),
    Attack("data-cut-off", lambda h, d: pack(h, d[:-1]), r"cut off\?"),
    Attack("data-too-long", lambda h, d: pack(h, d + b"\0"), "1 bytes behind the last tensor belong to none"),
    Attack("gap", lambda h, d: pack({k: v for k, v in h.items() if k != NORM}, d), "leaves a gap behind byte"),
    Attack("tensor-left-over", added, "'model.mystery' is not part of a llama model", UnsupportedModelError),
]


@pytest.mark.parametrize("attack", FILES, ids=lambda a: a.name)
def test_file_is_refused_by_name(attack: Attack, tmp_path: Path) -> None:
    folder = tinyfiles.write_hf(tmp_path / "m", SPEC, tinyfiles.weights(SPEC))
    header, data = parts()
    made = attack.make(header, data)
    (folder / "model.safetensors").write_bytes(made if isinstance(made, bytes) else pack(header, data))
    refused(folder, attack.error, attack.match)


def refused(folder: Path, error: type[PellucidError], match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        open_checkpoint(folder)
    assert type(caught.value) is error
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def index(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        table = json.loads((folder / INDEX).read_text())
        made = change(table)
        (folder / INDEX).write_bytes(made if isinstance(made, bytes) else json.dumps(table).encode())

    return make


def mapped(name: str, shard: object) -> Callable[[Path], None]:
    return index(lambda t: t["weight_map"].update({name: shard}))  # type: ignore[attr-defined]


def file(name: str, content: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def config(key: str, value: object) -> Callable[[Path], object]:
    return lambda folder: (folder / "config.json").write_text(json.dumps(tinyfiles.hf_config(SPEC) | {key: value}))


def pickled(folder: Path) -> None:
    for p in [*folder.glob("*.safetensors"), folder / INDEX]:
        p.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


S1, S2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
FOLDERS: list[tuple[str, Callable[[Path], object], str, type[PellucidError]]] = [
    ("shard-missing", gone(S2), f"1 of 2 shards are missing: '{S2}'", ModelFileError),
    ("shard-up-a-folder", mapped(NORM, "../m.safetensors"), "'../m.safetensors' is not the name of a", ModelFileError),
    ("shard-absolute", mapped(NORM, "/etc/passwd"), "'/etc/passwd' is not the name of a", ModelFileError),
    (
        "shard-with-backslash",
        mapped(NORM, "..\\x.safetensors"),
        "is not the name of a safetensors file",
        ModelFileError,
    ),
    (
        "shard-of-another-kind",
        mapped(NORM, "pytorch_model.bin"),
        "is not the name of a safetensors file",
        ModelFileError,
    ),
    (
        "shard-name-too-long",
        mapped(NORM, "x" * 5000 + ".safetensors"),
        "1 of 3 shards are missing: 'xxx",
        ModelFileError,
    ),
    ("shard-name-with-nul", mapped(NORM, "x\0.safetensors"), "1 of 3 shards are missing", ModelFileError),
    ("shard-not-text", mapped(NORM, 7), "'?7'? is not the name of", ModelFileError),
    ("tensor-not-in-its-shard", mapped("model.extra", S1), f"'model.extra' is not in '{S1}'", ModelFileError),
    ("tensor-in-another-shard", mapped("model.embed_tokens.weight", S2), "is not this shard's by", ModelFileError),
    ("map-missing", index(lambda t: t.pop("weight_map")), "weight_map: is missing or empty", ModelFileError),
    (
        "map-not-a-table",
        index(lambda t: t.update(weight_map=[1])),
        "weight_map: is an array, not a table",
        ModelFileError,
    ),
    ("index-not-json", index(lambda t: b"{nope}"), f"{INDEX}: not JSON", ModelFileError),
    ("index-gone", gone(INDEX), "2 safetensors files but no", ModelFileError),
    ("pickle-only", pickled, "pickle files can run code and are never read", UnsupportedModelError),
    ("config-gone", gone("config.json"), "no config.json", ModelFileError),
    ("config-empty", file("config.json", ""), "the file is empty", ModelFileError),
    ("config-not-json", file("config.json", "{]"), "config.json: not JSON", ModelFileError),
    (
        "config-deep",
        file("config.json", '{"a":' * 5000 + "1" + "}" * 5000),
        "nested more than 16 levels",
        ModelFileError,
    ),
    ("config-twice", file("config.json", '{"a": 1, "a": 2}'), "the key 'a' occurs twice", ModelFileError),
    ("config-too-large", file("config.json", "{" + " " * (5 << 20) + "}"), "at most 4194304 are read", ModelFileError),
    ("model-type-a-number", config("model_type", 3), "model_type: is 3|is '3'", ModelFileError),
    ("layers-2^60", config("num_hidden_layers", HUGE), f"num_hidden_layers: is {HUGE}", ModelFileError),
    ("layers-text", config("num_hidden_layers", "1"), "num_hidden_layers: is '1'", ModelFileError),
    ("heads-0", config("num_attention_heads", 0), "num_attention_heads: is 0", ModelFileError),
    ("odd-head", config("head_dim", 15), "head_dim: is 15", ModelFileError),
    ("vocab-differs", config("vocab_size", 13), r"has shape \[12, 32\].* \[13, 32\]", ModelFileError),
    ("eps-negative", config("rms_norm_eps", -1.0), "rms_norm_eps: is -1.0", ModelFileError),
    ("eos-beyond", config("eos_token_id", 12), "eos_token_id: is 12, outside the vocabulary of 12", ModelFileError),
    ("eos-negative", config("eos_token_id", [1, -1]), "eos_token_id: is -1", ModelFileError),
    (
        "eos-text",
        file("generation_config.json", '{"eos_token_id": "x"}'),
        "generation_config.json: eos_token_id",
        ModelFileError,
    ),
    ("rope-scaling-a-list", config("rope_scaling", [1]), "rope_scaling: is an array, not a table", ModelFileError),
    ("tokenizer-gone", gone("tokenizer.json"), "no tokenizer.json", UnsupportedModelError),
    ("added-not-a-list", file("tokenizer.json", '{"added_tokens": 3}'), "added_tokens is not a list", ModelFileError),
    (
        "added-deep",
        file("tokenizer.json", '{"added_tokens":' + "[" * 9999),
        "nested more than 3 levels",
        ModelFileError,
    ),
    ("template-not-utf-8", file("chat_template.jinja", b"\xff"), "chat_template.jinja: not UTF-8", ModelFileError),
    (
        "template-too-large",
        file("chat_template.jinja", b" " * (1 << 21)),
        "chat_template.jinja: 2097152 bytes",
        ModelFileError,
    ),
]


@pytest.mark.parametrize(("name", "make", "match", "error"), FOLDERS, ids=[f[0] for f in FOLDERS])
def test_folder_is_refused_by_name(
    name: str, make: Callable[[Path], object], match: str, error: type[PellucidError], tmp_path: Path
) -> None:
    folder = tinyfiles.write_hf(tmp_path / "m", SPEC, tinyfiles.weights(SPEC), shards=2)
    open_checkpoint(folder).close()
    make(folder)
    refused(folder, error, match)


def test_no_name_leaves_the_folder_even_when_the_file_is_there(tmp_path: Path) -> None:
    folder = tinyfiles.write_hf(tmp_path / "m", SPEC, tinyfiles.weights(SPEC), shards=2)
    (folder / S2).rename(tmp_path / S2)
    table = json.loads((folder / INDEX).read_text())
    table["weight_map"] = {n: "../" + s if s == S2 else s for n, s in table["weight_map"].items()}
    (folder / INDEX).write_text(json.dumps(table))
    refused(folder, ModelFileError, "is not the name of a safetensors file in this folder")
