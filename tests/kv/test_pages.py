from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.errors import EngineError
from pellucid.kv.pages import PagePool


def fill(pool, tokens):
    """Do what a sequence does: match, take the rest, publish the full pages."""
    digests = []
    full = len(tokens) // pool.page_size
    pool.digest_to(digests, tokens, full, pool.root())
    pages = pool.match(digests, tokens, full)
    hits = len(pages)
    pages += pool.take(pool.pages_for(len(tokens)) - hits)
    for index in range(hits, full):
        pool.publish(pages[index], digests[index], tokens[index * pool.page_size : (index + 1) * pool.page_size])
    return pages, hits


def test_a_prefix_is_found_again_by_full_pages():
    pool = PagePool(8, 4)
    first, hits = fill(pool, list(range(10)))
    assert (len(first), hits) == (3, 0)
    second, hits = fill(pool, [*range(8), 99, 98])
    assert hits == 2
    assert second[:2] == first[:2]
    assert second[2] != first[2]
    pool.check([first, second])
    pool.release(first)
    pool.check([second])
    pool.release(second)
    pool.check([])
    assert (pool.used, pool.cached, pool.available) == (0, 2, 8)


def test_a_page_counts_only_with_all_that_came_before():
    pool = PagePool(8, 4)
    pages, _ = fill(pool, [1, 1, 1, 1, 2, 2, 2, 2])
    pool.release(pages)
    _, hits = fill(pool, [3, 3, 3, 3, 2, 2, 2, 2])
    assert hits == 0


def test_tokens_are_compared_on_a_hit():
    pool = PagePool(4, 2)
    pages = pool.take(1)
    pool.publish(pages[0], b"same digest", [1, 2])
    assert pool.match([b"same digest"], [1, 3], 1) == []
    assert pool.match([b"same digest"], [1, 2], 1) == pages
    pool.check([pages, pages])


def test_the_least_recently_used_goes_first_and_tails_before_heads():
    pool = PagePool(4, 1)
    old, _ = fill(pool, [1, 2])
    new, _ = fill(pool, [5, 6])
    pool.release(old)
    pool.release(new)
    assert pool.take(1) == [old[1]]
    assert fill(pool, [1])[0] == [old[0]]  # used again: now the latest
    assert pool.take(1) == [new[1]]
    assert pool.evictions == 2


def test_without_the_cache_nothing_is_kept():
    pool = PagePool(4, 2, prefix_cache=False)
    pages, _ = fill(pool, [1, 2, 3, 4])
    pool.release(pages)
    assert pool.cached == 0
    assert fill(pool, [1, 2, 3, 4])[1] == 0


def test_truncate_cuts_and_forgets_the_page_it_cuts_into():
    pool = PagePool(8, 4)
    pages, _ = fill(pool, list(range(12)))
    pool.truncate(pages, 8)
    assert len(pages) == 2
    pool.check([pages])
    pool.truncate(pages, 6)
    assert len(pages) == 2
    pool.check([pages])
    other, hits = fill(pool, list(range(8)))
    assert hits == 1  # the second page will be written again and may not be found
    with pytest.raises(EngineError, match="shared"):
        pool.truncate(other, 2)
    pool.truncate(pages, 0)
    assert pages == []


def test_clear_forgets_what_nobody_holds():
    pool = PagePool(8, 4)
    held, _ = fill(pool, list(range(8)))
    gone, _ = fill(pool, list(range(50, 58)))
    pool.release(gone)
    pool.clear()
    pool.check([held])
    assert pool.cached == 0
    assert fill(pool, list(range(8)))[1] == 2


def test_misuse_is_an_error():
    pool = PagePool(2, 4)
    pages = pool.take(2)
    with pytest.raises(EngineError, match="1 pages"):
        pool.take(1)
    pool.release(pages)
    with pytest.raises(EngineError, match="more often"):
        pool.release(pages[:1])


def test_check_sees_a_leak():
    pool = PagePool(4, 4)
    pages = pool.take(2)
    with pytest.raises(EngineError, match="holders"):
        pool.check([pages[:1]])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 12), st.integers(1, 4))
def test_any_order_of_events_keeps_the_invariants(seed, page_count, page_size):
    rng = random.Random(seed)
    pool = PagePool(page_count, page_size)
    held = []
    for _ in range(120):
        if held and (rng.random() < 0.4 or pool.available < 2):
            pages = held.pop(rng.randrange(len(held)))
            pool.truncate(pages, 0)
        elif rng.random() < 0.03:
            pool.clear()
        else:
            tokens = [rng.randrange(2) for _ in range(rng.randint(1, page_size * 3))]
            if pool.pages_for(len(tokens)) <= pool.available:
                held.append(fill(pool, tokens)[0])
        pool.check(held)
    for pages in held:
        pool.release(pages)
    pool.check([])
    assert pool.available == page_count
