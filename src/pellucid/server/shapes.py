"""What clients read: OpenAI's objects, made of pieces.

Law: pure; no engine, no I/O. A shape belongs to one request and knows which of its choices have begun. The first chunk
of a choice carries its role together with its first text, never alone; its end is a chunk of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from typing_extensions import TypedDict

from pellucid.server.choices import Piece, Usage, characters, token_bytes

if TYPE_CHECKING:
    from pellucid.engine.events import TokenEvent
    from pellucid.text.tokenizer import Tokenizer

Top = Sequence[tuple[int, float]]
"""The likeliest (token, logprob) at a place, and the token that stands there."""
Scores = Sequence[Top | None]
"""For each token of a prompt; None for the first."""
LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


class TopLogprob(TypedDict):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The token at a place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Logprobs of a piece of a chat answer; they describe the model's own distribution, before any sampling stage."""

    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(TypedDict):
    """Logprobs of a piece of a completion."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class ChatMessage(TypedDict):
    """The answer."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One of the answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: int | str | None


class ChatCompletion(TypedDict, total=False):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    warnings: list[str]


class CompletionChoice(TypedDict):
    """One of the answers."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str
    stop_reason: int | str | None


class Completion(TypedDict, total=False):
    """Answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    warnings: list[str]


class Shape(Protocol):
    """How the answer to one request is written."""

    def chunks(self, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
        """Return the stream's next chunks."""
        ...

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """Return the stream's last chunk, if usage was asked for."""
        ...

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        """Return the answer in one; `pieces` holds one for each choice, in order."""
        ...


class _Head:
    """What all objects of one request begin with."""

    def __init__(self, id: str, created: int, model: str, warnings: list[str]) -> None:
        self._head = {"id": id, "created": created, "model": model}
        self._warnings = warnings

    def _chunk(self, object: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._head, "object": object, "choices": choices}
        if self._warnings:
            chunk["warnings"], self._warnings = self._warnings, []
        return chunk


class ChatShape(_Head):
    """chat.completion and chat.completion.chunk."""

    def __init__(
        self, id: str, created: int, model: str, warnings: list[str], *, tokenizer: Tokenizer, top: int | None
    ) -> None:
        """Write for one request.

        Args:
            id: of the answer.
            created: seconds since 1970.
            model: name of the served model.
            warnings: told once.
            tokenizer: spells tokens.
            top: how many of the likeliest tokens to name; None: no logprobs.
        """
        super().__init__(id, created, model, warnings)
        self._tokenizer = tokenizer
        self._top = top
        self._begun: set[int] = set()

    def chunks(self, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
        """As in Shape."""
        return [self._chunk("chat.completion.chunk", [choice]) for piece in pieces for choice in self._choices(piece)]

    def _choices(self, piece: Piece) -> Iterable[dict[str, Any]]:
        begins = piece.choice not in self._begun
        self._begun.add(piece.choice)
        if begins or piece.text or piece.tokens:
            delta = {"role": "assistant", "content": piece.text} if begins else {"content": piece.text}
            yield {
                "index": piece.choice,
                "delta": delta,
                "logprobs": self._logprobs(piece.tokens),
                "finish_reason": None,
            }
        if piece.finish_reason is not None:
            yield {
                "index": piece.choice,
                "delta": {},
                "logprobs": None,
                "finish_reason": piece.finish_reason,
                "stop_reason": piece.stop_reason,
            }

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """As in Shape."""
        return self._chunk("chat.completion.chunk", []) | {"usage": usage}

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        """As in Shape."""
        choices = [
            {
                "index": piece.choice,
                "message": {"role": "assistant", "content": piece.text, "refusal": None},
                "logprobs": self._logprobs(piece.tokens),
                "finish_reason": piece.finish_reason,
                "stop_reason": piece.stop_reason,
            }
            for piece in pieces
        ]
        return self._chunk("chat.completion", choices) | {"usage": usage}

    def _logprobs(self, events: Sequence[TokenEvent]) -> ChatLogprobs | None:
        if self._top is None:
            return None
        return {"content": [self._token(event, self._top) for event in events], "refusal": None}

    def _token(self, event: TokenEvent, top: int) -> TokenLogprob:
        likeliest = [self._one(token, logprob) for token, logprob in (event.top or [])[:top]]
        return {**self._one(event.token, event.logprob or 0.0), "top_logprobs": likeliest}

    def _one(self, token: int, logprob: float) -> TopLogprob:
        data = token_bytes(self._tokenizer, token)
        return {"token": spelling(self._tokenizer, token), "logprob": max(logprob, LOWEST), "bytes": list(data)}


class CompletionShape(_Head):
    """text_completion, whole or in chunks."""

    def __init__(
        self, id: str, created: int, model: str, warnings: list[str], *, tokenizer: Tokenizer, top: int | None
    ) -> None:
        """Write for one request; arguments as of ChatShape. The prompts to echo come with `echo`."""
        super().__init__(id, created, model, warnings)
        self._tokenizer = tokenizer
        self._top = top
        self._echoes: dict[int, tuple[str, Sequence[int], Scores]] = {}
        self._offsets: dict[int, int] = {}

    def echo(self, choice: int, text: str, tokens: Sequence[int], scores: Scores) -> None:
        """Begin the answer of a choice with its prompt; `scores` is read when the first piece is written."""
        self._echoes[choice] = (text, tokens, scores)

    def chunks(self, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
        """As in Shape."""
        return [self._chunk("text_completion", [choice]) for piece in pieces for choice in self._choices(piece)]

    def _choices(self, piece: Piece) -> Iterable[dict[str, Any]]:
        text, logprobs = self._text(piece)
        if text or piece.tokens:
            yield {"index": piece.choice, "text": text, "logprobs": logprobs, "finish_reason": None}
        if piece.finish_reason is not None:
            yield {
                "index": piece.choice,
                "text": "",
                "logprobs": None,
                "finish_reason": piece.finish_reason,
                "stop_reason": piece.stop_reason,
            }

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """As in Shape."""
        return self._chunk("text_completion", []) | {"usage": usage}

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        """As in Shape."""
        choices: list[dict[str, Any]] = []
        for piece in pieces:
            text, logprobs = self._text(piece)
            choices.append(
                {
                    "index": piece.choice,
                    "text": text,
                    "logprobs": logprobs,
                    "finish_reason": piece.finish_reason,
                    "stop_reason": piece.stop_reason,
                }
            )
        return self._chunk("text_completion", choices) | {"usage": usage}

    def _text(self, piece: Piece) -> tuple[str, CompletionLogprobs | None]:
        """Return the text and logprobs of a piece, behind those of its prompt if that is due."""
        text, tokens, scores = self._echoes.pop(piece.choice, ("", (), ()))
        text += piece.text
        if self._top is None:
            return text, None
        entries: list[tuple[int, float | None, Top | None]] = [
            (token, None if top is None else dict(top)[token], top) for token, top in zip(tokens, scores, strict=False)
        ]
        entries += [(event.token, event.logprob, event.top) for event in piece.tokens]
        return text, self._logprobs(piece.choice, entries)

    def _logprobs(self, choice: int, entries: Iterable[tuple[int, float | None, Top | None]]) -> CompletionLogprobs:
        offset = self._offsets.get(choice, 0)
        result: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, logprob, top in entries:
            result["tokens"].append(spelling(self._tokenizer, token))
            result["token_logprobs"].append(None if logprob is None else max(logprob, LOWEST))
            result["top_logprobs"].append(None if logprob is None else self._by_spelling(token, logprob, top or []))
            result["text_offset"].append(offset)
            offset += characters(token_bytes(self._tokenizer, token))
        self._offsets[choice] = offset
        return result

    def _by_spelling(self, token: int, logprob: float, top: Top) -> dict[str, float]:
        """Map spellings to logprobs; of tokens that are spelled alike the later ones are named by id."""
        chosen = spelling(self._tokenizer, token)
        result = {chosen: max(logprob, LOWEST)}
        for other, value in top:
            if other != token:
                name = spelling(self._tokenizer, other)
                result[f"token_id:{other}" if name in result else name] = max(value, LOWEST)
        return result


def spelling(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text; bytes that are no whole characters are written as "bytes:\\xe2\\x80", as OpenAI does."""
    if token >= tokenizer.vocab_size:
        return f"token_id:{token}"
    if tokenizer.is_special(token):
        return tokenizer.token_text(token)
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
