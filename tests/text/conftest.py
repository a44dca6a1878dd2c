"""Tokenizers of the real models, each built once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pellucid.checkpoint.open import open_checkpoint
from pellucid.models.tokens import TokenizerSource
from pellucid.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def source_of(real_model: Callable[[str], Path]) -> Callable[[str], TokenizerSource]:
    @cache
    def source(name: str) -> TokenizerSource:
        checkpoint = open_checkpoint(real_model(name))
        try:
            return checkpoint.tokenizer
        finally:
            checkpoint.close()

    return source


@pytest.fixture(scope="session")
def tokenizer_of(source_of: Callable[[str], TokenizerSource]) -> Callable[[str], Tokenizer]:
    @cache
    def tokenizer(name: str) -> Tokenizer:
        return Tokenizer.from_source(source_of(name))

    return tokenizer
