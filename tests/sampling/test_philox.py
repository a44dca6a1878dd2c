"""Philox against the vectors its authors publish (Random123, kat_vectors), and native against Python."""

from __future__ import annotations

import pytest

from pellucid import _core
from pellucid.sampling.philox import Stage, bits53, philox4x32, uniform

FULL = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((FULL,) * 4, (FULL, FULL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, words):
    assert philox4x32(counter, key) == words


def test_native_equals_python():
    for seed in (0, 1, 2**32 + 5, 2**63 - 1, 2**64 - 1):
        for choice in (0, 7):
            for position in (0, 1, 4095, 2**33):
                assert _core.philox_bits53(seed, choice, position, 0) == bits53(seed, choice, position)


def test_negative_seeds_are_taken_modulo_two_to_the_64():
    assert bits53(-1, 0, 0) == bits53(2**64 - 1, 0, 0)


def test_numbers_are_even_and_differ_by_every_part_of_the_key():
    values = [uniform(3, choice, position, Stage.DRAW) for choice in range(4) for position in range(1000)]
    assert len(set(values)) == 4000
    assert 0.0 <= min(values) < max(values) < 1.0
    assert abs(sum(values) / 4000 - 0.5) < 0.02
