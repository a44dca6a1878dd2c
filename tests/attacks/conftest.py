"""What attacks are made on: the server of tests/server, and the tokenizers of tests/text."""

from server.conftest import _nothing_is_left, live
from text.conftest import source_of, tokenizer_of

__all__ = ["_nothing_is_left", "live", "source_of", "tokenizer_of"]
