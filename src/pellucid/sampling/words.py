"""Words: strings of a request's parameters, as tokens of a model.

Law: a token is known by the bytes that it adds to a text. What is found here depends on the vocabulary and the strings
only, and is kept for the next request that asks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

KEPT = 16
"""Lists of breakers that are kept."""


@dataclass(frozen=True)
class Breaker:
    """Tokens at whose end a sequence breaker stands whole: one of `heads`, and then `tail`."""

    heads: frozenset[int]
    tail: tuple[int, ...] = ()

    def ends(self, tokens: Sequence[int], end: int) -> bool:
        """Return whether it stands right before tokens[end]."""
        head = end - len(self.tail) - 1
        return head >= 0 and tokens[head] in self.heads and tuple(tokens[head + 1 : end]) == self.tail


class Words:
    """Finds strings in one vocabulary. Safe to use from several threads."""

    def __init__(self, pieces: Callable[[], Sequence[bytes]], encode: Callable[[str], list[int]]) -> None:
        """Take a vocabulary; it is read when the first string comes.

        Args:
            pieces: gives the bytes that each token adds to a text.
            encode: ids of a text that stands within another.
        """
        self._read, self._encode = pieces, encode
        self._found: OrderedDict[tuple[str, ...], tuple[Breaker, ...]] = OrderedDict()
        self._lock = Lock()

    def breakers(self, strings: tuple[str, ...]) -> tuple[Breaker, ...]:
        """Return how these sequence breakers can end in tokens.

        Tokens that hold one whole are heads without a tail. A token that ends in the beginning of one is a head, and
        the tokens of its rest are the tail.
        """
        with self._lock:
            if (found := self._found.get(strings)) is not None:
                self._found.move_to_end(strings)
                return found
        whole: set[int] = set()
        split: dict[tuple[int, ...], set[int]] = {}
        for text in strings:
            data = text.encode()
            whole.update(id for id, piece in enumerate(self._pieces) if data in piece)
            for cut in range(1, len(text)):
                begins = text[:cut].encode()
                heads = {id for id in self._by_last[begins[-1]] if self._pieces[id].endswith(begins)}
                if heads:
                    split.setdefault(tuple(self._encode(text[cut:])), set()).update(heads)
        found = tuple(Breaker(frozenset(heads), tail) for tail, heads in [((), whole), *split.items()] if heads)
        with self._lock:
            self._found[strings] = found
            while len(self._found) > KEPT:
                self._found.popitem(last=False)
        return found

    def sequences(self, strings: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return how words are written in tokens, each way once: right behind what came before, and behind a space."""
        texts = (text.lstrip(" ") or text for text in strings)
        ways = (tuple(self._encode(begins + text)) for text in texts for begins in ("", " "))
        return tuple(dict.fromkeys(way for way in ways if way))

    @cached_property
    def _pieces(self) -> Sequence[bytes]:
        return self._read()

    @cached_property
    def _by_last(self) -> list[list[int]]:
        """Tokens by the last byte of what they add."""
        ids: list[list[int]] = [[] for _ in range(256)]
        for id, piece in enumerate(self._pieces):
            if piece:
                ids[piece[-1]].append(id)
        return ids
