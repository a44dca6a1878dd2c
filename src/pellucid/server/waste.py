"""What was computed for nothing, by cause, and what would save it.

Law: causes are counted as they happen; seconds are tokens times what a token cost here, over all steps so far, and so
an estimate. Schemas of tools are kept only until their tokens are counted.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from typing_extensions import TypedDict

if TYPE_CHECKING:
    from pellucid.engine.lives import Lives
    from pellucid.server.records import Record
    from pellucid.text.read import Reads
    from pellucid.text.tokenizer import Tokenizer

MOST_TOOLS = 256
MOST_LISTED = 20
ADVICE = {
    "evicted": "a larger KV cache (--kv-pages, or --kv q8_0) would have kept their pages",
    "preempted": "a larger KV cache (--kv-pages), or fewer answers together (--max-seqs), would not have preempted",
    "other_tenant": "the price of tenants that share nothing",
    "not_looked_up": "logprobs and mean embeddings of prompts compute whole prompts: ask for them once a prompt",
    "near_miss": "put what differs from request to request (times, ids, names) behind what is alike",
    "unused_tools": "send only tools that this request may need",
    "after_disconnect": "clients left before their answers ended: lower max_tokens, or longer time-outs there",
    "after_stop": "drawn before a stop string was found: a stop token ends an answer at once",
}


class Item(TypedDict):
    """One cause."""

    cause: str
    tokens: int
    seconds: float
    """As this server computes."""
    advice: str


class Waste(TypedDict):
    """GET /inspect/waste."""

    seconds: float
    """Since counting began."""
    prefill_tokens: int
    """Tokens of prompts that were computed, and of what had been given up."""
    decode_tokens: int
    prefill_seconds: float
    decode_seconds: float
    items: list[Item]
    """The largest saving first."""
    near_misses: list[dict[str, Any]]
    """tenant, diverged_at (token), requests, tokens, example and nearest (sequences)."""
    unused_tools: list[dict[str, Any]]
    """name, requests (that had it), called (of these), tokens of its schema, and tokens and seconds of all that did
    not call it."""


@dataclass(slots=True)
class Tool:
    """A function that requests offered to the model."""

    name: str
    schema: str
    """Until its tokens are counted."""
    requests: int = 0
    called: int = 0
    computed: float = 0.0
    """Requests that did not call it, each as the share of its prompt that was not cached."""
    tokens: int = 0


class Wasted:
    """Counts of one server."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._tools: OrderedDict[bytes, Tool] = OrderedDict()

    def answered(self, record: Record, reads: Reads | None) -> None:
        """Count the tools of a request that was answered."""
        if reads is None:
            return
        called = {event.name for event in record.events}
        share = 1 - record.cached_tokens / max(1, record.prompt_tokens)
        for offered in reads.tools:
            schema = to_json(offered)
            key = sha256(schema).digest()
            tool = self._tools.setdefault(key, Tool(str(offered["name"]), schema.decode()))
            self._tools.move_to_end(key)
            tool.requests += 1
            tool.called += tool.name in called
            tool.computed += 0.0 if tool.name in called else share
        while len(self._tools) > MOST_TOOLS:
            self._tools.popitem(last=False)

    def report(self, lives: Lives, tokenizer: Tokenizer) -> Waste:
        """Rank what was wasted."""
        totals = lives.totals
        prefill = totals.prefill_seconds / max(1, totals.prefill_rows)
        decode = totals.decode_seconds / max(1, totals.decode_tokens)
        near = sorted(lives.near.copy().values(), key=lambda miss: -miss.tokens)
        tools = self._unused(tokenizer, prefill)
        counts = {
            "evicted": (totals.evicted, totals.evicted * prefill),
            "preempted": (totals.preempted, totals.preempted * prefill),
            "other_tenant": (totals.other_tenant, totals.other_tenant * prefill),
            "not_looked_up": (totals.not_looked_up, totals.not_looked_up * prefill),
            "near_miss": (sum(miss.tokens for miss in near), sum(miss.tokens for miss in near) * prefill),
            "unused_tools": (sum(tool["tokens"] for tool in tools), sum(tool["seconds"] for tool in tools)),
            "after_disconnect": (totals.after_disconnect, totals.after_disconnect * decode),
            "after_stop": (totals.after_stop, totals.after_stop * decode),
        }
        items: list[Item] = [
            {"cause": cause, "tokens": tokens, "seconds": seconds, "advice": ADVICE[cause]}
            for cause, (tokens, seconds) in counts.items()
            if tokens
        ]
        items.sort(key=lambda item: (-item["seconds"], -item["tokens"]))
        return {
            "seconds": time.monotonic() - self.began,
            "prefill_tokens": totals.prefill_rows,
            "decode_tokens": totals.decode_tokens,
            "prefill_seconds": totals.prefill_seconds,
            "decode_seconds": totals.decode_seconds,
            "items": items,
            "near_misses": [
                {
                    "tenant": miss.tenant,
                    "diverged_at": miss.diverged_at,
                    "requests": miss.requests,
                    "tokens": miss.tokens,
                    "example": miss.example,
                    "nearest": miss.nearest,
                }
                for miss in near[:MOST_LISTED]
            ],
            "unused_tools": tools[:MOST_LISTED],
        }

    def _unused(self, tokenizer: Tokenizer, prefill: float) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for tool in list(self._tools.values()):
            if tool.schema:
                tool.tokens, tool.schema = len(tokenizer.encode(tool.schema)), ""
            unused = tool.requests - tool.called
            if unused:
                found.append(
                    {
                        "name": tool.name,
                        "requests": tool.requests,
                        "called": tool.called,
                        "schema_tokens": tool.tokens,
                        "tokens": unused * tool.tokens,
                        "seconds": tool.computed * tool.tokens * prefill,
                    }
                )
        return sorted(found, key=lambda one: -one["tokens"])
