"""Checkpoint: a model on disk, validated as a whole before anything of it is used.

Law: `open_checkpoint` either returns a model whose every tensor is bound to a canonical name, or raises one error that
names the fault. Weights are handed out lazily; bytes are views of the mapped file, except where the canonical order of
rows or values differs from the vendor's.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from pellucid.checkpoint import strict_json
from pellucid.checkpoint.bound import Bound
from pellucid.checkpoint.families import FAMILIES, Family
from pellucid.checkpoint.fields import Fields
from pellucid.checkpoint.from_gguf import ROPE_TENSORS, spec_from_gguf, tokenizer_from_gguf
from pellucid.checkpoint.from_hf import read_config, spec_from_hf, tokenizer_from_folder, tokenizer_from_hf
from pellucid.checkpoint.from_tekken import NAME as TEKKEN
from pellucid.checkpoint.from_tekken import tokenizer_from_tekken
from pellucid.checkpoint.gguf import read_gguf
from pellucid.checkpoint.mapped import MappedFile, shown
from pellucid.checkpoint.names import PLAIN, bind, gguf_namer, hf_body, hf_namer
from pellucid.checkpoint.safetensors import read_folder
from pellucid.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from pellucid.formats import FORMATS, Weight
from pellucid.models.spec import ModelSpec, is_matrix
from pellucid.models.tokens import TokenizerSource

_NOT_TEXT = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
"""Parts of a Hugging Face model that are not its language model."""


class Checkpoint:
    """A validated model on disk. Use as a context manager, or call close()."""

    def __init__(
        self,
        path: Path,
        spec: ModelSpec,
        tokenizer: TokenizerSource,
        metadata: dict[str, object],
        files: list[MappedFile],
        bound: dict[str, Bound],
        *,
        rotary_interleaved: bool,
        norm_offset: float,
        given: Path | None,
    ) -> None:
        self.path = path
        self.given = given
        """Whose vocabulary stands in for the model's own; None: its own."""
        self.spec = spec
        self.tokenizer = tokenizer
        self.metadata = metadata
        """Raw key-values of the file, for people to look at; nothing else reads them."""
        self.files = [f.path for f in files]
        self.nbytes = sum(t.nbytes for t in bound.values())
        """Bytes of all weights as stored."""
        self._mapped = files
        order = {id(file): place for place, file in enumerate(files)}
        self._bound = dict(sorted(bound.items(), key=lambda item: (order[id(item[1].parts[0].file)], item[1].place)))
        self._rotary_interleaved = rotary_interleaved
        self._norm_offset = norm_offset

    def weights(self) -> Iterator[Weight]:
        """Every weight, canonical in name and layout (see ModelSpec.weight_shapes), read as it is reached: in the order
        in which they lie in the files."""
        for name in self._bound:
            yield self.weight(name)

    def weight(self, name: str) -> Weight:
        """The weight of a canonical name. Its data is a view of the file where the layouts agree, else a copy."""
        bound = self._bound[name]
        part = name.rpartition(".")[2]
        if self._rotary_interleaved and self._is_rotary(name, part):
            heads = self.spec.n_heads if "Q" in part or "q_norm" in name else self.spec.n_kv_heads
            return _halves(name, bound, heads)
        if self._norm_offset and part == "w":
            values = bound.format.decode_rows(bound.data())
            return Weight.from_float32(name, values[0] + np.float32(self._norm_offset), FORMATS["f32"])
        return Weight(name, bound.shape, bound.format, bound.data())

    def _is_rotary(self, name: str, part: str) -> bool:
        """The weight makes or scales the values of q or k, each on its own."""
        by_value = name.endswith(("q_norm.w", "k_norm.w")) and self.spec.qk_norm == "each"
        return by_value or part in ("W_Q", "b_Q", "W_K", "b_K")

    def mapped(self, weight: Weight) -> bool:
        """Whether that weight's data, as `weight` gave it, is a view of its file, whose pages may be dropped."""
        return self._bound[weight.name].parts[0].file.holds(weight.data)

    def release(self, weight: Weight) -> None:
        """Drop the file's pages of that weight from memory; views of them stay valid, to be read again when touched."""
        for stored in self._bound[weight.name].parts:
            stored.file.release(stored.offset, stored.nbytes)

    def close(self) -> None:
        """Let go of the files. Views that were handed out stay valid."""
        for file in self._mapped:
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _halves(name: str, bound: Bound, heads: int) -> Weight:
    """Rows (of a vector: values) of each head, from rotary pairs side by side to two halves, d_head/2 apart."""
    data = bound.data()
    unit = data.shape[1] if len(bound.shape) == 2 else bound.format.nbytes
    pairs = data.reshape(heads, -1, 2, unit)
    return Weight(name, bound.shape, bound.format, pairs.swapaxes(1, 2).reshape(data.shape))


def open_checkpoint(path: str | Path, tokenizer: str | Path | None = None) -> Checkpoint:
    """Open a GGUF file (or the first of a split one) or a Hugging Face folder, and validate all of it.

    tokenizer: a tokenizer.json, tekken.json, folder or GGUF file whose vocabulary counts instead of the model's own.

    Raises ModelNotFoundError (no such path), ModelFileError (corrupt, cut off, contradicts itself) or
    UnsupportedModelError (a family, tensor type or setting that is not known); each names the file and the fault.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        raise ModelNotFoundError(f"{shown(path, 200)}: no such file or folder") from None
    if stat.S_ISDIR(mode):
        return _open_folder(path, None if tokenizer is None else Path(tokenizer))
    if path.suffix == ".safetensors":
        raise ModelFileError(
            f"{path.name}: weights alone; give the folder that also holds config.json and tokenizer.json"
        )
    return _open_gguf(path, None if tokenizer is None else Path(tokenizer))


def open_tokenizer(path: Path, vocab: int) -> TokenizerSource:
    """The vocabulary of a tokenizer.json, a tekken.json, a Hugging Face folder or a GGUF file.

    vocab: rows of the model that it is for, which no id may pass.
    Raises ModelNotFoundError, ModelFileError, UnsupportedModelError.
    """
    folder = path.parent if path.name == "tokenizer.json" and path.is_file() else path
    if folder.is_dir():
        config = folder / "config.json"
        configs = [Fields(config.name, strict_json.read(MappedFile(config)))] if config.is_file() else []
        return tokenizer_from_folder(folder, vocab, configs)
    if path.name.endswith(TEKKEN):
        return tokenizer_from_tekken(path, vocab)
    if path.suffix == ".json":
        MappedFile(path).close()  # one clear error for what is not there or cannot be read
        return TokenizerSource(kind="json", json_path=path)
    if path.suffix != ".gguf":
        raise UnsupportedModelError(
            f"{path.name}: not a tokenizer that can be read; give tokenizer.json, tekken.json, a folder with one of "
            "them, or a .gguf file"
        )
    source = tokenizer_from_gguf(read_gguf(path))
    if len(source.pieces) > vocab:
        raise ModelFileError(f"{path.name}: {len(source.pieces)} tokens, but the model has {vocab}")
    return source


def _chosen(given: Path | None, own: Callable[[], TokenizerSource], vocab: int) -> TokenizerSource:
    """The model's own vocabulary, or the one that was given, which the model's own completes where it is silent."""
    if given is None:
        return own()
    source = open_tokenizer(given, vocab)
    try:
        model = own()
    except UnsupportedModelError:  # why another one was given
        return source
    ends = tuple(dict.fromkeys((*source.eot_ids, *model.eot_ids)))
    bare = source.kind == "json" and source.json_path == given
    return replace(
        source,
        bos_id=model.bos_id if source.bos_id is None else source.bos_id,
        eos_id=model.eos_id if source.eos_id is None else source.eos_id,
        eot_ids=ends,
        add_bos=model.add_bos if bare else source.add_bos,
        add_eos=model.add_eos if bare else source.add_eos,
        chat_template=source.chat_template or model.chat_template,
    )


def _open_gguf(path: Path, given: Path | None) -> Checkpoint:
    gguf = read_gguf(path)
    spec = spec_from_gguf(gguf, path.stem)
    family = _family(spec)
    tokenizer = _chosen(given, lambda: tokenizer_from_gguf(gguf), spec.vocab)
    namer = gguf_namer(family)
    bound = bind(gguf.files[0].name, spec, PLAIN, namer, gguf.tensors, ROPE_TENSORS)
    for name, weight in bound.items():
        if not is_matrix(name) and weight.format.block > 1:
            raise ModelFileError(
                f"{path.name}: the tensor {namer(name)!r} is quantised; norms and biases must be F32, F16 or BF16"
            )
    return Checkpoint(
        path,
        spec,
        tokenizer,
        gguf.metadata,
        gguf.files,
        bound,
        rotary_interleaved=family.gguf_rotary_interleaved,
        norm_offset=0.0,
        given=given,
    )


def _open_folder(path: Path, given: Path | None) -> Checkpoint:
    folder = read_config(path)
    files, tensors = read_folder(path, _NOT_TEXT)
    body = hf_body(folder.family, tensors)
    head = body.removesuffix("model.") if body.startswith("language_model.") else ""
    namer = hf_namer(folder.family, body, head)
    lm_head = namer("unembed.W_U")
    spec = spec_from_hf(folder, tied_by_absence=lm_head not in tensors)
    tokenizer = _chosen(given, lambda: tokenizer_from_hf(folder, spec.vocab), spec.vocab)
    buffers = [n for n in tensors if n.endswith(folder.family.hf_buffers)]
    ignored = [*buffers, *([lm_head] if spec.tied else [])]
    bound = bind(path.name, spec, folder.family, namer, tensors, ignored)
    return Checkpoint(
        path,
        spec,
        tokenizer,
        dict(folder.outer.values),
        files,
        bound,
        rotary_interleaved=folder.family.hf_rotary_interleaved,
        norm_offset=folder.family.hf_norm_offset,
        given=given,
    )


def _family(spec: ModelSpec) -> Family:
    return next(f for f in FAMILIES if f.name == spec.family)
