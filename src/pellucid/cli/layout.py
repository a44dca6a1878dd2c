"""Columns and emphasis for commands that print facts.

Law: styling and the picture of control characters exist on a terminal only; a pipe gets plain text, whole, never cut.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pellucid.cli.run import visible

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"


def styled(text: str, code: str) -> str:
    """Text in a style (an ANSI code) when stdout is a terminal that may have one."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return f"\x1b[{code}m{text}\x1b[0m"
    return text


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print rows in columns as wide as their widest cell; `right` are the columns of figures."""
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        return "  ".join(cells).rstrip()

    print(styled(line(header), BOLD))
    for row in rows:
        print(line(row))


def facts(pairs: Sequence[tuple[str, str]], *, indent: int = 0) -> None:
    """Print names and values in two columns."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{' ' * indent}{styled(name.ljust(width), DIM)}  {visible(value)}".rstrip())


def home(path: Path) -> str:
    """A path with the home folder as ~."""
    try:
        return "~/" + str(path.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(path)


def count_text(n: int) -> str:
    """A count as people write it: 135 M, 7.62 B."""
    if n >= 10**9:
        return f"{n / 10**9:.2f} B"
    return f"{n / 10**6:.0f} M" if n >= 10**6 else f"{n:,}"
