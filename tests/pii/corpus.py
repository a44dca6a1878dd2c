"""A corpus of texts with personal data in them, made of values that are valid and of sentences that are not about them.

Law: the same seed makes the same corpus; every value is made by its own rule, not by the code that finds it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Case:
    """A text and the one piece of personal data in it."""

    kind: str
    value: str
    text: str


SENTENCES = (
    "{}",
    "Please contact {} before Friday.",
    "The file (rev. 12) mentions {}, and nothing else of 2024-03-01 does.",
    "ID: {}\nStatus: open",
    '{{"value": "{}", "count": 3}}',
    "Er schrieb: «{}».",
    "At 12:30 it was {}; by 14:00 it had changed 100 times.",
)
NOTHING = (
    "Version 3.11.7 of 2024-01-05 takes 1,234,567 steps at 0.5e-3.",
    "The call at 12:30:45 went to 10.0.0.1 and 192.168.1.20, and 127.0.0.1 answered.",
    "Order 2024/10/00017 holds 12 pieces at 1299.00 EUR each; see pages 100-120.",
    "commit 4cd0e4b9d1, build 20240105.1, sha256 9f86d081884c7d659a2feaa0c55ad015",
    "x = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89]; y = x[0:4] @ matrix",
    "AB12 CDEF 3456 is a part number, GB00 0000 is none, and @home is not an address.",
)


def luhn(digits: str) -> str:
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 == 0 else 1)
        total += value - 9 if value > 9 else value
    return digits + str(-total % 10)


def number(rng: random.Random, length: int, first: str = "123456789") -> str:
    return rng.choice(first) + "".join(rng.choice("0123456789") for _ in range(length - 1))


def email(rng: random.Random) -> str:
    name = rng.choice(["anna", "bob.smith", "c_w-lee", "dr.who+tag", "x", "j.r.r.t", "user%sales", "m2000"])
    host = rng.choice(["example.com", "mail.example.co.uk", "a-b.org", "x1.io", "sub.dept.example.museum"])
    return f"{name}@{host}"


def card(rng: random.Random) -> str:
    if rng.random() < 0.2:
        digits = luhn("37" + number(rng, 12))
        return rng.choice([digits, f"{digits[:4]} {digits[4:10]} {digits[10:]}"])
    digits = luhn(rng.choice(["4", "51", "2221", "6011"]) + number(rng, 15))[:15]
    digits = luhn(digits)
    join = rng.choice(["", " ", "-"])
    return join.join(digits[i : i + 4] for i in range(0, 16, 4))


def iban(rng: random.Random) -> str:
    bank = rng.choice(["37040044", "10010010", "50010517"]) + number(rng, 10)
    check = 98 - int(bank + "131400") % 97
    text = f"DE{check:02d}{bank}"
    return text if rng.random() < 0.5 else " ".join(text[i : i + 4] for i in range(0, 22, 4))


def phone(rng: random.Random) -> str:
    area, middle, last = rng.choice(["415", "212", "312", "206"]), rng.randint(200, 999), rng.randint(0, 9999)
    if middle % 100 == 11:
        middle += 1
    return rng.choice(
        ["+1 ({}) {}-{:04d}", "+1{}{}{:04d}", "({}) {}-{:04d}", "{}-{}-{:04d}", "+1-{}-{}-{:04d}"]
    ).format(area, middle, last)


def ip(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return f"2a00:1450:4001:{rng.randrange(0x800, 0xFFF):x}::{rng.randrange(0x1000, 0xFFFF):x}"
    return f"{rng.choice([8, 52, 81, 93, 142])}.{rng.randrange(1, 250)}.{rng.randrange(1, 250)}.{rng.randrange(1, 250)}"


def ssn(rng: random.Random) -> str:
    area = rng.choice([*range(1, 219), *range(220, 457), *range(458, 666)])
    return f"{area:03d}-{rng.randrange(1, 99):02d}-{rng.randrange(1, 9999):04d}"


def nhs(rng: random.Random) -> str:
    while True:
        digits = number(rng, 9)
        check = 11 - sum(int(d) * (10 - i) for i, d in enumerate(digits)) % 11
        if check != 10:
            digits += str(check % 11)
            return f"{digits[:3]} {digits[3:6]} {digits[6:]}"


def cpf(rng: random.Random) -> str:
    digits = number(rng, 9)
    for _ in range(2):
        rest = sum(int(d) * (len(digits) + 1 - i) for i, d in enumerate(digits)) % 11
        digits += "0" if rest < 2 else str(11 - rest)
    return f"{digits[:3]}.{digits[3:6]}.{digits[6:9]}-{digits[9:]}"


def dni(rng: random.Random) -> str:
    digits = number(rng, 8)
    return digits + "TRWAGMYFPDXBNJZSQVHLCKE"[int(digits) % 23]


def nie(rng: random.Random) -> str:
    letter = rng.choice("XYZ")
    digits = number(rng, 7)
    return letter + digits + "TRWAGMYFPDXBNJZSQVHLCKE"[int(str("XYZ".index(letter)) + digits) % 23]


def nir(rng: random.Random) -> str:
    born = f"{rng.randrange(10, 99)}{rng.randrange(1, 12):02d}"
    place = f"{rng.randrange(10, 95)}{rng.randrange(1, 990):03d}"
    digits = f"{rng.choice('12')}{born}{place}{rng.randrange(1, 999):03d}"
    whole = f"{digits}{97 - int(digits) % 97:02d}"
    cuts = (0, 1, 3, 5, 7, 10, 13, 15)
    return rng.choice([whole, " ".join(whole[a:b] for a, b in pairwise(cuts))])


def pesel(rng: random.Random) -> str:
    digits = f"{rng.randrange(40, 99)}{rng.randrange(1, 12):02d}{rng.randrange(1, 28):02d}{number(rng, 4)}"
    return digits + str(-sum(int(d) * w for d, w in zip(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3), strict=True)) % 10)


MAKERS: dict[str, Callable[[random.Random], str]] = {
    "email": email,
    "card": card,
    "iban": iban,
    "phone": phone,
    "ip": ip,
    "us_ssn": ssn,
    "gb_nhs": nhs,
    "br_cpf": cpf,
    "es_dni": dni,
    "es_nie": nie,
    "fr_nir": nir,
    "pl_pesel": pesel,
}
KNOWN = {
    "bitcoin": ("1BoatSLRHtKNngkdXEeobR76b53LETtpyT", "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"),
    "it_codice_fiscale": ("RSSMRA85T10A562S", "RCCMNL83S18D969H"),
    "in_aadhaar": ("2341 2341 2346",),
}
"""Of kinds whose rule is long: published examples."""


def corpus(seed: int, each: int) -> Iterator[Case]:
    """Yield `each` cases of every kind."""
    rng = random.Random(seed)
    for kind, make in MAKERS.items():
        for i in range(each):
            value = make(rng)
            yield Case(kind, value, SENTENCES[i % len(SENTENCES)].format(value))
    for kind, values in KNOWN.items():
        for i in range(each):
            value = values[i % len(values)]
            yield Case(kind, value, SENTENCES[i % len(SENTENCES)].format(value))
