"""Vocabularies of model files, turned into objects of the `tokenizers` library.

Law: exact. The ids are those of the model's own Hugging Face tokenizer, for every text. Two engines share one model:
`engine` reads spellings of control tokens as those tokens, `text_engine` reads them as text; user-defined tokens
are tokens in both.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece

from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.models.tokens import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, TokenizerSource
from pellucid.text.merges import MergeTable
from pellucid.text.pretokenizers import PRETOKENIZERS, by_pattern

SPACE = "▁"
"""SentencePiece's spelling of a space (U+2581)."""


Spelling = Literal["bytes", "spaces", "words"]
"""How pieces spell text: bytes: in the byte-to-unicode alphabet; spaces: with U+2581 for a space (SentencePiece);
words: a space comes before each piece that does not go on with a word (WordPiece, a list of words)."""


@dataclass(frozen=True)
class Added:
    """A token that is cut out of the text before anything else is looked at."""

    id: int
    text: str
    control: bool
    lstrip: bool = False
    """It swallows the white space before it."""
    rstrip: bool = False
    """It swallows the white space after it."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer's parts, with what the library does not tell about them."""

    engine: Tokenizer
    text_engine: Tokenizer
    middle_engine: Tokenizer | None
    """`text_engine` for text after a control token, where that differs: no space of its own before it."""
    size: int
    piece: Callable[[int], str]
    """Piece of an id below `size`, in the vocabulary's own alphabet."""
    spelling: Spelling
    continues: str
    """What begins a piece that goes on with a word (WordPiece's ##); "" where nothing marks it."""
    bytes_of: dict[int, int]
    """The byte of each of SentencePiece's byte tokens."""
    added: dict[int, Added]
    unknown: int | None
    strip_first_space: bool
    """A text's first space is the tokenizer's own, and decoding drops it."""
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    """Ids that encoding puts before and after a text."""
    merges: Callable[[], MergeTable] | None
    """The merges, for replaying them; made when first asked for. None: pieces are chosen otherwise than by merging."""
    ignore_merges: bool


def build_vocabulary(source: TokenizerSource) -> Vocabulary:
    """Turn a source into engines. Raises ModelFileError for one that contradicts itself, UnsupportedModelError."""
    if source.kind != "json" and not source.pieces:
        raise ModelFileError("the model file holds no vocabulary (tokenizer.ggml.tokens); download it again")
    build = {"json": _from_json, "bpe": _from_bytes, "spm": _from_sentencepiece}[source.kind]
    collecting = gc.isenabled()
    gc.disable()  # hundreds of thousands of small objects, none of them garbage: collections cost a quarter of the time
    try:
        return build(source)
    finally:
        if collecting:
            gc.enable()


def _from_bytes(source: TokenizerSource) -> Vocabulary:
    pre = by_pattern(source.pattern) if source.pattern else PRETOKENIZERS.get(source.pre)
    if pre is None:
        known = ", ".join(sorted(PRETOKENIZERS))
        raise UnsupportedModelError(
            f"the file cuts text by the pre-tokenizer {source.pre[:80]!r}, which is not known; give the model's own "
            f"tokenizer.json, its folder or its repository with --tokenizer. Known are {known}"
        )
    if source.merges is None:
        raise ModelFileError("a byte-level vocabulary needs its merges (tokenizer.ggml.merges); the file has none")
    vocab = _ids(source.pieces)
    split = [merge.split(" ") for merge in source.merges]
    merges = cast(list[tuple[str, str]], list(map(tuple, split)))
    model = _bpe(vocab, merges, ignore_merges=pre.ignore_merges)
    types = _types(source)
    added = _added(source.pieces, types)

    def finish(engine: Tokenizer) -> None:
        engine.pre_tokenizer = pre.split()
        if pre.normalizer is not None:
            engine.normalizer = pre.normalizer()

    engine, text_engine = _engines(model, added, finish)
    prefix, suffix = _edges(source)
    return Vocabulary(
        engine=engine,
        text_engine=text_engine,
        middle_engine=None,
        size=len(source.pieces),
        piece=source.pieces.__getitem__,
        spelling="bytes",
        continues="",
        bytes_of={},
        added=added,
        unknown=source.unk_id,
        strip_first_space=False,
        prefix=prefix,
        suffix=suffix,
        merges=lambda: MergeTable.of_pairs(vocab, merges),
        ignore_merges=pre.ignore_merges,
    )


def _from_sentencepiece(source: TokenizerSource) -> Vocabulary:
    if source.scores is None:
        raise ModelFileError("a SentencePiece vocabulary needs its scores (tokenizer.ggml.scores); the file has none")
    types = _types(source)
    pieces = list(source.pieces)
    # llama.cpp's converter spells runs of spaces as spaces; the model knows them as U+2581.
    for index in np.flatnonzero(types == USER_DEFINED):
        if pieces[index] and not pieces[index].strip(" "):
            pieces[index] = SPACE * len(pieces[index])
    vocab = _ids(pieces)
    left, right = _derived_merges(pieces, source.scores, types)
    merges = list(zip(map(pieces.__getitem__, left.tolist()), map(pieces.__getitem__, right.tolist()), strict=True))
    unknown = None if source.unk_id is None else pieces[source.unk_id]
    model = _bpe(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    added = _added(pieces, types)
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if source.add_space_prefix else []
    steps.append(normalizers.Replace(" ", SPACE))

    def finish(engine: Tokenizer) -> None:
        engine.normalizer = normalizers.Sequence(steps)

    engine, text_engine = _engines(model, added, finish)
    prefix, suffix = _edges(source)
    return Vocabulary(
        engine=engine,
        text_engine=text_engine,
        middle_engine=None,
        size=len(pieces),
        piece=pieces.__getitem__,
        spelling="spaces",
        continues="",
        bytes_of={int(index): _byte_of(pieces[index], int(index)) for index in np.flatnonzero(types == BYTE).tolist()},
        added=added,
        unknown=source.unk_id,
        strip_first_space=source.add_space_prefix,
        prefix=prefix,
        suffix=suffix,
        merges=lambda: MergeTable.of_ids(vocab, left, right),
        ignore_merges=False,
    )


def _from_json(source: TokenizerSource) -> Vocabulary:
    path = source.json_path
    if path is None:
        raise ModelFileError("the model's folder holds no tokenizer.json; download it again")
    try:
        engine = Tokenizer.from_file(str(path))
        data = cast(dict[str, Any], json.loads(path.read_bytes()))
    except Exception as error:  # the library raises plain Exception for a file that it cannot read
        raise ModelFileError(f"{path}: not a tokenizer.json that can be read: {error}") from error
    model: dict[str, Any] = data["model"]
    decoders = {str(part.get("type")): part for part in _parts(data.get("decoder"), "decoders")}
    spelling = _spelling(path, engine, model, set(decoders))
    engine.no_truncation()
    engine.no_padding()
    added = {
        int(token["id"]): Added(
            int(token["id"]), token["content"], token["special"], token.get("lstrip", False), token.get("rstrip", False)
        )
        for token in cast(list[dict[str, Any]], data.get("added_tokens") or [])
    }
    text_engine = Tokenizer.from_file(str(path))
    text_engine.no_truncation()
    text_engine.no_padding()
    text_engine.encode_special_tokens = True
    vocab = _vocab_of(model)
    pairs = cast(list[Any], model.get("merges") or [])
    bare = engine.encode("a", add_special_tokens=False).ids
    full = engine.encode("a", add_special_tokens=True).ids
    start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
    prefix, suffix = tuple(full[:start]), tuple(full[start + len(bare) :])
    declared_prefix, declared_suffix = _edges(source)
    size = 1 + max((*vocab.values(), *added), default=-1)
    space = decoders.get("Metaspace", {"prepend_scheme": "never"}).get("prepend_scheme", "always")

    def piece(index: int) -> str:
        return engine.id_to_token(index) or ""

    def merges() -> MergeTable:
        return MergeTable.of_pairs(
            vocab, [tuple(pair.split(" ", 1)) if isinstance(pair, str) else (pair[0], pair[1]) for pair in pairs]
        )

    return Vocabulary(
        engine=engine,
        text_engine=text_engine,
        middle_engine=_middle_engine(path, data),
        size=size,
        piece=piece,
        spelling=spelling,
        continues=str(model.get("continuing_subword_prefix") or "") if isinstance(engine.model, WordPiece) else "",
        bytes_of={vocab[spelled]: b for b in range(256) if (spelled := _spell(b)) in vocab}
        if spelling == "spaces"
        else {},
        added=added,
        unknown=_unknown(model, vocab),
        strip_first_space=spelling == "words" or "Strip" in decoders or space != "never",
        prefix=prefix or declared_prefix,
        suffix=suffix or declared_suffix,
        merges=merges if isinstance(engine.model, BPE) else None,
        ignore_merges=bool(model.get("ignore_merges")),
    )


def _spelling(path: Path, engine: Tokenizer, model: dict[str, Any], decoders: set[str]) -> Spelling:
    """How the pieces of a tokenizer.json spell text, if it is of a kind whose text can be put together again."""
    if isinstance(engine.model, BPE) and "ByteLevel" in decoders:
        return "bytes"
    if isinstance(engine.model, BPE) and "ByteFallback" in decoders:
        return "spaces"
    if isinstance(engine.model, Unigram) and decoders & {"Metaspace", "ByteFallback", "Replace"}:
        return "spaces"
    if isinstance(engine.model, (WordPiece, WordLevel)) and decoders <= {"WordPiece"}:
        return "words"
    raise UnsupportedModelError(
        f"{path}: a {model.get('type')} tokenizer with decoders {sorted(decoders)} is not supported; supported are "
        "byte-level BPE, SentencePiece (BPE with byte fallback, Unigram), WordPiece and WordLevel"
    )


def _vocab_of(model: dict[str, Any]) -> dict[str, int]:
    """Piece → id; Unigram lists (piece, score) by id."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        return cast(dict[str, int], vocab)
    return {str(entry[0]): index for index, entry in enumerate(cast(list[Any], vocab))}


def _unknown(model: dict[str, Any], vocab: dict[str, int]) -> int | None:
    token = model.get("unk_token")
    return cast("int | None", model.get("unk_id")) if token is None else vocab.get(token)


def _middle_engine(path: Path, data: dict[str, Any]) -> Tokenizer | None:
    spacing = [part for part in _parts(data.get("pre_tokenizer"), "pretokenizers") if part.get("type") == "Metaspace"]
    if not any(part.get("prepend_scheme") == "first" for part in spacing):
        return None
    for part in spacing:
        part["prepend_scheme"] = "never"
    engine = Tokenizer.from_str(json.dumps(data))
    engine.no_truncation()
    engine.no_padding()
    engine.encode_special_tokens = True
    return engine


def _parts(component: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """The parts of a component of tokenizer.json: its members if it is a sequence, else itself."""
    if component is None:
        return []
    return cast(list[dict[str, Any]], component[name]) if component.get("type") == "Sequence" else [component]


def _ids(pieces: Sequence[str]) -> dict[str, int]:
    vocab = dict(zip(pieces, range(len(pieces)), strict=True))
    if len(vocab) != len(pieces):
        first = next(i for i, piece in enumerate(pieces) if vocab[piece] != i)
        raise ModelFileError(
            f"the vocabulary holds {pieces[first]!r} twice (ids {first} and {vocab[pieces[first]]}); download it again"
        )
    return vocab


def _types(source: TokenizerSource) -> NDArray[np.int32]:
    if source.types is None:
        return np.full(len(source.pieces), NORMAL, dtype=np.int32)
    if len(source.types) != len(source.pieces):
        raise ModelFileError(
            f"the vocabulary has {len(source.pieces)} tokens but {len(source.types)} kinds of token "
            "(tokenizer.ggml.token_type); download it again"
        )
    return source.types


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> BPE:
    try:
        return BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises plain Exception, and TypeError for a merge without two parts
        raise ModelFileError(f"the merges do not fit the vocabulary: {error}; download the file again") from error


def _derived_merges(
    pieces: Sequence[str], scores: NDArray[np.float32], types: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Ids of both parts of each merge. User-defined pieces go first: SentencePiece scores them 0, converters do not."""
    from pellucid import _core

    if len(scores) != len(pieces):
        raise ModelFileError(f"the vocabulary has {len(pieces)} tokens but {len(scores)} scores; download it again")
    if np.isnan(scores).any():
        raise ModelFileError("a score of the vocabulary is not a number (tokenizer.ggml.scores); download it again")
    ranked = np.where(types == USER_DEFINED, np.float32(0), scores).astype(np.float32)
    mergeable = np.isin(types, (NORMAL, USER_DEFINED, UNUSED)).astype(np.uint8)
    return _core.spm_merges(pieces, ranked, mergeable)


def _added(pieces: Sequence[str], types: NDArray[np.int32]) -> dict[int, Added]:
    chosen = np.flatnonzero((types == CONTROL) | (types == USER_DEFINED) | (types == UNKNOWN))
    return {
        index: Added(index, pieces[index], control=bool(types[index] != USER_DEFINED))
        for index in chosen.tolist()
        if pieces[index]
    }


def _engines(model: BPE, added: dict[int, Added], finish: Callable[[Tokenizer], None]) -> tuple[Tokenizer, Tokenizer]:
    tokens: Any = [AddedToken(token.text, normalized=False, special=token.control) for token in added.values()]
    engines = Tokenizer(model), Tokenizer(model)
    for engine in engines:
        cast(Any, engine).add_tokens(tokens)
        finish(engine)
    engines[1].encode_special_tokens = True
    return engines


def _edges(source: TokenizerSource) -> tuple[tuple[int, ...], tuple[int, ...]]:
    prefix = (source.bos_id,) if source.add_bos and source.bos_id is not None else ()
    suffix = (source.eos_id,) if source.add_eos and source.eos_id is not None else ()
    return prefix, suffix


def _spell(byte: int) -> str:
    return f"<0x{byte:02X}>"


def _byte_of(piece: str, index: int) -> int:
    try:
        byte = int(piece[3:5], 16)
        if piece.upper() == _spell(byte).upper():
            return byte
    except ValueError:
        pass
    raise ModelFileError(f"byte token {index} is spelled {piece!r}, not <0x00> to <0xFF>; download the file again")
