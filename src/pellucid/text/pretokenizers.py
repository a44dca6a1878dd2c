"""Pre-tokenizers of byte-level vocabularies: how text is cut into words before its merges are applied.

Law: one entry a name of GGUF's `tokenizer.ggml.pre`; the entry cuts text exactly as the model's own tokenizer does.
Sources: Hugging Face's tokenizer.json of each family; llama.cpp's regular expressions for `default`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_TAIL}"
_QWEN = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_TAIL}"


@dataclass(frozen=True)
class Pretokenizer:
    """What stands before the merges: the cut into words, normalization, and whether whole words skip the merges."""

    split: Callable[[], pre_tokenizers.PreTokenizer]
    normalizer: Callable[[], normalizers.Normalizer] | None = None
    ignore_merges: bool = False
    """A word that is itself a piece becomes that piece, whatever its merges would give."""


def _regex(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _bytes(*, use_regex: bool = False) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _sequence(*parts: pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(list(parts))


def _smollm() -> pre_tokenizers.PreTokenizer:
    return _sequence(pre_tokenizers.Digits(individual_digits=True), _bytes(use_regex=True))


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return _bytes(use_regex=True)


def _llama() -> pre_tokenizers.PreTokenizer:
    return _sequence(_regex(_LLAMA), _bytes())


def _qwen() -> pre_tokenizers.PreTokenizer:
    return _sequence(_regex(_QWEN), _bytes())


def _default() -> pre_tokenizers.PreTokenizer:
    return _sequence(
        _regex(r"[\p{P}\$\+<=>\^~\|]+"),
        _regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
        _regex(r"\p{N}+"),
        _regex(r"[0-9][0-9][0-9]"),
        _bytes(),
    )


PRETOKENIZERS: dict[str, Pretokenizer] = {
    "smollm": Pretokenizer(_smollm),
    "gpt-2": Pretokenizer(_gpt2),
    "llama-bpe": Pretokenizer(_llama, ignore_merges=True),
    "qwen2": Pretokenizer(_qwen, normalizer=normalizers.NFC),
    "default": Pretokenizer(_default),
}
