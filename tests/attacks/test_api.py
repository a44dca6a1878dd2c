"""The API against schemathesis and hypothesis, the short form; tests/long/test_attacks.py has the long one."""

from __future__ import annotations

from apifuzz import change_bodies, fuzz
from serving import Live


def test_no_request_of_the_schema_brings_a_5xx(live: Live) -> None:
    seen = fuzz(live, each=5, number=1)
    assert seen[200] > 5 and seen[400] > 30, seen


def test_no_changed_body_brings_a_5xx(live: Live) -> None:
    seen = change_bodies(live, count=120, number=1)
    assert seen[200] > 10 and seen[400] > 30, seen
