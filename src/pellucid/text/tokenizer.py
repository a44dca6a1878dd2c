"""Text to token ids and back, with every step open to look at.

Law: ids equal Hugging Face's; bytes are the truth (text is the bytes of its tokens read as UTF-8, what is malformed
becomes U+FFFD). A spelling of a control token in a text is text unless the caller says `parse_special`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pellucid.errors import ContextLengthError, RequestError
from pellucid.models.tokens import TokenizerSource
from pellucid.text.merges import Merge, MergeTable
from pellucid.text.vocab import SPACE, Added, Vocabulary, build_vocabulary

_LONG = 2048
"""Characters above which encoding goes through the batch call, which frees the GIL."""


def _byte_alphabet() -> dict[str, int]:
    """The characters in which byte-level vocabularies spell bytes (GPT-2's table)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in visible}
    hidden = (byte for byte in range(256) if chr(byte) not in table)
    return table | {chr(0x100 + n): byte for n, byte in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()


@dataclass(frozen=True)
class TokenInfo:
    """One token of an encoded text."""

    id: int
    piece: str
    bytes: bytes
    offsets: tuple[int, int]
    """Characters of the text that it covers, end exclusive; (0, 0) for what the tokenizer adds itself. Tokens that
    share a character have the same offsets."""
    special: bool
    merges: tuple[Merge, ...]
    """The merges that made it, in the order in which they happened; none for a single symbol, an added token, or a
    whole word that skips the merges."""


class Tokenizer:
    """The tokenizer of one model. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, source: TokenizerSource) -> None:
        self._vocabulary = vocabulary
        self._bytes: dict[int, bytes] = {}
        self._merges: MergeTable | None = None
        self._control = frozenset(token.id for token in vocabulary.added.values() if token.control)
        self._breakable = self._control - {vocabulary.unknown}
        self.vocab_size: int = vocabulary.size
        self.bos_id: int | None = source.bos_id
        self.eos_id: int | None = source.eos_id
        ends = source.eot_ids if source.eos_id is None else (source.eos_id, *source.eot_ids)
        self.stop_ids: frozenset[int] = frozenset(ends)

    @classmethod
    def from_source(cls, source: TokenizerSource) -> Tokenizer:
        """Build from a model's vocabulary. Raises ModelFileError or UnsupportedModelError."""
        return cls(build_vocabulary(source), source)

    @property
    def added(self) -> dict[int, Added]:
        """Control and user-defined tokens by id."""
        return self._vocabulary.added

    @property
    def strips_first_space(self) -> bool:
        """A text's first space is the tokenizer's own, and decoding drops it."""
        return self._vocabulary.strip_first_space

    @property
    def prefix(self) -> tuple[int, ...]:
        """Ids that `encode` puts before a text (its BOS)."""
        return self._vocabulary.prefix

    @cached_property
    def longest_piece(self) -> int:
        """Bytes of the longest piece of the vocabulary, as it is spelled: no token adds more to a text."""
        return max(len(self.token_text(token).encode()) for token in range(self.vocab_size))

    def check_fits(self, text: str, context: int) -> None:
        """Raise ContextLengthError for a text that cannot fit so many tokens; it need not be encoded then.

        A token covers no more bytes than the longest piece has; composing characters (NFC) leaves a third of them or
        more.
        """
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > 16 * context and size > 3 * self.longest_piece * context:
            raise ContextLengthError(
                f"This model's maximum context length is {context} tokens. However, your prompt has {size} bytes. "
                "Please reduce the length of the prompt.",
                param="prompt",
            )

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Ids of a text.

        add_special: put the model's BOS and EOS around it, where the model wants them.
        parse_special: read spellings of control tokens as those tokens; otherwise they are text.
        Raises RequestError for a text with a lone surrogate, which has no UTF-8.
        """
        return self.encode_batch([text], add_special=add_special, parse_special=parse_special)[0]

    def encode_batch(
        self, texts: Sequence[str], *, add_special: bool = True, parse_special: bool = False
    ) -> list[list[int]]:
        """Ids of several texts, as `encode` gives them; long ones are encoded with the GIL released."""
        for text in texts:
            _require_unicode(text)
        engine = self._vocabulary.engine if parse_special else self._vocabulary.text_engine
        if sum(map(len, texts)) < _LONG:
            rows = [engine.encode(text, add_special_tokens=False).ids for text in texts]
        else:
            rows = [row.ids for row in engine.encode_batch_fast(list(texts), add_special_tokens=False)]
        if not parse_special:
            rows = list(map(self._safe, rows))
        if add_special:
            rows = [[*self._vocabulary.prefix, *row, *self._vocabulary.suffix] for row in rows]
        return rows

    def encode_after_control(self, text: str) -> list[int]:
        """Ids of text that stands after a control token: some tokenizers put a space only before the very first."""
        engine = self._vocabulary.middle_engine
        if engine is None:
            return self.encode(text, add_special=False)
        _require_unicode(text)
        return self._safe(engine.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ids. Raises RequestError for an id that the vocabulary does not have."""
        parts = [b"" if skip_special and token in self._control else self.token_bytes(token) for token in ids]
        text = b"".join(parts).decode("utf-8", errors="replace")
        return text[1:] if self.strips_first_space and text.startswith(" ") else text

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token adds to a text. Raises RequestError for an id out of range."""
        known = self._bytes.get(id)
        if known is None:
            known = self._bytes[id] = self._spelled(self.token_text(id), id)
        return known

    def token_text(self, id: int) -> str:
        """A token's piece, as the vocabulary spells it. Raises RequestError for an id out of range."""
        if not 0 <= id < self.vocab_size:
            raise RequestError(f"token id {id} is not in the vocabulary; ids run from 0 to {self.vocab_size - 1}")
        return self._vocabulary.piece(id)

    def is_special(self, id: int) -> bool:
        """Whether an id is a control token."""
        return id in self._control

    def explain(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[TokenInfo]:
        """Each token of a text with its bytes, place and merges; ids as `encode` gives them."""
        ids = self.encode(text, add_special=False, parse_special=parse_special)
        engine = self._vocabulary.engine if parse_special else self._vocabulary.text_engine
        encoding = engine.encode(text, add_special_tokens=False)
        if encoding.ids != ids:  # a control token's spelling was broken by `_broken`: no places from the library
            offsets, words = [(0, len(text))] * len(ids), list[int | None](range(len(ids)))
        else:
            offsets, words = encoding.offsets, encoding.word_ids
        edges = (self._vocabulary.prefix, self._vocabulary.suffix) if add_special else ((), ())
        steps = self._steps(ids, words)
        return [
            *(self._info(token, (0, 0), ()) for token in edges[0]),
            *(self._info(token, place, made) for token, place, made in zip(ids, offsets, steps, strict=True)),
            *(self._info(token, (0, 0), ()) for token in edges[1]),
        ]

    def _info(self, token: int, offsets: tuple[int, int], merges: tuple[Merge, ...]) -> TokenInfo:
        return TokenInfo(
            token, self.token_text(token), self.token_bytes(token), offsets, self.is_special(token), merges
        )

    def _steps(self, ids: list[int], words: Sequence[int | None]) -> list[tuple[Merge, ...]]:
        """The merges of each token: its word's plain tokens are joined again and replayed."""
        steps: list[tuple[Merge, ...]] = []
        start = 0
        while start < len(ids):
            end = start + 1
            if self._is_plain(ids[start]):
                while end < len(ids) and words[end] == words[start] and self._is_plain(ids[end]):
                    end += 1
            steps.extend(self._replayed(ids[start:end]))
            start = end
        return steps

    def _replayed(self, ids: list[int]) -> list[tuple[Merge, ...]]:
        whole = self._vocabulary.ignore_merges and len(ids) == 1
        if whole or self._vocabulary.merges is None or not self._is_plain(ids[0]):
            return [()] * len(ids)
        if self._merges is None:
            self._merges = self._vocabulary.merges()
        parts = self._merges.replay("".join(map(self.token_text, ids)))
        return [part.merges for part in parts] if [part.id for part in parts] == ids else [()] * len(ids)

    def _is_plain(self, id: int) -> bool:
        vocabulary = self._vocabulary
        return id not in vocabulary.added and id not in vocabulary.bytes_of and id != vocabulary.unknown

    def _spelled(self, piece: str, id: int) -> bytes:
        if id in self._vocabulary.bytes_of:
            return bytes((self._vocabulary.bytes_of[id],))
        if self._vocabulary.spelling == "spaces":
            return piece.replace(SPACE, " ").encode()
        if self._vocabulary.spelling == "words":
            mark = self._vocabulary.continues
            goes_on = mark and piece.startswith(mark)
            alone = id in self._vocabulary.added and id != self._vocabulary.unknown
            return (piece[len(mark) :] if goes_on else piece if alone else f" {piece}").encode()
        if id not in self._vocabulary.added and all(char in _BYTE_OF for char in piece):
            return bytes(map(_BYTE_OF.__getitem__, piece))
        return piece.encode()

    def _safe(self, ids: list[int]) -> list[int]:
        return ids if self._breakable.isdisjoint(ids) else self._broken(ids)

    def _broken(self, ids: list[int]) -> list[int]:
        """The same text without control tokens: a merge, or a whole word, made one of them from plain text."""
        out: list[int] = []
        for token in ids:
            piece = self._vocabulary.piece(token)
            if token in self._breakable and len(piece) > 1:
                text = self.token_bytes(token).decode("utf-8", errors="replace")
                engine = self._vocabulary.text_engine
                for half in (text[:1], text[1:]):
                    out += self._broken(engine.encode(half, add_special_tokens=False).ids)
            else:
                out.append(token)
        return out


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}; "
            "send valid Unicode"
        ) from None
