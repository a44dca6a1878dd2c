"""Anthropic's messages: what its clients send, and what they read.

Law: data and shapes only, no engine and no I/O. A conversation becomes the one that /v1/chat/completions knows, so both
are written through the same template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import FailFast, Field, model_validator
from typing_extensions import TypedDict

from pellucid.sampling.params import SamplingParams
from pellucid.server.choices import Piece, Usage
from pellucid.server.errors import anthropic_error_body
from pellucid.server.openai import MAX_MESSAGES, Content, Conversation, Message, Request, Schema, Stops, refuse

if TYPE_CHECKING:
    from pellucid.errors import PellucidError


class Turn(Schema):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    content: Content


class CountRequest(Request):
    """Body of POST /v1/messages/count_tokens."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "tools": ([],),
        "tool_choice": ({"type": "auto"}, {"type": "none"}),
        "thinking": ({"type": "disabled"},),
        "mcp_servers": ([],),
        "container": (),
    }

    model: str = Field(default="", max_length=512)
    messages: Annotated[list[Turn], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Content = ""

    @model_validator(mode="after")
    def _the_user_has_the_last_word(self) -> CountRequest:
        if self.messages[-1].role != "user":
            raise refuse("messages", "messages: the last must be the user's; an answer cannot be begun for the model")
        return self

    def _unknown(self) -> Iterator[str]:
        yield from super()._unknown()
        for i, turn in enumerate(self.messages):
            for name in turn.model_extra or ():
                yield f"messages[{i}].{name}"

    def conversation(self) -> Conversation:
        """Return it as chat templates know it, the system's text first."""
        turns = [Message(role=turn.role, content=turn.content) for turn in self.messages]
        system = [Message(role="system", content=self.system)] if self.system else []
        return Conversation.model_construct(messages=[*system, *turns])


class MessagesRequest(CountRequest):
    """Body of POST /v1/messages."""

    max_tokens: int = Field(ge=1, lt=1 << 31)
    temperature: float = Field(default=1.0, ge=0, le=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, lt=1 << 31)
    stop_sequences: Stops = ()
    stream: bool = False
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    def sampling(self) -> SamplingParams:
        """Return the parameters."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop_sequences,
            max_tokens=self.max_tokens,
        )


class InputTokens(TypedDict):
    """Answer of POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageUsage(TypedDict):
    """Tokens of one request; those of the prompt that were computed anew, and those that the cache held."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class TextBlock(TypedDict):
    """A piece of an answer."""

    type: Literal["text"]
    text: str


class AnthropicMessage(TypedDict):
    """Answer of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    warnings: NotRequired[list[str]]


class MessageShape:
    """A message, whole or in events."""

    named = True

    def __init__(self, id: str, model: str, warnings: list[str]) -> None:
        """Write for one request.

        Args:
            id: of the answer.
            model: name of the served model.
            warnings: told once.
        """
        self._id = id
        self._model = model
        self._warnings = warnings
        self._end: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}

    def begin(self, usage: Usage) -> list[dict[str, Any]]:
        """As in Shape: the message without content, then its one block."""
        return [
            {"type": "message_start", "message": self._message([], usage)},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        ]

    def chunks(self, pieces: Iterable[Piece], usage: Callable[[], Usage]) -> list[dict[str, Any]]:
        """As in Shape."""
        chunks: list[dict[str, Any]] = []
        for piece in pieces:
            if piece.text:
                delta = {"type": "text_delta", "text": piece.text}
                chunks.append({"type": "content_block_delta", "index": 0, "delta": delta})
            if piece.finish_reason is not None:
                self._end = _end(piece)
        return chunks

    def end(self, usage: Usage) -> list[dict[str, Any]]:
        """As in Shape."""
        return [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": self._end, "usage": _usage(usage)},
            {"type": "message_stop"},
        ]

    def failed(self, error: PellucidError) -> Any:
        """As in Shape."""
        return anthropic_error_body(error)

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> AnthropicMessage:
        """As in Shape."""
        (piece,) = pieces
        self._end = _end(piece)
        return self._message([{"type": "text", "text": piece.text}], usage)

    def _message(self, content: list[TextBlock], usage: Usage) -> AnthropicMessage:
        message: AnthropicMessage = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": self._end["stop_reason"],
            "stop_sequence": self._end["stop_sequence"],
            "usage": _usage(usage),
        }
        if self._warnings:
            message["warnings"] = self._warnings
        return message


def _end(piece: Piece) -> dict[str, str | None]:
    if isinstance(piece.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": piece.stop_reason}
    return {"stop_reason": "max_tokens" if piece.finish_reason == "length" else "end_turn", "stop_sequence": None}


def _usage(usage: Usage) -> MessageUsage:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }
