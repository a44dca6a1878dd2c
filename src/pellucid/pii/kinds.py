"""The kinds of personal data that have a form: a pattern for what may be one, and what settles whether it is.

Law: a pattern is RE2's, so it takes time in proportion to the text whoever wrote it, and it is over bytes of UTF-8.
Check digits, calendars and registers are asked of libraries that know them. Names, addresses and whatever else has no
form are not found.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module

Spans = Iterable[tuple[int, int]]
"""(start, end) in a candidate."""


@dataclass(frozen=True)
class Kind:
    """A kind of personal data."""

    name: str
    """As --pii spells it."""
    pattern: str
    """RE2, over bytes: what may be one."""
    spans: Callable[[str], Spans]
    """Where in a candidate it really is; nothing: it is none."""


def _whole(holds: Callable[[str], bool]) -> Callable[[str], Spans]:
    """The candidate itself, or a shorter one that ends at a space: what follows in groups may not belong to it."""

    def spans(text: str) -> Spans:
        end = len(text)
        while end > 0:
            if holds(text[:end]):
                return [(0, end)]
            end = text.rfind(" ", 0, end)
        return []

    return spans


def _number(module: str) -> Callable[[str], Spans]:
    """What python-stdnum's module of this name calls valid."""
    return _whole(lambda text: bool(import_module(f"stdnum.{module}").is_valid(text)))


def _any(text: str) -> Spans:
    return [(0, len(text))]


def _global_address(text: str) -> bool:
    """Addresses of loopback and of private networks tell of nobody."""
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


def _card(text: str) -> bool:
    digits = "".join(filter(str.isdigit, text))
    return digits[0] in "23456" and bool(import_module("stdnum.luhn").is_valid(digits))


def phones(region: str) -> Callable[[str], Spans]:
    """Numbers that exist by the plans of the world's regions, those without a country's code by the region's."""

    def spans(text: str) -> Spans:
        from phonenumbers import PhoneNumberMatcher

        return [(found.start, found.end) for found in PhoneNumberMatcher(text, region)]

    return spans


def kinds(region: str) -> tuple[Kind, ...]:
    """All of them; the first of two that fit the same text wins. `region`: two letters, of phone numbers."""
    return (
        Kind(
            "email",
            r"[A-Za-z0-9_%+\-](?:[A-Za-z0-9._%+\-]{0,62}[A-Za-z0-9_%+\-])?"
            r"@(?:[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?\.){1,8}[A-Za-z]{2,24}\b",
            _any,
        ),
        Kind("iban", r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", _number("iban")),
        Kind(
            "card",
            r"\b(?:\d{13,19}|\d{4}[ \-]\d{4}[ \-]\d{4}[ \-]\d{1,7}|\d{4}[ \-]\d{6}[ \-]\d{5})\b",
            _whole(_card),
        ),
        Kind("ip", r"\b(?:\d{1,3}\.){3}\d{1,3}\b", _whole(_global_address)),
        Kind("ip", r"(?:[0-9A-Fa-f]{1,4}|:):(?:[0-9A-Fa-f]{0,4}:){0,6}[0-9A-Fa-f]{0,4}", _whole(_global_address)),
        Kind(
            "bitcoin",
            r"\b(?:bc1[ac-hj-np-z02-9]{11,71}|[13][1-9A-HJ-NP-Za-km-z]{25,34})\b",
            _number("bitcoin"),
        ),
        Kind("us_ssn", r"\b\d{3}-\d{2}-\d{4}\b", _number("us.ssn")),
        Kind("gb_nhs", r"\b\d{3}[ \-]\d{3}[ \-]\d{4}\b", _number("gb.nhs")),
        Kind("br_cpf", r"\b\d{3}\.\d{3}\.\d{3}-\d{2}\b", _number("br.cpf")),
        Kind(
            "it_codice_fiscale",
            r"\b[A-Z]{6}[0-9LMNP-V]{2}[A-Z][0-9LMNP-V]{2}[A-Z][0-9LMNP-V]{3}[A-Z]\b",
            _number("it.codicefiscale"),
        ),
        Kind("fr_nir", r"\b[12] ?\d{2} ?\d{2} ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}\b", _number("fr.nir")),
        Kind("es_dni", r"\b\d{8}-?[A-Z]\b", _number("es.dni")),
        Kind("es_nie", r"\b[XYZ]-?\d{7}-?[A-Z]\b", _number("es.nie")),
        Kind("in_aadhaar", r"\b[2-9]\d{3} \d{4} \d{4}\b", _number("in_.aadhaar")),
        Kind("pl_pesel", r"\b\d{11}\b", _number("pl.pesel")),
        Kind("phone", r"[+(]{0,2}\d(?:[ ().\-/]{0,3}\d){6,16}", phones(region)),
    )


NAMES = tuple(dict.fromkeys(kind.name for kind in kinds("US")))
