"""Pace: how many rows a step may have so that the answers that run get their next token in time.

Law: nothing is assumed of the machine. A step's time is a line over its rows, fitted to the steps that were measured,
the older ones fading; the bound is a wish, and below LEAST rows a prompt would never end.
"""

from __future__ import annotations

LEAST = 16
"""Rows that a step may always have beside those of the running answers."""
FADE = 0.95
"""Weight of a step beside the one that came after it."""


class Pace:
    """The largest step that keeps to a time."""

    def __init__(self, seconds: float) -> None:
        """Keep steps to `seconds`."""
        self.seconds = seconds
        self._n = self._x = self._t = self._xx = self._xt = 0.0

    def measured(self, rows: int, seconds: float) -> None:
        """Learn that a step of so many rows took so long."""
        self._n, self._x, self._t = self._n * FADE + 1.0, self._x * FADE + rows, self._t * FADE + seconds
        self._xx, self._xt = self._xx * FADE + rows * rows, self._xt * FADE + rows * seconds

    def rows(self, answers: int, budget: int) -> int:
        """Rows of the next step, in which `answers` wait for a token: at most `budget`, at least answers + LEAST."""
        least = min(budget, answers + LEAST)
        if not self._n:
            return least
        spread = self._xx - self._x * self._x / self._n
        slope = (self._xt - self._x * self._t / self._n) / spread if spread > 1e-9 * self._xx else 0.0
        if slope <= 0.0:  # all steps alike, or noise: through the origin, which is the careful reading
            slope = self._xt / self._xx
        base = max(0.0, (self._t - slope * self._x) / self._n)
        if slope <= 0.0:
            return budget
        return max(least, min(budget, int((self.seconds - base) / slope)))
