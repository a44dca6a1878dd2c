"""Finder: where personal data stands in a text.

Law: what is found does not overlap: each kind, in the order of the table, looks at what the kinds before it left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pellucid.errors import ConfigError
from pellucid.pii.kinds import NAMES, Kind, kinds


@dataclass(frozen=True, slots=True)
class Found:
    """A piece of personal data."""

    start: int
    end: int
    kind: str
    text: str


class Finder:
    """Finds the kinds that were asked for."""

    def __init__(self, names: Iterable[str] = NAMES, region: str = "US") -> None:
        """Compile the patterns.

        Args:
            names: of the kinds; all of them unless said.
            region: of phone numbers without a country's code, two letters (ISO 3166).

        Raises ConfigError: no such kind or region, or the libraries are not installed.
        """
        self.names = tuple(dict.fromkeys(names))
        if unknown := [name for name in self.names if name not in NAMES]:
            raise ConfigError(
                f"--pii {unknown[0]}: there is no such kind; choose all, or some of {', '.join(NAMES)}", param="pii"
            )
        try:
            compiler: Any = import_module("re2")
            import_module("stdnum")
            from phonenumbers import SUPPORTED_REGIONS
        except ImportError as error:
            raise ConfigError(
                f"--pii needs a library that is not installed ({error.name}); run: pip install 'pellucid[pii]'",
                param="pii",
            ) from None
        if region not in SUPPORTED_REGIONS:
            raise ConfigError(
                f"--pii-region {region}: there is no such region; give two letters, such as US or DE",
                param="pii_region",
            )
        self._kinds: list[tuple[Kind, Any]] = [
            (kind, compiler.compile(kind.pattern.encode())) for kind in kinds(region) if kind.name in self.names
        ]

    def find(self, text: str) -> list[Found]:
        """Return what is found, in order; places are in characters."""
        data = left = text.encode("utf-8", "surrogatepass")
        spans: list[tuple[int, int, str]] = []
        for kind, pattern in self._kinds:
            own = [
                (begin + a, begin + b, kind.name)
                for begin, end in (match.span() for match in pattern.finditer(left))
                if not (_of_word(left, begin - 1) and _of_word(left, begin))
                for a, b in kind.spans(left[begin:end].decode("ascii"))
            ]
            for begin, end, _ in own:
                left = left[:begin] + bytes(end - begin) + left[end:]
            spans += own
        found: list[Found] = []
        place = characters = 0
        for begin, end, name in sorted(spans):
            characters += len(data[place:begin].decode("utf-8", "surrogatepass"))
            value = data[begin:end].decode("ascii")
            found.append(Found(characters, characters + len(value), name, value))
            place, characters = end, characters + len(value)
        return found


def _of_word(data: bytes, at: int) -> bool:
    """Whether the byte there is of a word, as far as ASCII goes."""
    return 0 <= at < len(data) and (data[at : at + 1].isalnum() or data[at] == 0x5F)
