"""Values whose lives overlap never share memory, and memory is not wasted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pellucid.graph.arena import ALIGN, Life, place

LIVES = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(0, 40), st.integers(0, 12)).map(
        lambda t: Life(t[0], t[1], t[1] + t[2])
    ),
    max_size=40,
)


@given(LIVES)
def test_lives_that_meet_do_not_share(lives: list[Life]) -> None:
    offsets, total = place(lives)
    for i, a in enumerate(lives):
        assert offsets[i] % ALIGN == 0
        assert offsets[i] + a.nbytes <= total
        for j, b in enumerate(lives[:i]):
            if a.first <= b.last and b.first <= a.last:
                assert offsets[i] + a.nbytes <= offsets[j] or offsets[j] + b.nbytes <= offsets[i]


@given(LIVES)
def test_no_more_than_all_at_once(lives: list[Life]) -> None:
    _, total = place(lives)
    assert total <= sum(-(-life.nbytes // ALIGN) * ALIGN for life in lives)


def test_a_chain_needs_two_buffers() -> None:
    _, total = place([Life(640, i, i + 1) for i in range(100)])
    assert total == 2 * 640
