"""Incremental detokenization: text that is safe to show, as tokens come.

Law: what is released, put together, is `Tokenizer.decode` of all ids (up to a stop string); nothing released is ever
taken back. Held back are bytes of a character that is not whole, and text that may yet become a stop string. The
work a token is bounded by its own length and the stop strings', whatever came before.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

from pellucid.text.marks import NONCHARACTERS
from pellucid.text.tokenizer import Tokenizer

_NO_MARKS = {ord(char): "\ufffd" for char in NONCHARACTERS}


class Detokenizer:
    """The text of one answer. `push` each token, then `finish`; `stopped` says which stop string ended it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_ids: Sequence[int] = (),
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        marks: Mapping[int, str] | None = None,
    ) -> None:
        """prompt_ids: what the answer continues: a character that it began is finished, a first space stays.

        include_stop: release the stop string too. skip_special: control tokens add no text.
        marks: ids that add this character of NONCHARACTERS instead of what they are; nothing else adds one of those.
        """
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._skip_special = skip_special
        self._marks = marks or {}
        self._stop = tuple(text for text in stop if text)
        self._hold = max(map(len, self._stop), default=1) - 1
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._released: list[str] = []
        self._strip = tokenizer.strips_first_space
        for token in prompt_ids[-4:]:  # a character has at most four bytes
            if self._decoder.decode(self._bytes(token)):
                self._strip = False
        held, _ = self._decoder.getstate()
        if len(prompt_ids) > 4 or held:
            self._strip = False
        self.stopped: str | None = None

    @property
    def text(self) -> str:
        """All that has been released."""
        if len(self._released) > 1:
            self._released = ["".join(self._released)]
        return self._released[0] if self._released else ""

    def push(self, token: int) -> str:
        """Take one token; the text that is now safe to show. After a stop string there is none."""
        if self.stopped is not None:
            return ""
        text = self._decoder.decode(self._bytes(token))
        if self._marks and token not in self._marks:
            text = text.translate(_NO_MARKS)
        return self._take(text, final=False)

    def finish(self) -> str:
        """The rest: what was held back for a stop string that did not come, U+FFFD for a character cut off."""
        if self.stopped is not None:
            return ""
        return self._take(self._decoder.decode(b"", final=True), final=True)

    def _bytes(self, token: int) -> bytes:
        tokenizer = self._tokenizer
        if token in self._marks:
            return self._marks[token].encode()
        if not 0 <= token < tokenizer.vocab_size:
            return b""  # models have more rows than tokens; the padding rows mean nothing
        return b"" if self._skip_special and tokenizer.is_special(token) else tokenizer.token_bytes(token)

    def _take(self, text: str, *, final: bool) -> str:
        if self._strip and text:
            text, self._strip = text.removeprefix(" "), False
        pending = self._pending + text
        found = [(at, -len(stop), stop) for stop in self._stop if (at := pending.find(stop)) >= 0]
        if found:
            at, _, self.stopped = min(found)  # the leftmost; of those the longest
            end = at + len(self.stopped) if self._include_stop else at
            self._pending = ""
            return self._release(pending[:end])
        keep = 0 if final else self._possible_stop(pending)
        self._pending = pending[len(pending) - keep :]
        return self._release(pending[: len(pending) - keep])

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for start in range(max(0, len(text) - self._hold), len(text)):
            tail = text[start:]
            if any(stop.startswith(tail) for stop in self._stop):
                return len(tail)
        return 0

    def _release(self, text: str) -> str:
        if text:
            self._released.append(text)
        return text
