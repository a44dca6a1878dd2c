"""The page's files: fixed, cached by their digest, with a policy that lets nothing foreign in."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from pellucid.server.routes.page import FILES
from serving import Live, running


@pytest.fixture(scope="module")
def keyed() -> Iterator[Live]:
    with running(None, api_key="a-long-enough-key") as server:
        server.http.headers.pop("authorization")
        yield server


def test_the_page_needs_no_key_and_no_model(keyed: Live) -> None:
    for path, (_, kind) in FILES.items():
        answer = keyed.http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == kind
        assert answer.headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in answer.headers["content-security-policy"]
        again = keyed.http.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert keyed.http.get("/inspect/model").status_code == 401


def test_the_page_is_small(keyed: Live) -> None:
    whole = sum(len(gzip.compress(keyed.http.get(path).content, 9)) for path in FILES)
    assert whole <= 120 * 1024
