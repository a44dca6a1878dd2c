"""Hostile GGUF files: each is refused with an error that names its fault."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pellucid.checkpoint import open_checkpoint
from pellucid.errors import ModelFileError, PellucidError, UnsupportedModelError
from pellucid.formats import FORMATS, Format
from rawgguf import ARRAY, BOOL, F32, F64, I32, STRING, U8, U32, U64, RawGGUF, RawTensor, array, scalar, string, valid

HUGE = 1 << 60


@dataclass(frozen=True)
class Attack:
    name: str
    make: Callable[[RawGGUF], bytes | None]
    """Changes the sound file, or returns the bytes itself."""
    match: str
    error: type[PellucidError] = ModelFileError


def key(name: str, value: bytes) -> Callable[[RawGGUF], None]:
    def change(f: RawGGUF) -> None:
        f.keys[name] = value

    return change


def drop_key(name: str) -> Callable[[RawGGUF], None]:
    def change(f: RawGGUF) -> None:
        del f.keys[name]

    return change


def field(name: str, value: object) -> Callable[[RawGGUF], None]:
    def change(f: RawGGUF) -> None:
        setattr(f, name, value)

    return change


def tensor(attribute: str, value: object, name: str = "blk.0.ffn_up.weight") -> Callable[[RawGGUF], None]:
    def change(f: RawGGUF) -> None:
        setattr(f.tensors[name], attribute, value)

    return change


def cut(share: float) -> Callable[[RawGGUF], bytes]:
    def change(f: RawGGUF) -> bytes:
        whole = f.bytes()
        return whole[: int(len(whole) * share)]

    return change


def moved(name: str, other: str, by: int) -> Callable[[RawGGUF], None]:
    """Put one tensor `by` bytes behind the beginning of another."""

    def change(f: RawGGUF) -> None:
        at = 0
        for t in f.tensors.values():
            t.offset = at
            at += len(t.data)
        offset = f.tensors[other].offset
        assert offset is not None
        f.tensors[name].offset = offset + by

    return change


def gap(f: RawGGUF) -> bytes:
    moved("output.weight", "output.weight", 64)(f)
    return f.bytes() + bytes(64)


def many_short_strings(f: RawGGUF) -> None:
    f.more_keys.append(("many", struct.pack("<IIQ", ARRAY, STRING, 1 << 19) + string("ab") * (1 << 19)))


def long_text(f: RawGGUF) -> None:
    f.more_keys.append(("text", scalar(STRING, "x" * (10 << 20))))


def bad_string_in_array(f: RawGGUF) -> None:
    f.keys["tokenizer.ggml.tokens"] = (
        struct.pack("<IIQ", ARRAY, STRING, 3) + string("a") + string(b"\xff\xfe") + string("b")
    )


def string_runs_out(f: RawGGUF) -> None:
    f.keys["tokenizer.ggml.tokens"] = (
        struct.pack("<IIQ", ARRAY, STRING, 2) + string("a") + struct.pack("<Q", HUGE) + b"x"
    )


def quantised_norm(f: RawGGUF) -> None:
    f.tensors["blk.0.attn_norm.weight"] = RawTensor((32,), 8, bytes(34))


def extra_tensor(f: RawGGUF) -> None:
    f.tensors["blk.0.mystery.weight"] = RawTensor((32,), 0, bytes(128))


def missing_tensor(f: RawGGUF) -> None:
    del f.tensors["blk.0.attn_k.weight"]


def wrong_shape(f: RawGGUF) -> None:
    f.tensors["blk.0.attn_k.weight"] = RawTensor((16, 32), 0, bytes(2048))


def twice(f: RawGGUF) -> None:
    f.more_tensors.append(("output_norm.weight", f.tensors["output_norm.weight"]))


def rope_factors(f: RawGGUF) -> None:
    f.tensors["rope_freqs.weight"] = RawTensor((8,), 0, struct.pack("<8f", *[1.0] * 7, float("nan")))


T = "tokenizer.ggml."
ATTACKS = [
    Attack("empty", lambda f: b"", "the file is empty"),
    Attack("one-byte", lambda f: b"G", r"at byte 0: begins with b'G', not GGUF"),
    Attack("bad-magic", field("magic", b"GGML"), r"begins with b'GGML', not GGUF"),
    Attack("other-file", lambda f: b"\x80\x04pickle" * 20, "not GGUF"),
    Attack("magic-alone", lambda f: b"GGUF", r"at byte 4: the version takes 4 bytes"),
    Attack("version-0", field("version", 0), "GGUF version 0; versions 2 and 3", UnsupportedModelError),
    Attack("version-1", field("version", 1), "GGUF version 1", UnsupportedModelError),
    Attack("version-huge", field("version", 0xFFFFFFFF), "GGUF version 4294967295", UnsupportedModelError),
    Attack("big-endian", field("version", 3 << 24), "big-endian", UnsupportedModelError),
    Attack("cut-in-header", cut(0.01), "the file ends at"),
    Attack("cut-in-half", cut(0.5), r"ends at byte \d+, but the file ends at \d+ \(cut off\?\)"),
    Attack("cut-by-a-little", lambda f: f.bytes()[:-40], r"cut off\?"),
    Attack("tensor-count-huge", field("n_tensors", HUGE), f"{HUGE} tensors are declared"),
    Attack("tensor-count-beyond-the-file", field("n_tensors", 16000), "the table of 16000 tensors takes"),
    Attack("tensor-count-too-high", field("n_tensors", 13), r"at byte \d+: the tensor '' has"),
    Attack("tensor-count-too-low", field("n_tensors", 11), "behind the last tensor"),
    Attack("key-count-huge", field("n_keys", HUGE), f"{HUGE} keys are declared"),
    Attack("key-count-too-high", field("n_keys", 18), "at byte"),
    Attack("key-count-too-low", field("n_keys", 16), "at byte"),
    Attack(
        "key-length-huge", lambda f: f.bytes()[:24] + struct.pack("<Q", HUGE) + f.bytes()[32:], "key 0 is .* bytes long"
    ),
    Attack("key-too-long", lambda f: f.more_keys.append(("k" * 70000, scalar(U32, 1))), "key 17 is 70000 bytes long"),
    Attack(
        "key-twice", lambda f: f.more_keys.append(("general.name", scalar(STRING, "x"))), "'general.name' occurs twice"
    ),
    Attack("key-not-utf-8", lambda f: f.more_keys.append((b"\xc3\x28", scalar(U32, 1))), "key 17 is not UTF-8"),
    Attack(
        "value-type-unknown",
        key("general.name", struct.pack("<II", 77, 0)),
        "'general.name' has the unknown value type 77",
    ),
    Attack(
        "string-length-huge",
        key("general.name", struct.pack("<IQ", STRING, HUGE)),
        f"'general.name' takes {HUGE} bytes",
    ),
    Attack(
        "string-length-2^64-1",
        key("general.name", struct.pack("<IQ", STRING, (1 << 64) - 1)),
        "takes 18446744073709551615",
    ),
    Attack("string-not-utf-8", key("general.name", scalar(STRING, b"\xed\xa0\x80")), "'general.name' is not UTF-8"),
    Attack("bool-of-2", key(T + "add_bos_token", scalar(BOOL, 2)), "is 2, not 0 or 1 for a bool"),
    Attack("array-of-arrays", key("x", struct.pack("<IIQ", ARRAY, ARRAY, 1)), "'x' is an array of arrays"),
    Attack("array-of-unknown", key("x", struct.pack("<IIQ", ARRAY, 99, 1)), "'x' has the unknown element type 99"),
    Attack("array-count-huge", key("x", array(U32, [1], HUGE)), f"'x' \\({HUGE} elements\\) takes"),
    Attack("array-count-wraps", key("x", array(U64, [1], 1 << 61)), "elements\\) takes 18446744073709551616 bytes"),
    Attack("string-array-count-huge", key(T + "tokens", array(STRING, ["a"], HUGE)), f"{HUGE} strings\\) takes"),
    Attack("string-array-runs-out", string_runs_out, f"takes {HUGE} bytes, but the file ends"),
    Attack("string-array-not-utf-8", bad_string_in_array, r"tokens', entry 1 is not UTF-8"),
    Attack("many-short-strings", many_short_strings, "524288 strings are more than a file of"),
    Attack("long-text", long_text, "more text in the header than a file of"),
    Attack("alignment-0", key("general.alignment", scalar(U32, 0)), "general.alignment: is 0"),
    Attack("alignment-3", key("general.alignment", scalar(U32, 3)), "is 3, not a power of two"),
    Attack("alignment-huge", key("general.alignment", scalar(U32, 1 << 31)), "general.alignment: is 2147483648"),
    Attack("alignment-is-text", key("general.alignment", scalar(STRING, "32")), r"is '32' \(str\), not an integer"),
    Attack(
        "tensor-name-too-long",
        lambda f: f.more_tensors.append(("n" * 300, RawTensor((1,), 0, b""))),
        "is 300 bytes long",
    ),
    Attack("tensor-twice", twice, "the tensor 'output_norm.weight' occurs twice"),
    Attack("no-dimensions", tensor("dims", ()), "has 0 dimensions"),
    Attack("dimensions-count-huge", tensor("n_dims", 0xFFFFFFFF), "has 4294967295 dimensions"),
    Attack("dimension-0", tensor("dims", (32, 0)), "has a dimension of 0"),
    Attack("dimension-2^60", tensor("dims", (32, HUGE)), "whose product overflows"),
    Attack("dimensions-wrap", tensor("dims", (1 << 32, 1 << 32)), "whose product overflows"),
    Attack("dimensions-wrap-to-32", tensor("dims", (32, (1 << 59) + 1)), "whose product overflows"),
    Attack("dimensions-beyond-the-file", tensor("dims", (32, 1 << 40)), "ends at byte"),
    Attack("tensor-type-unknown", tensor("kind", 4242), "has the unknown type 4242"),
    Attack("tensor-type-removed", tensor("kind", 4), "has the unknown type 4"),
    Attack(
        "tensor-type-unsupported", tensor("kind", 16), "is stored as IQ2_XXS; supported are F32", UnsupportedModelError
    ),
    Attack("rows-not-whole-blocks", tensor("kind", 12), "has rows of 32, not whole Q4_K blocks of 256"),
    Attack("offset-misaligned", tensor("offset", 33), "offset 33, which is not a multiple of the alignment 32"),
    Attack("offset-negative", tensor("offset", (1 << 64) - 32), "ends at byte 1844674407370955"),
    Attack("offset-beyond-the-file", tensor("offset", 1 << 40), "but the file ends at"),
    Attack("offset-twice", moved("blk.0.ffn_up.weight", "blk.0.ffn_gate.weight", 0), "overlap at byte"),
    Attack("offset-overlaps", moved("blk.0.ffn_up.weight", "blk.0.ffn_gate.weight", 64), "overlap at byte"),
    Attack("gap-between-tensors", gap, "64 bytes before the tensor 'output.weight'"),
    Attack("bytes-behind-the-end", lambda f: f.bytes() + bytes(32), "32 bytes behind the last tensor"),
    Attack("tensor-missing", missing_tensor, "'blk.0.attn_k.weight' is missing"),
    Attack("tensor-left-over", extra_tensor, "'blk.0.mystery.weight' is not part of a llama", UnsupportedModelError),
    Attack("tensor-of-wrong-shape", wrong_shape, r"has shape \[32, 16\], but the model's sizes call for \[16, 32\]"),
    Attack("norm-quantised", quantised_norm, "'blk.0.attn_norm.weight' is quantised"),
    Attack("rope-factor-nan", rope_factors, "rope_freqs.weight: holds a factor that is not a positive number"),
    Attack("architecture-missing", drop_key("general.architecture"), "general.architecture: is missing"),
    Attack("architecture-is-a-number", key("general.architecture", scalar(U32, 1)), r"is 1 \(int\), not a string"),
    Attack(
        "layers-huge", key("llama.block_count", scalar(U32, 0xFFFFFFFF)), "block_count: is 4294967295, outside 1 to"
    ),
    Attack("layers-0", key("llama.block_count", scalar(U32, 0)), "block_count: is 0"),
    Attack("layers-too-many", key("llama.block_count", scalar(U32, 2)), "'blk.1.attn_norm.weight' is missing"),
    Attack("layers-negative", key("llama.block_count", scalar(I32, -1)), "block_count: is -1"),
    Attack(
        "width-is-a-float", key("llama.embedding_length", scalar(F32, 32.0)), r"is '?32.0'? \(float\), not an integer"
    ),
    Attack("width-huge", key("llama.embedding_length", scalar(U64, HUGE)), f"embedding_length: is {HUGE}"),
    Attack("heads-0", key("llama.attention.head_count", scalar(U32, 0)), "head_count: is 0"),
    Attack(
        "heads-do-not-divide",
        key("llama.attention.head_count", scalar(U32, 3)),
        "is 3, which does not divide the width 32",
    ),
    Attack(
        "kv-heads-more-than-heads", key("llama.attention.head_count_kv", scalar(U32, 4)), "does not divide the 2 heads"
    ),
    Attack("epsilon-nan", key("llama.attention.layer_norm_rms_epsilon", scalar(F32, float("nan"))), "epsilon: is nan"),
    Attack("rope-base-infinite", key("llama.rope.freq_base", scalar(F32, float("inf"))), "freq_base: is inf"),
    Attack("rope-base-0", key("llama.rope.freq_base", scalar(F64, 0.0)), "freq_base: is 0.0"),
    Attack("rope-factor-0", key("llama.rope.scale_linear", scalar(F32, 0.0)), "scale_linear: is 0.0"),
    Attack("context-0", key("llama.context_length", scalar(U32, 0)), "context_length: is 0"),
    Attack(
        "refused-key-is-an-array",
        key("llama.attention.max_alibi_bias", array(U32, [8])),
        "ALiBi",
        UnsupportedModelError,
    ),
    Attack("tokens-missing", drop_key(T + "tokens"), "tokens: is missing"),
    Attack(
        "tokens-are-numbers", key(T + "tokens", array(U8, [1] * 12)), "tokens: is an array, not an array of strings"
    ),
    Attack("tokens-too-few", key(T + "tokens", array(STRING, ["a", "b"])), "token_type: has 12 entries for 2 tokens"),
    Attack(
        "vocab-size-differs", key("llama.vocab_size", scalar(U32, 13)), "vocab_size: is 13, but there are 12 tokens"
    ),
    Attack("types-too-few", key(T + "token_type", array(I32, [1])), "token_type: has 1 entries for 12 tokens"),
    Attack("types-unknown", key(T + "token_type", array(I32, [9] * 12)), "holds a kind outside 0 to 6"),
    Attack(
        "types-are-text",
        key(T + "token_type", array(STRING, ["1"] * 12)),
        "token_type: is an array, not an array of integers",
    ),
    Attack("scores-missing", key(T + "model", scalar(STRING, "llama")), "scores: is missing"),
    Attack("merges-missing", drop_key(T + "merges"), "merges: is missing"),
    Attack("merge-of-one-piece", key(T + "merges", array(STRING, ["ab"])), "merges: 'ab' is not two pieces"),
    Attack("token-id-negative", key(T + "eos_token_id", scalar(I32, -1)), "eos_token_id: is -1, outside 0 to 11"),
    Attack("token-id-beyond", key(T + "bos_token_id", scalar(U32, 12)), "bos_token_id: is 12, outside 0 to 11"),
    Attack("token-id-is-text", key(T + "eos_token_id", scalar(STRING, "1")), "eos_token_id: is '1'"),
    Attack("template-is-a-number", key("tokenizer.chat_template", scalar(U32, 1)), "chat_template: is 1"),
    Attack("split-without-its-parts", key("split.count", scalar(U32, 3)), "one of 3 parts, but not named like"),
    Attack("split-count-negative", key("split.count", scalar(I32, -3)), "split.count: is -3"),
    Attack("split-tensors-differ", key("split.tensors.count", scalar(I32, 99)), "is 99, but there are 12 tensors"),
]


def test_the_sound_file_opens(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(valid().bytes())
    with open_checkpoint(tmp_path / "m.gguf") as c:
        assert len(list(c.weights())) == 12
    old = valid()
    old.version = 2
    (tmp_path / "m.gguf").write_bytes(old.bytes())
    open_checkpoint(tmp_path / "m.gguf").close()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
def test_is_refused_by_name(attack: Attack, tmp_path: Path) -> None:
    raw = valid()
    made = attack.make(raw)
    path = tmp_path / "m.gguf"
    path.write_bytes(made if isinstance(made, bytes) else raw.bytes())
    with pytest.raises(attack.error, match=attack.match) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert type(caught.value) is attack.error
    assert message.isprintable()
    assert "m.gguf" in message
    assert len(message) < 600


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS.keys())
def test_each_format_must_have_its_very_size(fmt: Format, tmp_path: Path) -> None:
    path, name = tmp_path / "m.gguf", "blk.0.ffn_up.weight"
    raw = valid()
    if 32 % fmt.block:
        raw.tensors[name].kind = fmt.ggml_type or 0
        path.write_bytes(raw.bytes())
        with pytest.raises(ModelFileError, match=f"not whole {fmt.name.upper()} blocks of {fmt.block}"):
            open_checkpoint(path)
        return
    nbytes = 32 * fmt.row_bytes(32)
    for size in (nbytes - 32, nbytes, nbytes + 32):
        raw.tensors[name] = RawTensor((32, 32), fmt.ggml_type or 0, bytes(size))
        path.write_bytes(raw.bytes())
        if size == nbytes:
            open_checkpoint(path).close()
            continue
        with pytest.raises(ModelFileError, match=r"ends at byte|overlap|belong to none"):
            open_checkpoint(path)


def test_names_differ() -> None:
    assert len({a.name for a in ATTACKS}) == len(ATTACKS) >= 40


def test_split_parts_that_lie(tmp_path: Path) -> None:
    def part(no: int, count: int, tensors: dict[str, RawTensor]) -> bytes:
        f = valid()
        if no:
            f.keys = {}
        f.keys |= {
            "split.no": scalar(U32, no),
            "split.count": scalar(U32, count),
            "split.tensors.count": scalar(U32, 12),
        }
        f.tensors = tensors
        return f.bytes()

    every = valid().tensors
    first, second = dict(list(every.items())[:5]), dict(list(every.items())[5:])
    a, b = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    a.write_bytes(part(0, 2, first))
    b.write_bytes(part(1, 2, second))
    open_checkpoint(a).close()
    for bad, match in (
        (part(0, 2, second), "split.no: is 0, not 1"),
        (part(1, 3, second), "split.count: is 3, not 2"),
        (part(1, 2, second | {"token_embd.weight": every["token_embd.weight"]}), "occurs in an earlier part too"),
        (part(1, 2, dict(list(second.items())[1:])), "split.tensors.count: is 12, but there are 11"),
        (part(1, 2, second)[:200], "cut off"),
    ):
        b.write_bytes(bad)
        with pytest.raises(ModelFileError, match=match):
            open_checkpoint(a)


def test_not_regular_files(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        open_checkpoint(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        open_checkpoint("/dev/zero")
