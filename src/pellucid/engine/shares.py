"""Shares: what each tenant has had of the engine, in tokens, so that the next turn goes to who has had least.

Law: tokens are counted over the weight of their tenant. A tenant pays for the tokens of a prompt when it is admitted,
not those the prefix cache had, and for each token of the answer as it is computed; what preemption makes the engine
compute again costs nobody. Who was away begins at the least of those who are here: idle time is not saved up (Sheng et
al. 2024, "Fairness in Serving Large Language Models").
"""

from __future__ import annotations

from collections import Counter

from pellucid.engine.sequence import Sequence


class Shares:
    """Tokens that each tenant which has sequences here was served. Not thread-safe: the scheduler owns it."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._here: Counter[str] = Counter()

    @property
    def contended(self) -> bool:
        """Whether more than one tenant has sequences here."""
        return len(self._here) > 1

    def arrive(self, seq: Sequence) -> None:
        """Count a sequence that came; once for each."""
        if seq.tenant not in self._here:
            self._served[seq.tenant] = min(self._served.values(), default=0.0)
        self._here[seq.tenant] += 1

    def depart(self, seq: Sequence) -> None:
        """Count a sequence that ended. A tenant's account lives as long as it has sequences here: it stays bounded."""
        self._here[seq.tenant] -= 1
        if not self._here[seq.tenant]:
            del self._here[seq.tenant], self._served[seq.tenant]

    def charge(self, seq: Sequence, computed: int) -> None:
        """Let the tenant of `seq` pay for what it has not paid of its first `computed` tokens."""
        if computed > seq.paid:
            self._served[seq.tenant] += (computed - seq.paid) / seq.weight
            seq.paid = computed

    def served(self, tenant: str) -> float:
        """Tokens on the account of a tenant that is here, over its weight."""
        return self._served[tenant]

    def next(self, waiting: list[Sequence], start: int) -> int:
        """Index, at or after `start`, of who is admitted next: by priority, then least served, then arrival."""
        if not self.contended:
            return start
        return min(
            range(start, len(waiting)),
            key=lambda i: (waiting[i].priority, self._served[waiting[i].tenant], waiting[i].arrival),
        )
