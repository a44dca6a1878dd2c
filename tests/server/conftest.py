"""Servers for the tests: a real one, on a thread and a free port, over the toy model or the real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving import Live, running
from toymodel import toy_llm


@pytest.fixture(scope="session")
def live() -> Iterator[Live]:
    """One server over the toy model, for all tests that need nothing special."""
    with toy_llm(max_seqs=16, kv_pages=256) as llm, running(llm) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no sequence is left, and the pages are right."""
    yield
    if "live" in request.fixturenames:
        request.getfixturevalue("live").settles()
