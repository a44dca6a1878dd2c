"""Pre-tokenizers of byte-level vocabularies: how text is cut into words before its merges are applied.

Law: one entry a name of GGUF's `tokenizer.ggml.pre`; the entry cuts text exactly as the model's own tokenizer does.
Sources: Hugging Face's tokenizer.json of each family (the truth where llama.cpp adapts a pattern to its own engine);
llama.cpp's src/llama-vocab.cpp for `default` and for which names are the same. A name that is not here is refused, for
a cut that is nearly right shows as a model that is slightly worse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_TAIL}"
_QWEN = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased(ending: str, digits: str) -> str:
    """Words end where lower case turns to upper; `ending` is what may follow a word."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{lead}{_UPPER}*{_LOWER}+{ending}|{lead}{_UPPER}+{_LOWER}*{ending}"
    return f"{words}|{digits}{_CASED_TAIL}"


_O200K = _cased(f"{_CONTRACTION}?", r"\p{N}{1,3}")
_TEKKEN = _cased("", r"\p{N}")
_KANA_HAN = "[一-龥\u3040-ゟ゠-ヿ]+"
_HAN_HANGUL = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASED_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
"""DeepSeek LLM's own list: letters that have a case."""


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


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return _bytes(use_regex=True)


def _of(*patterns: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """Cuts by one pattern after the other, each inside the pieces of those before it; then bytes."""
    return lambda: _sequence(*map(_regex, patterns), _bytes())


def _deepseek_llm() -> pre_tokenizers.PreTokenizer:
    return _sequence(
        _regex("[\r\n]"),
        _regex(rf"\s?[{_CASED_LETTERS}]+"),
        _regex(r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"),
        _regex(r"\s+$"),
        _regex(_HAN_HANGUL),
        pre_tokenizers.Digits(individual_digits=True),
        _bytes(),
    )


def _deepseek_coder() -> pre_tokenizers.PreTokenizer:
    return _sequence(
        _regex("[\r\n]"),
        _regex(r"\s?\p{L}+"),
        _regex(r"\s?\p{P}+"),
        _regex(_HAN_HANGUL),
        pre_tokenizers.Digits(individual_digits=True),
        _bytes(),
    )


def _falcon() -> pre_tokenizers.PreTokenizer:
    # The two cuts of digits come behind the bytes: a byte whose letter is a digit, such as that of U+00B2, counts.
    return _sequence(
        pre_tokenizers.Punctuation("contiguous"),
        _bytes(use_regex=True),
        pre_tokenizers.Digits(individual_digits=False),
        _regex("[0-9][0-9][0-9]"),
    )


def _default() -> pre_tokenizers.PreTokenizer:
    return _sequence(
        _regex(r"[\p{P}\$\+<=>\^~\|]+"),
        _regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
        _regex(r"\p{N}+"),
        _regex(r"[0-9][0-9][0-9]"),
        _bytes(),
    )


def _digits_gpt2() -> pre_tokenizers.PreTokenizer:
    return _sequence(pre_tokenizers.Digits(individual_digits=True), _bytes(use_regex=True))


_LLAMA3 = Pretokenizer(_of(_LLAMA), ignore_merges=True)
_CL100K = Pretokenizer(_of(_LLAMA))
_STARCODER = Pretokenizer(_digits_gpt2)
_GPT2 = Pretokenizer(_gpt2)
_QWEN2 = Pretokenizer(_of(_QWEN), normalizer=normalizers.NFC)
_O200K_WORDS = Pretokenizer(_of(_O200K), ignore_merges=True)

PRETOKENIZERS: dict[str, Pretokenizer] = {
    "default": Pretokenizer(_default),
    # Llama 3, SmolLM3, and what llama.cpp treats alike
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    # cl100k's cut with merges that say all: DBRX, OLMo 2 and 3, Phi 4
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": Pretokenizer(_of(_QWEN35), normalizer=normalizers.NFC),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    # GPT-NeoX's: OLMo and OLMoE
    "olmo": Pretokenizer(_gpt2, normalizer=normalizers.NFC),
    "starcoder": _STARCODER,
    "smollm": _STARCODER,
    # Refact; Granite's GGUF files name it, too
    "refact": _STARCODER,
    "command-r": Pretokenizer(_digits_gpt2, normalizer=normalizers.NFC),
    "falcon": Pretokenizer(_falcon),
    "tekken": Pretokenizer(_of(_TEKKEN), ignore_merges=True),
    # o200k: gpt-oss, Phi 4-mini, Llama 4
    "gpt-4o": _O200K_WORDS,
    "llama4": _O200K_WORDS,
    "deepseek-llm": Pretokenizer(_deepseek_llm),
    "deepseek-coder": Pretokenizer(_deepseek_coder),
    "deepseek-v3": Pretokenizer(_of(r"\p{N}{1,3}", _KANA_HAN, _DEEPSEEK3)),
}


def by_pattern(pattern: str) -> Pretokenizer:
    """For vocabularies that bring their own pattern, as tiktoken's do: whole words skip the merges there."""
    return Pretokenizer(_of(pattern), ignore_merges=True)
