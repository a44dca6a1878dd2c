"""Searches for the scales that lose least: of a symmetric grid, of one with a minimum, of a table of values.

Law: each tries a fixed list of grids, and for each takes the scale by weighted least squares; the best is kept. Rows
are blocks; results are (n, 1).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pellucid.formats.bits import Bytes, Floats, extreme, inverse


def _sum(values: Floats) -> Floats:
    return values.sum(axis=1, keepdims=True)


def fit_affine(x: Floats, top: int) -> tuple[Floats, Floats]:
    """Scale and minimum (both ≥ 0) that fit x ≈ scale · q - minimum, q in 0..top; large values weigh more."""
    w = np.sqrt((x * x).mean(axis=1, keepdims=True)) + np.abs(x)
    low = np.minimum(x.min(axis=1, keepdims=True), 0)
    span = x.max(axis=1, keepdims=True) - low
    scale: Floats = span / np.float32(top)
    minimum: Floats = -low
    best: Floats = np.full_like(scale, np.inf)
    sw, sx = _sum(w), _sum(w * x)
    for step in range(-1, 20):
        reach = np.float32(top) if step < 0 else np.float32(top - 1 + 0.1 * step)
        q = np.clip(np.rint((x - low) * (reach * inverse(span))), 0, top)
        sq, sqq = _sum(w * q), _sum(w * q * q)
        sqx = _sum(w * q * x)
        det = sw * sqq - sq * sq
        inverse_det = inverse(np.where(det > 0, det, 0).astype(np.float32))
        m = (sq * sqx - sqq * sx) * inverse_det
        s: Floats = np.where(m < 0, sqx * inverse(sqq), (sw * sqx - sx * sq) * inverse_det)
        m = np.maximum(m, np.float32(0))
        off = s * q - m - x
        error = _sum(w * off * off)
        better = (error < best) & (s > 0)
        best: Floats = np.where(better, error, best)
        scale: Floats = np.where(better, s, scale)
        minimum: Floats = np.where(better, m, minimum)
    return scale, minimum


def _best_scale(x: Floats, first: Floats, tries: Iterable[Floats]) -> Floats:
    """Of the scales that fit x to each of the tried grids, weighted by x², the one that gains most; else `first`."""
    w = x * x
    scale = first
    best = np.zeros_like(scale)
    for q in tries:
        sqx, sqq = _sum(w * q * x), _sum(w * q * q)
        s = sqx * inverse(sqq)
        gain = s * sqx
        better = gain > best
        best, scale = np.where(better, gain, best), np.where(better, s, scale)
    return scale


def fit_scale(x: Floats, top: int) -> Floats:
    """Scale, with a sign, that fits x ≈ scale · q, q in -top..top-1, weighted by x²."""
    most = extreme(x)
    reaches = (np.float32(-(top + 0.1 * step)) * inverse(most) for step in range(-9, 10))
    return _best_scale(x, most / np.float32(-top), (np.clip(np.rint(x * reach), -top, top - 1) for reach in reaches))


def nearest(x: Floats, table: Floats) -> Bytes:
    """Place in the ascending `table` of the value nearest to each of x."""
    return np.searchsorted((table[1:] + table[:-1]) / 2, x).astype(np.uint8)


def fit_table(x: Floats, table: Floats) -> Floats:
    """Scale, with a sign, that fits x ≈ scale · a value of the ascending `table`, weighted by x²."""
    most = extreme(x)
    ends = (end + np.float32(step) for end in (table[0], table[-1]) for step in range(-7, 8))
    return _best_scale(x, most / table[0], (table[nearest(x * (end * inverse(most)), table)] for end in ends))
