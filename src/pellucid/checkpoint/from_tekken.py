"""TokenizerSource from a tekken.json: Mistral's ranks of byte strings, as byte-level BPE.

Law: a lower rank joins first, whatever its parts; merges are every way to put a piece together from two others, in the
order of the ranks of the whole, the left and the right part. Special tokens have the first ids, ranks come after them.
Source: mistral-common's tokens/tokenizers/tekken.py; the order of merges is that of transformers' converters.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import cast

import numpy as np

from pellucid.checkpoint import strict_json
from pellucid.checkpoint.fields import Fields
from pellucid.checkpoint.mapped import MappedFile, shown
from pellucid.errors import ModelFileError
from pellucid.models.tokens import CONTROL, NORMAL, TokenizerSource

NAME = "tekken.json"
_MOST = 1 << 20
_FIRST_SPECIALS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""What files that list no special tokens mean; the others are <SPECIAL_20> and on."""


def tokenizer_from_tekken(path: Path, vocab: int | None = None) -> TokenizerSource:
    """Read a tekken.json. `vocab`: rows of the model it is for, which no id may pass. Raises ModelFileError."""
    fields = Fields(path.name, strict_json.read(MappedFile(path), limit=64 << 20, values=1 << 21))
    config = fields.table("config")
    if config is None:
        raise fields.fault("config", "is missing")
    size = config.integer("default_vocab_size", 1, _MOST)
    n_special = config.integer("default_num_special_tokens", 3, size)
    if vocab is not None and size > vocab:
        raise ModelFileError(f"{path.name}: {size} tokens, but the model has {vocab}; it belongs to another model")
    pieces = _ranks(fields, size - n_special)
    specials = _specials(fields, n_special)
    alphabet = _alphabet()
    spelled = ["".join(alphabet[byte] for byte in piece) for piece in pieces]
    types = np.full(n_special + len(pieces), NORMAL, np.int32)
    types[:n_special] = CONTROL
    return TokenizerSource(
        kind="bpe",
        pieces=[*specials, *spelled],
        types=types,
        merges=[f"{spelled[left]} {spelled[right]}" for left, right in _merges(pieces)],
        pre="tekken",
        pattern=config.text("pattern"),
        bos_id=1,
        eos_id=2,
        unk_id=0,
        eot_ids=(2,),
        add_bos=True,
    )


def _ranks(fields: Fields, count: int) -> list[bytes]:
    """The byte string of each rank below `count`."""
    entries = fields.values.get("vocab")
    table = cast("list[object]", entries) if isinstance(entries, list) else []
    if len(table) < count:
        raise fields.fault("vocab", f"has {len(table)} entries; config calls for {count}")
    pieces: list[bytes] = []
    for rank, entry in enumerate(table[:count]):
        row = _row(fields, f"vocab: entry {rank}", entry)
        if row.integer("rank", 0, _MOST) != rank:
            raise row.fault("rank", f"is {row.integer('rank', 0, _MOST)}, not {rank}")
        try:
            pieces.append(base64.b64decode(row.text("token_bytes"), validate=True))
        except (binascii.Error, ValueError):
            raise row.fault("token_bytes", "is not base64") from None
    if len(set(pieces)) != len(pieces) or b"" in pieces:
        raise fields.fault("vocab", "holds a piece twice, or an empty one")
    return pieces


def _row(fields: Fields, what: str, entry: object) -> Fields:
    return Fields(f"{fields.where}: {what}", cast("dict[str, object]", entry) if isinstance(entry, dict) else {})


def _specials(fields: Fields, count: int) -> list[str]:
    listed = fields.values.get("special_tokens")
    named: list[str] = [] if isinstance(listed, list) else list(_FIRST_SPECIALS)
    if isinstance(listed, list):
        for place, entry in enumerate(cast("list[object]", listed)):
            row = _row(fields, f"special_tokens: entry {place}", entry)
            if row.integer("rank", 0, _MOST) != place:
                raise row.fault("rank", f"is {row.integer('rank', 0, _MOST)}, not {place}")
            named.append(row.text("token_str"))
    if len(named) > count:
        raise ModelFileError(f"{fields.where}: special_tokens: {len(named)} for {count} ids ({shown(named[-1])})")
    return [*named, *(f"<SPECIAL_{i}>" for i in range(len(named), count))]


def _merges(pieces: list[bytes]) -> list[tuple[int, int]]:
    """Ranks of both parts of every merge, best first."""
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    merges: list[tuple[int, int]] = []
    for piece in pieces:
        parts = [
            (left, right)
            for cut in range(1, len(piece))
            if (left := ranks.get(piece[:cut])) is not None and (right := ranks.get(piece[cut:])) is not None
        ]
        merges += sorted(parts)
    return merges


def _alphabet() -> list[str]:
    """The character in which byte-level vocabularies spell each byte (GPT-2's table)."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(0x100 + hidden.index(byte)) for byte in range(256)]
