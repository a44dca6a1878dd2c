"""Anthropic's messages: what its clients send, and what they read.

Law: data and shapes only, no engine and no I/O. A conversation becomes the one that /v1/chat/completions knows, so both
are written through the same template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired, cast

from pydantic import BeforeValidator, FailFast, Field, WithJsonSchema, model_validator
from typing_extensions import TypedDict

from pellucid.errors import RequestError
from pellucid.sampling.params import SamplingParams
from pellucid.server.choices import Piece, Usage
from pellucid.server.errors import anthropic_error_body
from pellucid.server.openai import (
    MAX_MESSAGES,
    MAX_NAME,
    MAX_TOOLS,
    NAME_PATTERN,
    CalledFunction,
    Content,
    Conversation,
    Function,
    Message,
    NamedFunction,
    NamedTool,
    Obfuscation,
    Request,
    Schema,
    Stops,
    Tool,
    ToolCall,
    refuse,
    text_of,
)
from pellucid.text.read import Reader, Reads

if TYPE_CHECKING:
    from pellucid.errors import PellucidError


def _content(value: Any) -> Any:
    """Calls and their results as blocks, all other content as one text."""
    if not isinstance(value, list):
        return value
    texts: list[Any] = []
    blocks: list[Any] = []
    for part in cast(list[Any], value):
        kind = cast(dict[str, Any], part).get("type") if isinstance(part, dict) else None
        if kind in ("tool_use", "tool_result"):
            blocks.append(part)
        elif kind not in ("thinking", "redacted_thinking"):  # what was thought before is not shown to a model again
            texts.append(part)
    if not blocks:
        return texts
    return [*([{"type": "text", "text": text_of(texts)}] if texts else []), *blocks]


class TextPart(Schema):
    """Text of a turn that also holds calls or results."""

    type: Literal["text"]
    text: str


class ToolUse(Schema):
    """A call of an earlier answer."""

    type: Literal["tool_use"]
    id: str = Field(max_length=256)
    name: str = Field(min_length=1, max_length=MAX_NAME)
    input: dict[str, Any] = Field(default_factory=dict[str, Any])


class ToolResult(Schema):
    """What a call brought."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(max_length=256)
    content: Content = ""
    is_error: bool = False


Block = Annotated[TextPart | ToolUse | ToolResult, Field(discriminator="type")]


class Turn(Schema):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    content: Annotated[
        Content | Annotated[list[Block], Field(max_length=MAX_MESSAGES)],
        BeforeValidator(_content),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
    ]

    def messages(self) -> list[Message]:
        """Return the turn as chat templates know it: results first, each a message of its own."""
        if isinstance(self.content, str):
            return [Message(role=self.role, content=self.content)]
        results = [
            Message(role="tool", content=block.content, tool_call_id=block.tool_use_id)
            for block in self.content
            if isinstance(block, ToolResult)
        ]
        calls = [
            ToolCall(id=block.id, function=CalledFunction(name=block.name, arguments=json.dumps(block.input)))
            for block in self.content
            if isinstance(block, ToolUse)
        ]
        text = "".join(block.text for block in self.content if isinstance(block, TextPart))
        own = [Message(role=self.role, content=text, tool_calls=calls)] if text or calls else []
        return results + own


class AnthropicTool(Schema):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=MAX_NAME, pattern=NAME_PATTERN)
    description: str = ""
    input_schema: dict[str, Any]
    type: Literal["custom"] = "custom"


class ToolChoice(Schema):
    """Whether tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class CountRequest(Request):
    """Body of POST /v1/messages/count_tokens."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "thinking": ({"type": "disabled"},),
        "mcp_servers": ([],),
        "container": (),
    }

    model: str = Field(default="", max_length=512)
    messages: Annotated[list[Turn], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Content = ""
    tools: list[AnthropicTool] = Field(default_factory=list[AnthropicTool], max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None

    @model_validator(mode="after")
    def _the_user_has_the_last_word(self) -> CountRequest:
        if self.messages[-1].role != "user":
            raise refuse("messages", "messages: the last must be the user's; an answer cannot be begun for the model")
        return self

    def conversation(self) -> Conversation:
        """Return it as chat templates know it, the system's text first."""
        turns = [message for turn in self.messages for message in turn.messages()]
        system = [Message(role="system", content=self.system)] if self.system else []
        choice = self.tool_choice or ToolChoice(type="auto")
        names = {tool.name for tool in self.tools}
        if len(names) < len(self.tools):
            raise RequestError("tools: two of them have the same name", param="tools")
        if choice.type in ("any", "tool") and not (choice.name in names if choice.type == "tool" else names):
            raise RequestError("tool_choice: asks for a tool that is not there", param="tool_choice")
        named = NamedTool(type="function", function=NamedFunction(name=choice.name)) if choice.type == "tool" else None
        return Conversation.model_construct(
            messages=[*system, *turns],
            tools=[
                Tool(
                    type="function",
                    function=Function(name=tool.name, description=tool.description, parameters=tool.input_schema),
                )
                for tool in self.tools
            ],
            tool_choice=named or {"any": "required"}.get(choice.type, choice.type),
            parallel_tool_calls=not choice.disable_parallel_tool_use,
        )


class MessagesRequest(CountRequest):
    """Body of POST /v1/messages."""

    max_tokens: int = Field(ge=1, lt=1 << 31)
    temperature: float = Field(default=1.0, ge=0, le=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, lt=1 << 31)
    stop_sequences: Stops = ()
    stream: bool = False
    stream_options: Obfuscation = Field(default_factory=Obfuscation)
    """Not Anthropic's; named as OpenAI names it."""
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


class ToolUseBlock(TypedDict):
    """A call of an answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Any


class ThinkingBlock(TypedDict):
    """What the model thought before it answered; nothing signs it."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class AnthropicMessage(TypedDict):
    """Answer of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ToolUseBlock | ThinkingBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    warnings: NotRequired[list[str]]


class MessageShape:
    """A message, whole or in events: blocks one after the other, each opened, filled and closed."""

    named = True

    def __init__(self, id: str, model: str, warnings: list[str], reads: Reads | None = None) -> None:
        """Write for one request.

        Args:
            id: of the answer.
            model: name of the served model.
            warnings: told once.
            reads: what stands in the answer besides text; None: nothing.
        """
        self._id = id
        self._model = model
        self._warnings = warnings
        self._reader = Reader(reads or Reads())
        self._end: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}
        self._blocks = 0
        self._open = ""
        """Kind of the block that is open."""

    def begin(self, usage: Usage) -> list[dict[str, Any]]:
        """As in Shape: the message without content."""
        return [{"type": "message_start", "message": self._message([], usage)}]

    def chunks(self, pieces: Iterable[Piece], usage: Callable[[], Usage]) -> list[dict[str, Any]]:
        """As in Shape."""
        chunks: list[dict[str, Any]] = []
        for piece in pieces:
            said = self._reader.push(piece.text, final=piece.finish_reason is not None)
            if said.reasoning:
                chunks += self._filled("thinking", {"type": "thinking_delta", "thinking": said.reasoning})
            if said.content:
                chunks += self._filled("text", {"type": "text_delta", "text": said.content})
            for call in said.calls:
                if call.id:
                    chunks += self._opened("tool_use", id=call.id, name=call.name, input={})
                if call.arguments:
                    delta = {"type": "input_json_delta", "partial_json": call.arguments}
                    chunks += self._filled("tool_use", delta)
            if piece.finish_reason is not None:
                self._end = _end(piece, self._reader.called)
        return chunks

    def end(self, usage: Usage) -> list[dict[str, Any]]:
        """As in Shape."""
        return [
            *(self._opened("text", text="") if not self._blocks else []),
            *self._closed(),
            {"type": "message_delta", "delta": self._end, "usage": _usage(usage)},
            {"type": "message_stop"},
        ]

    def failed(self, error: PellucidError) -> Any:
        """As in Shape."""
        return anthropic_error_body(error)

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> AnthropicMessage:
        """As in Shape."""
        (piece,) = pieces
        said = self._reader.push(piece.text, final=True)
        content: list[TextBlock | ToolUseBlock | ThinkingBlock] = []
        if said.reasoning:
            content.append({"type": "thinking", "thinking": said.reasoning, "signature": ""})
        if said.content or not (said.calls or said.reasoning):
            content.append({"type": "text", "text": said.content})
        for call in said.calls:
            if call.id:
                text = "".join(other.arguments for other in said.calls if other.index == call.index)
                content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _object(text)})
        self._end = _end(piece, self._reader.called)
        return self._message(content, usage)

    def _opened(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        closed = self._closed()
        self._open, self._blocks = kind, self._blocks + 1
        block = {"type": kind, **fields}
        return [*closed, {"type": "content_block_start", "index": self._blocks - 1, "content_block": block}]

    def _filled(self, kind: str, delta: dict[str, Any]) -> list[dict[str, Any]]:
        fields = {"thinking": "", "signature": ""} if kind == "thinking" else {"text": ""}
        opened = [] if self._open == kind else self._opened(kind, **fields)
        return [*opened, {"type": "content_block_delta", "index": self._blocks - 1, "delta": delta}]

    def _closed(self) -> list[dict[str, Any]]:
        was_open, self._open = self._open, ""
        return [{"type": "content_block_stop", "index": self._blocks - 1}] if was_open else []

    def _message(self, content: list[TextBlock | ToolUseBlock | ThinkingBlock], usage: Usage) -> AnthropicMessage:
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


def _object(arguments: str) -> Any:
    """The arguments of a call; of one that was cut off, none."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def _end(piece: Piece, called: bool) -> dict[str, str | None]:
    if called and piece.finish_reason == "stop":
        return {"stop_reason": "tool_use", "stop_sequence": None}
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
