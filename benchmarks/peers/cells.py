"""Cells of a comparison as text, for the table on stdout and for the README's.

Law: a cell is as it stands in the JSON. One that does not count is struck through, with the reason.
"""

from __future__ import annotations

from statistics import median

from targets import Target

Cell = dict[str, object]


def told_of(cell: Cell | None) -> str:
    """A peer's rate and the ratio to it."""
    if cell is None:
        return ""
    if "ratio" not in cell:
        return "fails"
    text = f"{number(cell['theirs']):,.1f} ({number(cell['ratio']):.2f} ×)"
    return text if cell["counts"] else f"~~{text}~~ {reason(cell)}"


def reason(cell: Cell) -> str:
    """Why a cell does not count."""
    off = cell["perplexity_off"]
    return "no reference" if off is None else f"perplexity {number(off):+.0%}"


def best_of(cells: list[Cell]) -> Cell | None:
    """The cell of the fastest peer that counts."""
    return max((c for c in cells if c["counts"]), key=lambda c: number(c["theirs"]), default=None)


def share_of(cells: list[Cell], target: Target) -> str:
    """Our share of the roofline, of the one that the target speaks of."""
    key = "share_with_attention" if target.attention else "share_of_roofline"
    share = median(number(cell[key]) for cell in cells)
    return f"{share:.0%}" + _aimed(share, target.share, f"{target.share or 0:.0%}")


def ratio_of(cell: Cell, target: Target) -> str:
    """The ratio to a peer, and what was aimed at."""
    ratio = number(cell["ratio"])
    return f"{ratio:.2f} ×" + _aimed(ratio, target.ratio, f"{target.ratio or 0:g} ×")


def _aimed(value: float, target: float | None, text: str) -> str:
    return "" if target is None else f", aim {text} {'✓' if value >= target else '✗'}"


def percent(off: float | None) -> str:
    """A perplexity's distance from the reference's."""
    return "without a reference" if off is None else f"{off:+.2%}"


def number(value: object) -> float:
    """A number that JSON holds."""
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)
