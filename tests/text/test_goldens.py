"""Ids equal Hugging Face's on the adversarial corpus, read as tokens and as text."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pellucid.text.tokenizer import Tokenizer
from text.corpus import corpus

GOLDEN = Path(__file__).parent.parent / "golden"
GOLDENS = {
    "smollm2": "tokens_smollm2-135m.json",
    "qwen-0.5b": "tokens_qwen2.5-coder-0.5b.json",
    "gemma3-270m": "tokens_gemma-3-270m.json",
}


def packed(ids: list[int]) -> list[int] | str:
    if len(ids) <= 200:
        return ids
    return f"{len(ids)}:{hashlib.sha256(struct.pack(f'<{len(ids)}i', *ids)).hexdigest()}"


@pytest.mark.parametrize("name", GOLDENS)
@pytest.mark.parametrize("how", ["parsed", "as_text"])
def test_ids_equal_hugging_face(name: str, how: str, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    texts = corpus()
    golden = json.loads((GOLDEN / GOLDENS[name]).read_text(encoding="utf-8"))
    assert golden["corpus_sha256"] == hashlib.sha256("\0".join(texts).encode()).hexdigest(), "remake the goldens"
    rows = tokenizer_of(name).encode_batch(texts, add_special=False, parse_special=how == "parsed")
    apart = [(text[:80], packed(row), want) for text, row, want in zip(texts, rows, golden[how], strict=True)
             if packed(row) != want]  # fmt: skip
    assert apart == []
