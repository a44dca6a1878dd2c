"""TokenizerSource: the raw material of a tokenizer, free of any vendor's keys.

Law: data only. A checkpoint fills it, `text` reads it; neither needs the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of token, as SentencePiece numbers them."""


@dataclass(frozen=True)
class TokenizerSource:
    """What a model file says about its tokens."""

    kind: Literal["bpe", "spm", "json"]
    """bpe: byte-level BPE with merges; spm: SentencePiece BPE with scores; json: a tokenizer.json of Hugging Face."""
    json_path: Path | None = None
    pieces: Sequence[str] = ()
    """Piece of each id (bpe: in the byte-to-unicode alphabet; spm: with U+2581 for a space)."""
    scores: NDArray[np.float32] | None = None
    types: NDArray[np.int32] | None = None
    """Kind of each id: NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED or BYTE."""
    merges: Sequence[str] | None = None
    """"left right", best first."""
    pre: str = ""
    """Name of the pre-tokenizer, as GGUF spells it (smollm, llama-bpe, gpt-2, qwen2 ...)."""
    pattern: str = ""
    """The regular expression that cuts text into words, where the file states it; `pre` counts for nothing then."""
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    pad_id: int | None = None
    eot_ids: tuple[int, ...] = field(default=())
    """Every id that ends an answer: end of text, end of turn."""
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    chat_template: str | None = None
