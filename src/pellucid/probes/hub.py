"""Hub: where host events are told to those who asked for them.

Law: ask `wants` before the call, so that an event nobody watches costs one look-up. An observer that raises is
removed and reported; it never stops a step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pellucid.errors import RequestError
from pellucid.probes.points import POINTS

Observer = Callable[[str, dict[str, Any]], None]
"""Called on the engine's thread with the point's name and the frame; must be quick and must not change the frame."""

log = logging.getLogger("pellucid.probes")


class Hub:
    """Observers by point. subscribe and the function it returns may be called from any thread."""

    def __init__(self) -> None:
        self._observers: dict[str, tuple[Observer, ...]] = {}
        self.removed: list[tuple[str, str]] = []
        """(point, error) of the observers that raised, the last 100."""

    def wants(self, point: str) -> bool:
        """True if somebody watches `point`."""
        return point in self._observers

    def subscribe(self, point: str, observer: Observer) -> Callable[[], None]:
        """Call `observer` at each event of `point`. Returns what ends it. Raises RequestError: no such point."""
        if point not in POINTS:
            raise RequestError(f"there is no point {point!r}; choose one of {', '.join(POINTS)}", param="point")
        self._observers[point] = (*self._observers.get(point, ()), observer)
        return lambda: self._remove(point, observer)

    def emit(self, point: str, frame: dict[str, Any]) -> None:
        """Tell all observers of `point`."""
        for observer in self._observers.get(point, ()):
            try:
                observer(point, frame)
            except Exception as error:
                self._remove(point, observer)
                self.removed = [*self.removed[-99:], (point, repr(error))]
                log.warning("an observer of %s raised and was removed: %r", point, error)

    def _remove(self, point: str, observer: Observer) -> None:
        rest = tuple(o for o in self._observers.get(point, ()) if o is not observer)
        if rest:
            self._observers[point] = rest
        else:
            self._observers.pop(point, None)
