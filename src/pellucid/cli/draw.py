"""Drawing for the terminal: heat maps, bars, strips.

Law: a pipe gets plain text with the same numbers; colour adds nothing that a mark does not say. Colours are Cividis,
which reads alike with every kind of colour vision (Nuñez et al. 2018).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pellucid.cli.inputs import visible

CIVIDIS = (
    (0, 32, 76), (0, 51, 111), (57, 72, 107), (87, 92, 109), (112, 113, 115),
    (138, 135, 121), (166, 157, 117), (196, 181, 108), (228, 207, 91), (255, 234, 70),
)  # fmt: skip
SHADES = " .:-=+*#%@"
"""From nothing to all, where there is no colour."""
BAR = "█"


def coloured() -> bool:
    """Whether standard output shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns to draw in."""
    from shutil import get_terminal_size

    return max(40, get_terminal_size((100, 24)).columns)


def shade(share: float) -> str:
    """One cell, two columns wide, of a value in 0 to 1."""
    share = min(1.0, max(0.0, share if share == share else 0.0))
    if not coloured():
        return SHADES[min(len(SHADES) - 1, int(share * len(SHADES)))] * 2
    place = share * (len(CIVIDIS) - 1)
    low = min(int(place), len(CIVIDIS) - 2)
    r, g, b = (round(x + (y - x) * (place - low)) for x, y in zip(CIVIDIS[low], CIVIDIS[low + 1], strict=True))
    return f"\x1b[48;2;{r};{g};{b}m  \x1b[0m"


def heat(
    values: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], low: float, high: float, unit: str
) -> None:
    """Print a map: a cell for each value, labels on the left and numbers on top; every second one of more than ten."""
    label = max((cells(r) for r in rows), default=0)
    if columns:
        each = 1 if len(columns) <= 10 else 2
        heads = (c[:2].rjust(2) if i % each == 0 else "  " for i, c in enumerate(columns))
        print((" " * label + " " + "".join(heads)).rstrip())
    span = (high - low) or 1.0
    for name, row in zip(rows, values, strict=True):
        print(pad(name, label) + " " + "".join(shade((v - low) / span) for v in row))
    scale = "".join(shade(i / 9) for i in range(10))
    print(f"{' ' * label} {low:.3g} {scale} {high:.3g} {unit}".rstrip())


def bar(value: float, most: float, columns: int = 24) -> str:
    """A bar of a value of either sign, as long as its share of `most`."""
    from pellucid.cli import layout

    length = 0 if not most else round(min(1.0, abs(value) / most) * columns)
    text = (BAR * length).ljust(columns)
    return layout.styled(text, "33" if value < 0 else "36")


def cells(text: str) -> int:
    """Columns that a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def pad(text: str, columns: int) -> str:
    """A text at the left of so many columns."""
    return text + " " * max(0, columns - cells(text))


def token(text: str, most: int = 24) -> str:
    """A token's text in quotes, on one line, cut to so many columns."""
    shown = visible(text).replace("\n", "␊").replace("\t", "␉")
    while cells(shown) > most:
        shown = shown[: max(1, len(shown) - 2)] + "…" if not shown.endswith("…") else shown[:-2] + "…"
    return f"'{shown}'"


def percent(share: float) -> str:
    """A share of 1 as people read it."""
    return f"{100 * share:.1f} %" if share >= 0.001 or share == 0 else f"{100 * share:.1e} %"
