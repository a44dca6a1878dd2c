"""Allowances: how many requests and tokens a key has left.

Law: a request is paid for before it runs, with its prompt and the longest answer it may have; what it did not use comes
back when it ends. So no number of requests at once goes over a budget. Minutes and days are those of UTC.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pellucid.errors import CapacityError
from pellucid.server.keys import Key

MINUTE, DAY = 60, 86400
_NAMES = {MINUTE: "minute", DAY: "day"}


class BudgetError(CapacityError):
    """A key has used the tokens it may have for now."""

    code = "insufficient_quota"


@dataclass(slots=True)
class Window:
    """What was used in the present minute or day."""

    seconds: int
    number: int = -1
    used: int = 0

    def turn(self, now: float) -> None:
        """Begin anew if another minute or day has begun; `now` is time.time()."""
        number = int(now // self.seconds)
        if number != self.number:
            self.number, self.used = number, 0

    def left(self, now: float) -> float:
        """Seconds until the next begins."""
        return (int(now // self.seconds) + 1) * self.seconds - now


@dataclass(slots=True)
class Account:
    """What one key has used."""

    requests: Window = field(default_factory=lambda: Window(MINUTE))
    minute: Window = field(default_factory=lambda: Window(MINUTE))
    day: Window = field(default_factory=lambda: Window(DAY))


@dataclass(frozen=True, slots=True)
class Reserved:
    """Tokens that a request has paid for beforehand, and in which minute and day."""

    name: str
    tokens: int
    numbers: tuple[int, int]


class Allowances:
    """The accounts of all keys, by name. They outlive a new reading of the file, not the process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    def _account(self, key: Key) -> Account:
        return self._accounts.setdefault(key.name, Account())

    def request(self, key: Key) -> None:
        """Count one request. Raises CapacityError (429): there were too many this minute."""
        limit = key.requests_per_minute
        if limit is None:
            return
        now, window = self._clock(), self._account(key).requests
        window.turn(now)
        if window.used >= limit:
            raise CapacityError(
                f"This key has made {window.used} of {limit} requests of this minute; "
                f"the next begins in {math.ceil(window.left(now))} s",
                retry_after=window.left(now),
            )
        window.used += 1

    def reserve(self, key: Key, tokens: int) -> Reserved | None:
        """Pay for tokens beforehand; None: the key has no budget. Raises BudgetError (429)."""
        if key.tokens_per_minute is None and key.tokens_per_day is None:
            return None
        now, account = self._clock(), self._account(key)
        windows = (account.minute, account.day)
        for window, limit in zip(windows, (key.tokens_per_minute, key.tokens_per_day), strict=True):
            window.turn(now)
            if limit is not None and window.used + tokens > limit:
                left, name = window.left(now), _NAMES[window.seconds]
                raise BudgetError(
                    f"This request may take {tokens} tokens (its prompt and the longest answer), and this key has "
                    f"{max(0, limit - window.used)} of {limit} left in this {name}; "
                    + (
                        "give a smaller max_tokens"
                        if tokens > limit
                        else f"give a smaller max_tokens, or wait {math.ceil(left)} s for the next {name}"
                    ),
                    retry_after=left,
                )
        for window in windows:
            window.used += tokens
        return Reserved(key.name, tokens, (account.minute.number, account.day.number))

    def settle(self, reserved: Reserved, used: int) -> None:
        """Give back what was not used, in the minute and day in which it was paid, if they are not over."""
        account = self._accounts[reserved.name]
        for window, number in zip((account.minute, account.day), reserved.numbers, strict=True):
            if window.number == number:
                window.used -= max(0, reserved.tokens - used)
