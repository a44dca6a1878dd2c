"""What clients read: OpenAI's objects, made of pieces.

Law: pure; no engine, no I/O. A shape belongs to one request and knows which of its choices have begun. The first chunk
of a choice carries its role together with its first text, never alone; its end is a chunk of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NotRequired, Protocol

from typing_extensions import TypedDict

from pellucid.errors import PellucidError
from pellucid.server.choices import Piece, Usage, characters, token_bytes
from pellucid.server.errors import error_body
from pellucid.server.openai import StreamOptions
from pellucid.server.scores import LOWEST, PromptLogprobs, PromptScores, Scores, Top
from pellucid.text.calls import CallDelta
from pellucid.text.read import Reader, Reads, Said

if TYPE_CHECKING:
    from pellucid.engine.events import TokenEvent
    from pellucid.text.tokenizer import Tokenizer


class TopLogprob(TypedDict):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The token at a place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Logprobs of a piece of a chat answer; the answer's logprobs_mode tells what they describe."""

    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(TypedDict):
    """Logprobs of a piece of a completion."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CalledFunction(TypedDict, total=False):
    """What a call calls; in a stream its name comes once, its arguments bit by bit."""

    name: str
    arguments: str


class ToolCall(TypedDict, total=False):
    """A call of the answer."""

    index: int
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(TypedDict):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


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
    prompt_logprobs: PromptLogprobs
    logprobs_mode: str
    """What the answer's logprobs describe: raw_logprobs, the model; processed_logprobs, what was drawn from."""
    usage: Usage
    warnings: list[str]


class CompletionChoice(TypedDict):
    """One of the answers."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    prompt_logprobs: NotRequired[PromptLogprobs]
    finish_reason: str
    stop_reason: int | str | None


class Completion(TypedDict, total=False):
    """Answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    logprobs_mode: str
    """As of ChatCompletion; an echoed prompt's are the model's."""
    usage: Usage
    warnings: list[str]


class WholeShape(Protocol):
    """How the answer to one request is written in one."""

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> Any:
        """Return the answer; `pieces` holds one for each choice, in order."""
        ...


class Shape(WholeShape, Protocol):
    """How the answer to one request is written, in one or as a stream."""

    named: bool
    """Whether the events of a stream carry their type as name; others end in [DONE]."""

    def begin(self, usage: Usage) -> list[dict[str, Any]]:
        """Return what a stream begins with."""
        ...

    def chunks(self, pieces: Iterable[Piece], usage: Callable[[], Usage]) -> list[dict[str, Any]]:
        """Return the stream's next chunks; `usage` counts the tokens so far."""
        ...

    def end(self, usage: Usage) -> list[dict[str, Any]]:
        """Return the stream's last chunks."""
        ...

    def failed(self, error: PellucidError) -> Any:
        """Return the chunk that ends a stream when something fails in its midst."""
        ...


class _OpenAI:
    """What all objects of one request begin with, and a stream of them ends with."""

    named = False
    _object: ClassVar[str]

    def __init__(
        self, id: str, created: int, model: str, warnings: list[str], options: StreamOptions, mode: str | None
    ) -> None:
        self._head = {"id": id, "created": created, "model": model} | ({"logprobs_mode": mode} if mode else {})
        self._warnings = warnings
        self._options = options

    def begin(self, usage: Usage) -> list[dict[str, Any]]:
        """As in Shape: nothing."""
        return []

    def chunks(self, pieces: Iterable[Piece], usage: Callable[[], Usage]) -> list[dict[str, Any]]:
        """As in Shape."""
        chunks = [self._chunk(self._object, [choice]) for piece in pieces for choice in self._choices(piece)]
        if chunks and (self._options.include_usage or self._options.continuous_usage_stats):
            so_far = usage() if self._options.continuous_usage_stats else None
            return [chunk | {"usage": so_far} for chunk in chunks]
        return chunks

    def end(self, usage: Usage) -> list[dict[str, Any]]:
        """As in Shape: a chunk without choices, if usage was asked for."""
        return [self._chunk(self._object, []) | {"usage": usage}] if self._options.include_usage else []

    def failed(self, error: PellucidError) -> Any:
        """As in Shape."""
        return error_body(error)

    def _choices(self, piece: Piece) -> Iterable[dict[str, Any]]:
        raise NotImplementedError

    def _chunk(self, object: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._head, "object": object, "choices": choices}
        if self._warnings:
            chunk["warnings"], self._warnings = self._warnings, []
        return chunk


class ChatShape(_OpenAI):
    """chat.completion and chat.completion.chunk."""

    _object = "chat.completion.chunk"

    def __init__(
        self,
        id: str,
        created: int,
        model: str,
        warnings: list[str],
        *,
        tokenizer: Tokenizer,
        top: int | None,
        mode: str = "raw_logprobs",
        options: StreamOptions | None = None,
        reads: Reads | None = None,
        scores: PromptScores | None = None,
    ) -> None:
        """Write for one request.

        Args:
            id: of the answer.
            created: seconds since 1970.
            model: name of the served model.
            warnings: told once.
            tokenizer: spells tokens.
            top: how many of the likeliest tokens to name; None: no logprobs.
            mode: what logprobs describe.
            options: what a stream carries besides text.
            reads: what stands in answers besides text; None: nothing.
            scores: of the prompt's tokens; None: they were not asked for.
        """
        super().__init__(id, created, model, warnings, options or StreamOptions(), None if top is None else mode)
        self._tokenizer = tokenizer
        self._top = top
        self._begun: set[int] = set()
        self._readers: dict[int, Reader] = {}
        self._reads = reads
        self._scores = scores

    def _read(self, piece: Piece) -> Said:
        """Return what a piece says, read for thoughts and calls."""
        if self._reads is None:
            return Said(content=piece.text)
        reader = self._readers.setdefault(piece.choice, Reader(self._reads, piece.choice))
        return reader.push(piece.text, final=piece.finish_reason is not None)

    def _reason(self, piece: Piece) -> str | None:
        """Return why a choice has ended: a whole answer with calls did so for them."""
        reader = self._readers.get(piece.choice)
        called = reader is not None and reader.called
        return "tool_calls" if called and piece.finish_reason == "stop" else piece.finish_reason

    def _choices(self, piece: Piece) -> Iterable[dict[str, Any]]:
        said = self._read(piece)
        begins = piece.choice not in self._begun
        self._begun.add(piece.choice)
        delta: dict[str, Any] = {"role": "assistant"} if begins else {}
        if said.reasoning:
            delta["reasoning_content"] = said.reasoning
        if said.content or (not said.calls and not said.reasoning and (begins or piece.tokens)):
            delta["content"] = said.content
        if said.calls:
            delta["tool_calls"] = [_call_delta(call) for call in said.calls]
        if delta:
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
                "finish_reason": self._reason(piece),
                "stop_reason": piece.stop_reason,
            }

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        """As in Shape."""
        choices = [
            {
                "index": piece.choice,
                "message": _message(self._read(piece)),
                "logprobs": self._logprobs(piece.tokens),
                "finish_reason": self._reason(piece),
                "stop_reason": piece.stop_reason,
            }
            for piece in pieces
        ]
        answer = self._chunk("chat.completion", choices)
        if self._scores is not None:
            answer["prompt_logprobs"] = self._scores.written(self._tokenizer)
        return answer | {"usage": usage}

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


def _call_delta(call: CallDelta) -> ToolCall:
    delta: ToolCall = {"index": call.index, "function": {"arguments": call.arguments}}
    if call.id:
        delta["id"], delta["type"] = call.id, "function"
        delta["function"] = {"name": call.name, "arguments": call.arguments}
    return delta


def _message(said: Said) -> ChatMessage:
    message: ChatMessage = {"role": "assistant", "content": said.content, "refusal": None}
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.calls:
        message["content"] = said.content or None
        first = [call for call in said.calls if call.id]
        text = ["".join(call.arguments for call in said.calls if call.index == one.index) for one in first]
        message["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": arguments}}
            for one, arguments in zip(first, text, strict=True)
        ]
    return message


class CompletionShape(_OpenAI):
    """text_completion, whole or in chunks."""

    _object = "text_completion"

    def __init__(
        self,
        id: str,
        created: int,
        model: str,
        warnings: list[str],
        *,
        tokenizer: Tokenizer,
        top: int | None,
        mode: str = "raw_logprobs",
        options: StreamOptions | None = None,
    ) -> None:
        """Write for one request; arguments as of ChatShape. The prompts to echo come with `echo`."""
        super().__init__(id, created, model, warnings, options or StreamOptions(), None if top is None else mode)
        self._tokenizer = tokenizer
        self._top = top
        self._echoes: dict[int, tuple[str, Sequence[int], Scores]] = {}
        self._scores: dict[int, PromptScores] = {}
        self._offsets: dict[int, int] = {}

    def echo(self, choice: int, text: str, tokens: Sequence[int], scores: Scores) -> None:
        """Begin the answer of a choice with its prompt; `scores` is read when the first piece is written."""
        self._echoes[choice] = (text, tokens, scores)

    def score(self, choice: int, scores: PromptScores) -> None:
        """Give the whole answer of a choice the scores of its prompt."""
        self._scores[choice] = scores

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
            if piece.choice in self._scores:
                choices[-1]["prompt_logprobs"] = self._scores[piece.choice].written(self._tokenizer)
        return self._chunk("text_completion", choices) | {"usage": usage}

    def _text(self, piece: Piece) -> tuple[str, CompletionLogprobs | None]:
        """Return the text and logprobs of a piece, behind those of its prompt if that is due."""
        text, tokens, scores = self._echoes.pop(piece.choice, ("", (), ()))
        text += piece.text
        if self._top is None:
            return text, None
        entries: list[tuple[int, float | None, Top | None]] = [
            (token, None, None) if top is None else (token, dict(top)[token], top[: self._top])
            for token, top in zip(tokens, scores, strict=False)
        ]  # there are more of the likeliest if prompt_logprobs asks for more
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
