"""PagePool: which page of the KV cache belongs to whom, and which pages may be found again by their tokens.

Law: a page is free, cached or held, and never two of these. Free: its content means nothing. Cached: nobody holds it,
but its tokens are known, so a prompt that begins alike may take it; the least recently used is given away first.
Held: it has as many references as sequences that list it. A page is found by the SHA-256 of its tokens and of all
before them, and its token ids are compared on a hit, so that a prefix is never taken for another. The chain begins at a
root that only this pool can make, another for each tenant: what one has computed, no other finds.
"""

from __future__ import annotations

import hmac
import secrets
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256

from pellucid.errors import EngineError
from pellucid.kv.map import View


class PagePool:
    """Pages 0..page_count-1, each for `page_size` tokens of all layers. Not thread-safe: the engine owns it."""

    def __init__(self, page_count: int, page_size: int, *, prefix_cache: bool = True, content: str = "") -> None:
        """Make the pool, all of it free.

        Args:
            page_count: how many pages there are.
            page_size: tokens of a page.
            prefix_cache: let prompts find pages again.
            content: what the pages hold, beside tokens: the model and the format.
        """
        self._content = content
        self._secret = secrets.token_bytes(32)
        """Drawn at the start and never told, so that no digest can be made or guessed elsewhere."""
        self.page_count = page_count
        self.page_size = page_size
        self.prefix_cache = prefix_cache
        self._free = list(range(page_count - 1, -1, -1))
        self._cached: dict[int, None] = {}
        """Cached pages, least recently used first."""
        self._refs = [0] * page_count
        self._by_digest: dict[bytes, int] = {}
        self._digest: list[bytes | None] = [None] * page_count
        self._tokens: list[bytes | None] = [None] * page_count
        self._since = [0.0] * page_count
        """When a page was last taken, or kept by the cache alone; of time.monotonic()."""
        self.evictions = 0

    @property
    def available(self) -> int:
        """Pages that `take` can give: the free and the cached."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """Pages that sequences hold."""
        return self.page_count - len(self._free) - len(self._cached)

    @property
    def cached(self) -> int:
        """Pages that nobody holds and a prompt may find."""
        return len(self._cached)

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` tokens fill or begin."""
        return -(-tokens // self.page_size)

    def root(self, tenant: str = "", salt: str = "") -> bytes:
        """Digest of the empty prefix of a tenant. A client's `salt` parts what the tenant would else share."""
        parts = [part.encode("utf-8", "surrogatepass") for part in (tenant, salt, self._content)]
        # Each part after its length: no two triples make one message.
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._secret, message, "sha256")

    def digest_to(self, digests: list[bytes], tokens: Sequence[int], pages: int, root: bytes) -> None:
        """Extend the hash chain `digests` of `tokens`, from `root`, in place, until it covers `pages` full pages."""
        size = self.page_size
        parent = digests[-1] if digests else root
        for page in range(len(digests), pages):
            parent = sha256(parent + array("i", tokens[page * size : (page + 1) * size]).tobytes()).digest()
            digests.append(parent)

    def match(self, digests: Sequence[bytes], tokens: Sequence[int], limit: int) -> list[int]:
        """Take the longest run of leading full pages that are known, at most `limit`; each gets a reference."""
        found: list[int] = []
        if not self.prefix_cache:
            return found
        size, now = self.page_size, time.monotonic()
        for index in range(limit):
            page = self._by_digest.get(digests[index])
            if page is None or self._tokens[page] != array("i", tokens[index * size : (index + 1) * size]).tobytes():
                break
            if self._refs[page] == 0:
                del self._cached[page]
                self._since[page] = now
            self._refs[page] += 1
            found.append(page)
        return found

    def take(self, count: int) -> list[int]:
        """Give `count` pages, each with one reference. Raises EngineError, and gives none, if there are not so many."""
        if count > self.available:
            raise EngineError(
                f"{count} pages were asked for and {self.available} are there; the scheduler must look first"
            )
        taken: list[int] = []
        now = time.monotonic()
        for _ in range(count):
            if self._free:
                page = self._free.pop()
            else:
                page = next(iter(self._cached))
                del self._cached[page]
                self._forget(page)
                self.evictions += 1
            self._refs[page] = 1
            self._since[page] = now
            taken.append(page)
        return taken

    def publish(self, page: int, digest: bytes, tokens: Sequence[int]) -> None:
        """Let prompts find the full held `page` of `tokens`. If another page has that digest, it stays that one."""
        if self.prefix_cache and self._digest[page] is None and digest not in self._by_digest:
            self._by_digest[digest] = page
            self._digest[page] = digest
            self._tokens[page] = array("i", tokens).tobytes()

    def release(self, pages: Sequence[int]) -> None:
        """Give back one reference of each page. The last of the row become the least recently used: tails go first."""
        now = time.monotonic()
        for page in reversed(pages):
            refs = self._refs[page] - 1
            if refs < 0:
                raise EngineError(f"page {page} is given back more often than it was taken")
            self._refs[page] = refs
            if refs == 0:
                if self._digest[page] is None:
                    self._free.append(page)
                else:
                    self._cached[page] = None
                    self._since[page] = now

    def truncate(self, pages: list[int], length: int) -> None:
        """Cut the page table `pages`, in place, to what `length` tokens need, and give back the rest.

        If the cut falls inside a page that prompts could find, that page is forgotten, since it will be written again.
        Raises EngineError if another sequence holds that page.
        """
        keep = self.pages_for(length)
        self.release(pages[keep:])
        del pages[keep:]
        if length % self.page_size and keep <= len(pages):
            last = pages[-1]
            if self._refs[last] > 1:
                raise EngineError(f"page {last} is shared and cannot be cut at token {length}")
            self._forget(last)

    def clear(self) -> None:
        """Forget every cached page; held pages stay, and stay known."""
        for page in self._cached:
            self._forget(page)
            self._free.append(page)
        self._cached.clear()

    def view(self) -> View:
        """Copy what the map of the pages is drawn from: a few lists, quick enough between two steps."""
        return View(
            at=time.monotonic(),
            page_size=self.page_size,
            free=len(self._free),
            cached=self.cached,
            used=self.used,
            evictions=self.evictions,
            refs=self._refs.copy(),
            digests=self._digest.copy(),
            since=self._since.copy(),
        )

    def _forget(self, page: int) -> None:
        digest = self._digest[page]
        if digest is not None:
            del self._by_digest[digest]
            self._digest[page] = self._tokens[page] = None

    def check(self, holders: Iterable[Sequence[int]] | None = None) -> None:
        """Raise EngineError if an invariant is broken.

        Args:
            holders: the page tables of all sequences; if given, the references must be exactly theirs.
        """

        def want(truth: bool, what: str) -> None:
            if not truth:
                raise EngineError(f"the page pool is inconsistent: {what}")

        free, cached = set(self._free), set(self._cached)
        want(len(free) == len(self._free), "a page is free twice")
        want(not free & cached, "a page is both free and cached")
        for page in range(self.page_count):
            refs, digest = self._refs[page], self._digest[page]
            idle = page in free or page in cached
            want(
                refs >= 0 and (refs == 0) == idle,
                f"page {page} has {refs} references and is {'idle' if idle else 'lost'}",
            )
            want(not (page in free and digest is not None), f"page {page} is free and still known")
            want(not (page in cached and digest is None), f"page {page} is cached and not known")
            want(
                (digest is None) == (self._tokens[page] is None),
                f"page {page} has a digest without tokens, or the reverse",
            )
            want(digest is None or self._by_digest.get(digest) == page, f"page {page} is not found by its digest")
        want(len(self._by_digest) == sum(d is not None for d in self._digest), "a digest leads to a page that lost it")
        if holders is not None:
            counts = Counter(page for pages in holders for page in pages)
            for page in range(self.page_count):
                want(
                    counts[page] == self._refs[page],
                    f"page {page}: {self._refs[page]} references, {counts[page]} holders",
                )
