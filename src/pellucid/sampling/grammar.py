"""Grammars: which tokens may come next, so that an answer has a form that was asked for. By llguidance.

Law: a `Grammar` is data and checked; a `Matcher` is the state of one answer and belongs to its sequence. What a grammar
may cost is bounded, by counts (llguidance's fuel) and by a trial in a process that can be killed. A mask depends on the
answer so far and on nothing else.
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pellucid.errors import EngineError, RequestError

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from llguidance import LLMatcher, LLTokenizer

MAX_GRAMMAR = 64 << 10
"""Bytes of a schema, pattern or grammar."""
MAX_CHOICES = 1024
KEPT = 64
"""Compiled grammars that are kept for those that ask for the same."""
FIRST_MASK = 0.5
"""Seconds of one core's time that the first mask of a grammar may take; common ones take some thousandths."""
JSON_WHITESPACE = r"[ \n\t]{1,16}"
"""Between the parts of a JSON text. A model that cannot end otherwise would write white space for ever."""

T = TypeVar("T")
Kind = Literal["json_object", "json_schema", "regex", "choice", "lark"]


@dataclass(frozen=True)
class Grammar:
    """The form of an answer. Raises RequestError for one that is too large or no text of its kind."""

    kind: Kind
    source: str = ""
    """The schema or the choices as JSON, the pattern (in the syntax of Rust's regex), or the Lark text."""

    def __post_init__(self) -> None:
        size = len(self.source.encode("utf-8", "surrogatepass"))
        if size > MAX_GRAMMAR:
            raise RequestError(f"the {self.kind} has {size} bytes; at most {MAX_GRAMMAR} are compiled", param=self.kind)
        if any("\ud800" <= char <= "\udfff" for char in self.source):
            raise RequestError(f"the {self.kind} is not valid Unicode", param=self.kind)

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls("json_object")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Grammar:
        """JSON that a schema allows."""
        return cls("json_schema", _dumped("json_schema", schema))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that a regular expression matches as a whole."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, choices: Iterable[str]) -> Grammar:
        """One of some texts."""
        texts = list(choices)
        if not 0 < len(texts) <= MAX_CHOICES or not all(texts):
            raise RequestError(f"choice has {len(texts)} texts; give 1 to {MAX_CHOICES}, none empty", param="choice")
        return cls("choice", _dumped("choice", texts))

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Text of a Lark grammar, as llguidance reads it (its docs/syntax.md)."""
        return cls("lark", text)


def _dumped(kind: Kind, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"the {kind} is not JSON: {error}", param=kind) from None


class Matcher:
    """Where one answer stands in its grammar. `fill` may run on another thread, while nothing else is called."""

    def __init__(self, state: LLMatcher, vocab_size: int, words: int, eos_id: int, stop_ids: Iterable[int]) -> None:
        self._state = state
        self._sizes = (vocab_size, words)
        self._eos_id = eos_id
        self._stop_ids = tuple(stop_ids)
        self._own = (vocab_size + 31) // 32
        self.mask: NDArray[np.uint32] = np.zeros(words, np.uint32)
        """A bit a token, the lowest first: 1 where it may come next."""

        self._fault: BaseException | None = None
        """What the library raised, instead of saying what is wrong."""

    def copy(self) -> Matcher:
        """Return another answer's matcher that stands where this one does."""
        return Matcher(self._state.deep_copy(), *self._sizes, self._eos_id, self._stop_ids)

    def fill(self) -> None:
        """Compute `mask`; where the answer may end, every id that ends it may come. All zeros after a failure.

        Does not raise: one step fills the masks of many answers. What went wrong is told by `check`.
        """
        if not self._ask(self._filled, False):
            self.mask[:] = 0

    def _filled(self) -> bool:
        if self._state.is_error():
            return False
        mask = self.mask
        self._state.unsafe_compute_mask_ptr(mask.ctypes.data, self._own * 4)
        if self._state.is_error():
            return False
        if mask[self._eos_id >> 5] >> np.uint32(self._eos_id & 31) & np.uint32(1):
            for token in self._stop_ids:
                mask[token >> 5] |= np.uint32(1 << (token & 31))
        return True

    def accept(self, token: int) -> bool:
        """Go on by a token that does not end the answer. Returns whether nothing can follow. Raises as `check`."""
        self._ask(lambda: self._state.consume_token(token), False)
        self.check()
        return self._ask(self._state.is_stopped, True)

    def check(self) -> None:
        """Raise RequestError if the grammar costs too much or ends nowhere, EngineError if it was left or broke."""
        why = self._ask(lambda: _line(self._state.get_error()) if self._state.is_error() else "", "")
        if self._fault is not None:
            why = _line(f"{type(self._fault).__name__}: {self._fault}")
            raise EngineError(f"the answer's grammar failed ({why}); the request has ended") from self._fault
        if "doesn't satisfy the grammar" in why:
            raise EngineError(f"the answer left its grammar: {why}")
        if why:
            raise RequestError(f"the answer's grammar cannot be followed further: {why}")

    def _ask(self, question: Callable[[], T], otherwise: T) -> T:
        """Return the library's answer; `otherwise` once it has raised, which a panic does as no Exception."""
        if self._fault is None:
            try:
                return question()
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                self._fault = error
        return otherwise


class Grammars:
    """Compiles grammars for one vocabulary. Safe to use from several threads."""

    def __init__(
        self,
        pieces: Callable[[], Sequence[bytes]],
        encode: Callable[[str], list[int]],
        *,
        special_ids: Iterable[int],
        eos_id: int | None,
        stop_ids: Iterable[int],
        vocab_size: int,
    ) -> None:
        """Take a vocabulary; it is read when the first grammar comes.

        Args:
            pieces: gives the bytes that each token adds to a text.
            encode: ids of a text.
            special_ids: control tokens, which no grammar may ask for by their spelling.
            eos_id: the model's own end token; None: the least of stop_ids.
            stop_ids: every id that ends an answer.
            vocab_size: columns of the model's logits, at least len(pieces()).
        """
        self._pieces, self._encode = pieces, encode
        self._special_ids, self._stop_ids = tuple(special_ids), tuple(stop_ids)
        self._end = eos_id if eos_id is not None else min(self._stop_ids, default=None)
        self._words = (vocab_size + 31) // 32
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, Matcher] = OrderedDict()
        from pellucid.sampling.trial import Trial

        self._trial = Trial()
        self._lock = Lock()

    def matcher(self, grammar: Grammar) -> Matcher:
        """Return the matcher of an answer that begins. Raises RequestError for a grammar that cannot be compiled."""
        if self._end is None:
            raise RequestError("this model has no end token, so an answer of a set form could not end", param="grammar")
        with self._lock:
            if (found := self._compiled.get(grammar)) is not None:
                self._compiled.move_to_end(grammar)
                return found.copy()
            if self._tokenizer is None:
                self._tokenizer = self._read(self._end)
            tokenizer = self._tokenizer
        state = self._state(tokenizer, grammar)
        made = Matcher(state, tokenizer.vocab_size, self._words, self._end, {self._end, *self._stop_ids})
        _try_first_mask(made, grammar)
        with self._lock:
            self._compiled[grammar] = made
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return made.copy()

    def fault(self, grammar: Grammar) -> str:
        """Return why a grammar cannot be compiled, whatever the vocabulary; "": it can."""
        try:
            return _line(self._trial.fault(_llguidance(grammar)))
        except ValueError as error:
            return _line(str(error))

    def _read(self, end: int) -> LLTokenizer:
        from llguidance import LLTokenizer
        from llguidance._tokenizer import TokenizerWrapper

        return LLTokenizer(
            TokenizerWrapper(_Vocabulary(self._pieces(), end, self._special_ids, self._encode)),
            slices=LLTokenizer.json_slices(),
        )

    def _state(self, tokenizer: LLTokenizer, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        try:
            text = _llguidance(grammar)
        except ValueError as error:
            raise _broken(grammar, str(error)) from None
        if fault := self._trial.fault(text):
            raise _broken(grammar, fault)
        try:
            state = LLMatcher(tokenizer, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library is no Exception
            raise _broken(grammar, f"{type(error).__name__}: {error}") from error
        if state.is_error():
            raise _broken(grammar, state.get_error())
        return state


def _try_first_mask(matcher: Matcher, grammar: Grammar) -> None:
    """Compute what a first mask costs, lexer states that later ones share included, before a step waits for it."""
    began = time.thread_time()
    matcher.fill()
    taken = time.thread_time() - began
    try:
        matcher.check()
    except RequestError as error:
        raise _broken(grammar, error.message) from None
    if taken > FIRST_MASK:
        raise _broken(grammar, f"its first token takes {taken:.1f} s to find; make it simpler")


class _Vocabulary:
    """What llguidance reads of a tokenizer."""

    def __init__(
        self, tokens: Sequence[bytes], eos_id: int, special_ids: Sequence[int], encode: Callable[[str], list[int]]
    ) -> None:
        self.tokens, self.eos_token_id, self.special_token_ids = tokens, eos_id, special_ids
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def _llguidance(grammar: Grammar) -> str:
    """Return the grammar as llguidance reads it. Raises ValueError."""
    from llguidance import LLMatcher

    if grammar.kind in ("json_object", "json_schema"):
        schema: Any = {"type": "object"} if grammar.kind == "json_object" else json.loads(grammar.source)
        return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": JSON_WHITESPACE})
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.source)
    if grammar.kind == "choice":
        return LLMatcher.grammar_from_regex("|".join(f"(?:{_escaped(text)})" for text in json.loads(grammar.source)))
    return LLMatcher.grammar_from_lark(grammar.source)


def _escaped(text: str) -> str:
    return "".join("\\" + char if char in r"\.+*?()|[]{}^$#&-~/" else char for char in text)


def _broken(grammar: Grammar, error: str) -> RequestError:
    return RequestError(f"the {grammar.kind} cannot be compiled: {_line(error)}", param=grammar.kind)


def _line(error: str) -> str:
    """An error as one line that is not too long."""
    text = re.sub(r"\s+", " ", error).strip()
    return text if len(text) <= 300 else text[:300] + "…"


class Masks:
    """Computes the masks of a step on a thread of its own, while the model runs."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def start(self, matchers: list[Matcher]) -> Future[None] | None:
        """Begin to fill the masks of `matchers`; None: there is nothing to wait for."""
        if not matchers:
            return None
        if self._thread is None:
            from concurrent.futures import ThreadPoolExecutor

            self._thread = ThreadPoolExecutor(1, thread_name_prefix="pellucid-masks")

        def fill() -> None:
            for matcher in matchers:
                matcher.fill()

        return self._thread.submit(fill)
