"""Secret: a text that cannot be shown by mistake.

Law: only `reveal` gives the text, and it is called where the text leaves for the one place it is meant for. Every other
way to turn a secret into text or bytes hides it or raises.
"""

from __future__ import annotations

import hmac
from typing import NoReturn

HIDDEN = "Secret(…)"


class Secret:
    """A key or a token."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return format(HIDDEN, spec)

    def __eq__(self, other: object) -> bool:
        """Compare in constant time."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(
            self._text.encode("utf-8", "surrogatepass"), other._text.encode("utf-8", "surrogatepass")
        )

    __hash__ = None  # type: ignore[assignment]  # a hash would tell short secrets apart

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled or copied."""
        raise TypeError("a secret cannot be written out")
