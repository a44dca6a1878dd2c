"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): random, without a state.

Law: a number depends on (seed, choice, position, stage) and on nothing else, so a token drawn again is the same
token, in whatever batch, after whatever preemption, on whatever device.
"""

from __future__ import annotations

from enum import IntEnum

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF


class Stage(IntEnum):
    """What a random number is for; the last word of the counter."""

    DRAW = 0
    """The token itself."""
    XTC = 1
    """Whether the stage xtc acts."""


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return four 32-bit random words: ten rounds of Philox on a 128-bit counter and a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + W0) & MASK, (k1 + W1) & MASK
    return c0, c1, c2, c3


def bits53(seed: int, choice: int, position: int, stage: Stage = Stage.DRAW) -> int:
    """Return the 53 random bits of a key.

    The key is the seed modulo 2**64, low word first; the counter is (position low, position high, choice, stage).
    """
    w0, w1, _, _ = philox4x32(
        (position & MASK, position >> 32 & MASK, choice & MASK, int(stage)), (seed & MASK, seed >> 32 & MASK)
    )
    return (w1 << 32 | w0) >> 11


def uniform(seed: int, choice: int, position: int, stage: Stage = Stage.DRAW) -> float:
    """Return the float64 in [0, 1) that the 53 bits of a key make."""
    return bits53(seed, choice, position, stage) * 2.0**-53
