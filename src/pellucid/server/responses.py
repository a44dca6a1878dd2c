"""OpenAI's responses: what clients send, and what they read.

Law: data and shapes only, no engine and no I/O. Nothing is kept between requests: a conversation is sent whole each
time, and whoever refers to an earlier response is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from pellucid.sampling.params import SamplingParams
from pellucid.server.choices import Piece, Usage
from pellucid.server.openai import (
    INT64,
    MAX_MESSAGES,
    Content,
    Conversation,
    Message,
    Request,
    Schema,
    refuse,
)

if TYPE_CHECKING:
    from pellucid.errors import PellucidError


class InputMessage(Schema):
    """An item of the input: a turn of the conversation, or an answer that came before, as it was given."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: str = ""
    status: str = ""


def _items(value: Any) -> Any:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("input_type", "Input should be a string or a list of items")
    items: list[Any] = []
    for i, item in enumerate(cast(list[Any], value)):
        kind = cast(dict[str, Any], item).get("type", "message") if isinstance(item, dict) else "message"
        if kind == "item_reference":
            raise refuse("input", f"input[{i}]: nothing is stored on this server; send the item itself")
        if kind == "reasoning":  # what a model thought on an earlier turn is not shown to it again
            continue
        if kind != "message":
            raise refuse("input", f"input[{i}]: only messages are served by this version of Pellucid")
        items.append(item)
    return items


Input = Annotated[
    list[InputMessage],
    BeforeValidator(_items),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}),
]

_STATELESS = "nothing is stored on this server; send the whole conversation as input"


class ResponsesRequest(Request):
    """Body of POST /v1/responses."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "truncation": ("disabled",),
        "background": (False,),
        "include": ([],),
        "prompt": (),
        "text": ({}, {"format": {"type": "text"}}),
        "store": (True, False),
        "service_tier": ("auto", "default"),
        "max_tool_calls": (),
        "conversation": (),
        "previous_response_id": (),
    }

    model: str = Field(default="", max_length=512)
    input: Input = Field(min_length=1, max_length=MAX_MESSAGES)
    """Always a list here."""
    instructions: str = ""
    max_output_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, lt=1 << 31)
    seed: int | None = Field(default=None, ge=-INT64, lt=INT64)
    stream: bool = False
    user: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    @classmethod
    def refusal(cls, name: str) -> str:
        """As in Request."""
        if name in ("previous_response_id", "conversation"):
            return f"{name}: {_STATELESS}"
        return super().refusal(name)

    def warnings(self) -> list[str]:
        """As in Request, and that nothing is stored."""
        stored = ["store: nothing is stored on this server"] if (self.model_extra or {}).get("store") else []
        return stored + super().warnings()

    def _unknown(self) -> Iterator[str]:
        yield from super()._unknown()
        for i, item in enumerate(self.input):
            for name in item.model_extra or ():
                yield f"input[{i}].{name}"

    def conversation(self) -> Conversation:
        """Return it as chat templates know it, the instructions first."""
        turns = [Message(role=item.role, content=item.content) for item in self.input]
        first = [Message(role="system", content=self.instructions)] if self.instructions else []
        return Conversation.model_construct(messages=[*first, *turns])

    def sampling(self) -> SamplingParams:
        """Return the parameters."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            max_tokens=self.max_output_tokens,
        )


class ResponseShape:
    """A response, whole or in events."""

    named = True

    def __init__(self, id: str, created: int, model: str, body: ResponsesRequest) -> None:
        """Write for one request.

        Args:
            id: of the answer.
            created: seconds since 1970.
            model: name of the served model.
            body: what was asked; the answer repeats its settings.
        """
        self._item_id = f"msg_{id.removeprefix('resp_')}"
        self._text = ""
        self._finish: str | None = None
        self._sequence = 0
        self._fields: dict[str, Any] = {
            "id": id,
            "object": "response",
            "created_at": created,
            "model": model,
            "error": None,
            "instructions": body.instructions or None,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "user": body.user or None,
        }
        if warnings := body.warnings():
            self._fields["warnings"] = warnings

    def begin(self, usage: Usage) -> list[dict[str, Any]]:
        """As in Shape: the response without output, then its one item and that item's one part."""
        response = self._response("in_progress", [], None)
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
            self._event("response.output_item.added", output_index=0, item=self._item("in_progress", [])),
            self._of_part("response.content_part.added", part=_part("")),
        ]

    def chunks(self, pieces: Iterable[Piece], usage: Callable[[], Usage]) -> list[dict[str, Any]]:
        """As in Shape."""
        chunks: list[dict[str, Any]] = []
        for piece in pieces:
            if piece.text:
                self._text += piece.text
                chunks.append(self._of_part("response.output_text.delta", delta=piece.text, logprobs=[]))
            self._finish = piece.finish_reason or self._finish
        return chunks

    def end(self, usage: Usage) -> list[dict[str, Any]]:
        """As in Shape."""
        part, status = _part(self._text), self._status()
        item = self._item(status, [part])
        return [
            self._of_part("response.output_text.done", text=self._text, logprobs=[]),
            self._of_part("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{status}", response=self._response(status, [item], usage)),
        ]

    def failed(self, error: PellucidError) -> Any:
        """As in Shape."""
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        """As in Shape."""
        (piece,) = pieces
        self._finish = piece.finish_reason
        status = self._status()
        return self._response(status, [self._item(status, [_part(piece.text)])], usage)

    def _status(self) -> str:
        return "incomplete" if self._finish == "length" else "completed"

    def _event(self, type: str, **fields: Any) -> dict[str, Any]:
        self._sequence += 1
        return {"type": type, "sequence_number": self._sequence - 1, **fields}

    def _of_part(self, type: str, **fields: Any) -> dict[str, Any]:
        return self._event(type, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, status: str, output: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        return self._fields | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": output,
            "usage": None if usage is None else _usage(usage),
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
