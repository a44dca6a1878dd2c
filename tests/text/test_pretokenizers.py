"""Names of pre-tokenizers against the tokenizers library with the `pre_tokenizer` and `normalizer` that each family's
own files state (pretokenizers.json): a tiny vocabulary is trained with those, and read by us by its name alone."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import trainers
from tokenizers.pre_tokenizers import ByteLevel

from pellucid.errors import UnsupportedModelError
from pellucid.models.tokens import NORMAL, TokenizerSource
from pellucid.text.pretokenizers import PRETOKENIZERS
from pellucid.text.tokenizer import Tokenizer
from text.corpus import LONG, SHORT, random_texts

PUBLISHED = json.loads(Path(__file__).with_name("pretokenizers.json").read_text())
ALIKE = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "falcon3": "llama-bpe",
    "pixtral": "llama-bpe",
    "smaug-bpe": "dbrx",
    "deepseek-r1-qwen": "qwen2",
    "phi-2": "gpt-2",
    "llama4": "gpt-4o",
}
"""Names for which llama.cpp cuts as for another."""
NUMBERS = ["1" * n for n in range(1, 14)] + [f"x{'7' * n} {'8' * n}y" for n in range(1, 9)]
CASES = [
    "XMLHttpRequest iPhone's IPhone'S McDonald DON'T don't ÉCOLE école Ǆ ǅ ǆ ʰa",
    "a/b//c\n/\n//x",
    "$x_y^2 <|a|> #!/",
]


@cache
def texts() -> list[str]:
    return [*SHORT, *NUMBERS, *CASES, *random_texts(120, seed=11), *(text[:500] for text in LONG)]


def library(name: str) -> Library:
    """A tokenizer as published but for its words, which are learnt from the texts."""
    published = PUBLISHED[name]
    model = {"type": "BPE", "vocab": {}, "merges": [], "ignore_merges": published["ignore_merges"]}
    parts = {key: published[key] for key in ("normalizer", "pre_tokenizer")}
    engine = Library.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model, **parts}))
    trainer = trainers.BpeTrainer(
        vocab_size=900, min_frequency=1, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    engine.train_from_iterator(texts(), trainer)
    return engine


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_text_is_cut_as_the_published_tokenizer_cuts_it(name: str) -> None:
    engine = library(name)
    model = json.loads(engine.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    types = np.full(len(pieces), NORMAL, np.int32)
    ours = Tokenizer.from_source(TokenizerSource("bpe", pieces=pieces, types=types, merges=merges, pre=name))
    apart = [
        text[:60]
        for text, row in zip(texts(), ours.encode_batch(texts(), add_special=False), strict=True)
        if row != engine.encode(text, add_special_tokens=False).ids
    ]
    assert apart == []


def test_every_name_is_published_or_like_one_that_is() -> None:
    assert set(PRETOKENIZERS) == {*PUBLISHED, *ALIKE, "default"}
    for name, other in ALIKE.items():
        assert PRETOKENIZERS[name] is PRETOKENIZERS[other]


def test_cuts_differ_between_families() -> None:
    """So that the oracle would notice a name that has another's entry."""
    cut = {
        name: tuple(tuple(piece for piece, _ in PRETOKENIZERS[name].split().pre_tokenize_str(text)) for text in texts())
        for name in PUBLISHED
    }
    alike = {frozenset(other for other in cut if cut[other] == cut[name]) for name in cut}
    assert {group for group in alike if len(group) > 1} == {
        frozenset({"starcoder", "smollm", "refact", "command-r"}),  # command-r composes characters first
        frozenset({"gpt-2", "olmo"}),  # olmo composes characters first
        frozenset({"llama-bpe", "dbrx"}),  # llama-bpe takes whole words
    }


def test_a_name_that_is_not_known_says_what_to_do() -> None:
    source = TokenizerSource("bpe", pieces=["a"], merges=[], pre="kimi-k2")
    with pytest.raises(UnsupportedModelError, match=r"'kimi-k2', which is not known; .* with --tokenizer"):
        Tokenizer.from_source(source)
