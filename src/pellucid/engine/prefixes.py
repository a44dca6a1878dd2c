"""Why a prompt was found in the prefix cache only so far: memory of the prompts that were computed lately.

Law: it holds what is lost from the cache, too, so that "was given to others" is told from "was never there". Its
digests are unsalted, so that the same text of two tenants is seen to be the same; they never leave here. Bounded: the
oldest pages are forgotten first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice

import numpy as np

MOST_PAGES = 1 << 15
MOST_BYTES = 16 << 20
"""Of tokens; pages whose tokens are forgotten are still known."""
RECENT = 16
"""Prompts that are looked at where not even the first page is known."""


@dataclass(slots=True)
class Known:
    """Tokens that were computed for a sequence."""

    id: str
    tenant: str
    tokens: bytes
    """int32; empty after they were forgotten."""

    def __len__(self) -> int:
        return len(self.tokens) // 4


@dataclass(frozen=True, slots=True)
class CacheStory:
    """What the prefix cache had for a prompt, and what it had not."""

    could: int
    """Tokens that could have come from the cache: full pages, the last token left out."""
    cached: int
    evicted: int
    """Tokens that were computed lately, and whose pages were given to others since."""
    other_tenant: int
    """Tokens that were computed lately, for another tenant only."""
    not_looked_up: int
    """Tokens computed whatever the cache held: logprobs or the mean of the prompt were wanted, or there is no cache."""
    new: int
    """Tokens that nobody computed lately."""
    diverged_at: int | None
    """First token that differs from the nearest prompt; None: there is none, or this one goes on where that ends."""
    nearest: str | None
    """The sequence that begins most alike."""
    same_after: int
    """Tokens at the end that are the nearest prompt's, too: cached, if only the difference stood behind them."""


class Prefixes:
    """The pages of the last prompts and answers, by what they hold. The engine's thread owns it."""

    def __init__(self, page_size: int, most: int = MOST_PAGES) -> None:
        self._size = page_size
        self._most = most
        self._pages: OrderedDict[bytes, Known] = OrderedDict()
        self._held: deque[Known] = deque()
        self._bytes = 0

    def add(self, id: str, tenant: str, tokens: Sequence[int], first: int = 0) -> None:
        """Remember tokens that are computed; `first`: those before it are remembered already."""
        known = Known(id, tenant, array("i", tokens).tobytes())
        for index, digest in enumerate(self._chain(known.tokens)):
            if index >= first // self._size:
                self._pages[digest] = known
                self._pages.move_to_end(digest)
        self._held.append(known)
        self._bytes += len(known.tokens)
        while self._bytes > MOST_BYTES:
            oldest = self._held.popleft()
            self._bytes -= len(oldest.tokens)
            oldest.tokens = b""
        while len(self._pages) > self._most:
            self._pages.popitem(last=False)

    def story(self, tenant: str, prompt: Sequence[int], cached: int, *, looked_up: bool) -> CacheStory:
        """Say why `cached` tokens of a prompt came from the cache, and not more."""
        size = self._size
        data = array("i", prompt).tobytes()
        could = (len(prompt) - 1) // size * size
        evicted = other = 0
        nearest: Known | None = None
        for index, digest in enumerate(self._chain(data)):
            known = self._pages.get(digest)
            if known is None:
                break
            nearest = known
            if cached <= index * size < could:
                if known.tenant == tenant:
                    evicted += size
                else:
                    other += size
        missing = could - cached
        if not looked_up:
            unlooked, evicted, other = missing, 0, 0
        else:
            unlooked = 0
        if nearest is None:
            recent = islice(reversed(self._held), RECENT)
            nearest = max(recent, key=lambda k: (_common(data, k.tokens), _common_end(data, k.tokens)), default=None)
        diverged: int | None = None
        after = 0
        if nearest is not None:
            common = _common(data, nearest.tokens)
            if common < min(len(prompt), len(nearest)):
                diverged = common
                after = min(_common_end(data, nearest.tokens), len(prompt) - common - 1)
        return CacheStory(
            could=could,
            cached=cached,
            evicted=evicted,
            other_tenant=other,
            not_looked_up=unlooked,
            new=missing - evicted - other - unlooked,
            diverged_at=diverged,
            nearest=None if nearest is None else nearest.id,
            same_after=after,
        )

    def _chain(self, data: bytes) -> Iterator[bytes]:
        """Digests of the full pages of tokens, each over all before it."""
        step, parent = 4 * self._size, b""
        for at in range(0, len(data) - step + 1, step):
            parent = sha256(parent + data[at : at + step]).digest()
            yield parent


def _common(a: bytes, b: bytes) -> int:
    """Leading tokens that two rows of tokens share."""
    count = min(len(a), len(b)) // 4
    differ = np.frombuffer(a, np.int32, count) != np.frombuffer(b, np.int32, count)
    return int(differ.argmax()) if differ.any() else count


def _common_end(a: bytes, b: bytes) -> int:
    """Trailing tokens that two rows of tokens share."""
    count = min(len(a), len(b)) // 4
    if not count:
        return 0
    differ = (np.frombuffer(a, np.int32)[-count:] != np.frombuffer(b, np.int32)[-count:])[::-1]
    return int(differ.argmax()) if differ.any() else count
