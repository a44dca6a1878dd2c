"""A GGUF writer that writes what it is told, right or wrong, for the tests of hostile files."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

import numpy as np

import tinyfiles
from pellucid.models.spec import LayerSpec, RopeSpec

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
SPEC = replace(
    tinyfiles.LLAMA,
    vocab=12,
    d_model=32,
    d_ff=32,
    n_heads=2,
    n_kv_heads=1,
    layers=(LayerSpec(0, RopeSpec(10000.0, 16)),),
)
"""About 30 kB as F32."""


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: float | str | bytes) -> bytes:
    """A typed value."""
    body = string(value) if isinstance(value, str | bytes) else struct.pack("<" + CODES[kind], value)
    return struct.pack("<I", kind) + body


def array(kind: int, values: list[float] | list[str], count: int | None = None) -> bytes:
    """A typed array; `count`: what it claims."""
    body = b"".join(string(v) if isinstance(v, str) else struct.pack("<" + CODES[kind], v) for v in values)
    return struct.pack("<IIQ", ARRAY, kind, len(values) if count is None else count) + body


@dataclass
class RawTensor:
    dims: tuple[int, ...]
    """Innermost first, as GGUF has them."""
    kind: int
    data: bytes
    offset: int | None = None
    """None: behind the one before."""
    n_dims: int | None = None


@dataclass
class RawGGUF:
    """Parts of a file; `bytes()` joins them."""

    keys: dict[str | bytes, bytes]
    tensors: dict[str, RawTensor]
    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_keys: int | None = None
    more_keys: list[tuple[str | bytes, bytes]] = field(default_factory=list)
    more_tensors: list[tuple[str, RawTensor]] = field(default_factory=list)
    align: int = 32

    def bytes(self) -> bytes:
        keys = [*self.keys.items(), *self.more_keys]
        tensors = [*self.tensors.items(), *self.more_tensors]
        out = self.magic + struct.pack(
            "<IQQ",
            self.version,
            len(tensors) if self.n_tensors is None else self.n_tensors,
            len(keys) if self.n_keys is None else self.n_keys,
        )
        out = bytearray(out + b"".join(string(k) + v for k, v in keys))
        data = bytearray()
        for name, t in tensors:
            offset = len(data) if t.offset is None else t.offset
            out += string(name) + struct.pack("<I", len(t.dims) if t.n_dims is None else t.n_dims)
            out += b"".join(struct.pack("<Q", d) for d in t.dims) + struct.pack("<IQ", t.kind, offset)
            data += t.data + bytes(-len(t.data) % self.align)
        return bytes(out + bytes(-len(out) % self.align) + data)


def valid() -> RawGGUF:
    """A sound llama."""
    s = SPEC
    keys: dict[str | bytes, bytes] = {
        "general.architecture": scalar(STRING, "llama"),
        "general.name": scalar(STRING, "raw"),
        "llama.block_count": scalar(U32, s.n_layers),
        "llama.context_length": scalar(U32, s.context),
        "llama.embedding_length": scalar(U32, s.d_model),
        "llama.feed_forward_length": scalar(U32, s.d_ff),
        "llama.attention.head_count": scalar(U32, s.n_heads),
        "llama.attention.head_count_kv": scalar(U32, s.n_kv_heads),
        "llama.attention.layer_norm_rms_epsilon": scalar(F32, 1e-5),
        "llama.rope.freq_base": scalar(F32, 10000.0),
        "tokenizer.ggml.model": scalar(STRING, "gpt2"),
        "tokenizer.ggml.pre": scalar(STRING, "smollm"),
        "tokenizer.ggml.tokens": array(STRING, [f"t{i}" for i in range(s.vocab)]),
        "tokenizer.ggml.token_type": array(I32, [3, 3] + [1] * (s.vocab - 2)),
        "tokenizer.ggml.merges": array(STRING, ["t 1", "t 2"]),
        "tokenizer.ggml.bos_token_id": scalar(U32, 0),
        "tokenizer.ggml.eos_token_id": scalar(U32, 1),
    }
    rng = np.random.default_rng(0)
    tensors = {
        tinyfiles.gguf_name(n): RawTensor(shape[::-1], 0, rng.standard_normal(shape).astype("<f4").tobytes())
        for n, shape in s.weight_shapes().items()
    }
    return RawGGUF(keys, tensors)
