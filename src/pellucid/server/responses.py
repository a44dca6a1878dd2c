"""OpenAI's responses: what clients send, and what they read.

Law: data and shapes only, no engine and no I/O. Nothing is kept between requests: a conversation is sent whole each
time, and whoever refers to an earlier response is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from pellucid.errors import RequestError
from pellucid.sampling.grammar import Grammar
from pellucid.sampling.params import SamplingParams
from pellucid.server.choices import Piece, Usage
from pellucid.server.openai import (
    INT64,
    MAX_MESSAGES,
    MAX_NAME,
    MAX_TOOLS,
    AnySchema,
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
    Tool,
    ToolCall,
    refuse,
)
from pellucid.text.calls import CallDelta
from pellucid.text.read import Reader, Reads

if TYPE_CHECKING:
    from pellucid.errors import PellucidError


class InputMessage(Schema):
    """An item of the input: a turn of the conversation, or an answer that came before, as it was given."""

    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: str = ""
    status: str = ""


class InputCall(Schema):
    """A call that came before."""

    type: Literal["function_call"]
    call_id: str = Field(max_length=256)
    name: str = Field(min_length=1, max_length=MAX_NAME)
    arguments: str
    id: str = ""
    status: str = ""


class InputResult(Schema):
    """What a call brought."""

    type: Literal["function_call_output"]
    call_id: str = Field(max_length=256)
    output: Content
    id: str = ""
    status: str = ""


def _items(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("input_type", "Input should be a string or a list of items")
    items: list[Any] = []
    for i, item in enumerate(cast(list[Any], value)):
        if isinstance(item, dict):
            item = {"type": "message"} | cast(dict[str, Any], item)
            kind = item["type"]
            if kind == "item_reference":
                raise refuse("input", f"input[{i}]: nothing is stored on this server; send the item itself")
            if kind == "reasoning":  # what a model thought on an earlier turn is not shown to it again
                continue
            if kind not in ("message", "function_call", "function_call_output"):
                raise refuse("input", f"input[{i}]: only messages, function calls and their outputs are served")
        items.append(item)
    return items


Item = Annotated[InputMessage | InputCall | InputResult, Field(discriminator="type")]
Input = Annotated[
    list[Item],
    BeforeValidator(_items),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}),
]


class FunctionTool(Function):
    """A function that the model may call."""

    type: Literal["function"]


class NamedChoice(Schema):
    """The one tool that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(Schema):
    """Form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    description: str = ""
    json_schema: AnySchema | None = Field(default=None, alias="schema")
    strict: bool = True


class TextOptions(Schema):
    """`text` of a request."""

    format: TextFormat | None = None
    verbosity: str = ""


_STATELESS = "nothing is stored on this server; send the whole conversation as input"


class ResponsesRequest(Request):
    """Body of POST /v1/responses."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "truncation": ("disabled",),
        "background": (False,),
        "include": ([],),
        "prompt": (),
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
    tools: list[FunctionTool] = Field(default_factory=list[FunctionTool], max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedChoice = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, lt=1 << 31)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, lt=1 << 31)
    seed: int | None = Field(default=None, ge=-INT64, lt=INT64)
    stream: bool = False
    stream_options: Obfuscation = Field(default_factory=Obfuscation)
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

    def conversation(self) -> Conversation:
        """Return it as chat templates know it, the instructions first. Raises RequestError for tools that clash."""
        first = [Message(role="system", content=self.instructions)] if self.instructions else []
        names = {tool.name for tool in self.tools}
        if len(names) < len(self.tools):
            raise RequestError("tools: two of them have the same name", param="tools")
        choice = self.tool_choice
        if (choice == "required" and not names) or (isinstance(choice, NamedChoice) and choice.name not in names):
            raise RequestError("tool_choice: asks for a tool that is not there", param="tool_choice")
        return Conversation.model_construct(
            messages=[*first, *_messages(self.input)],
            tools=[Tool.model_construct(type="function", function=tool) for tool in self.tools],
            tool_choice=NamedTool(type="function", function=NamedFunction(name=choice.name))
            if isinstance(choice, NamedChoice)
            else choice,
            parallel_tool_calls=self.parallel_tool_calls,
        )

    def sampling(self) -> SamplingParams:
        """Return the parameters."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            max_tokens=self.max_output_tokens,
            grammar=self._grammar(),
        )

    def _grammar(self) -> Grammar | None:
        form = self.text.format if self.text is not None else None
        if form is None or form.type == "text":
            return None
        if form.type == "json_schema" and form.json_schema is None:
            raise RequestError("text.format: type json_schema needs a schema", param="text.format.schema")
        return Grammar.json_object() if form.json_schema is None else Grammar.json_schema(form.json_schema)


def _messages(items: Sequence[InputMessage | InputCall | InputResult]) -> list[Message]:
    """Calls that follow each other, or the text that they came with, are one turn."""
    messages: list[Message] = []
    for item in items:
        if isinstance(item, InputResult):
            messages.append(Message(role="tool", content=item.output, tool_call_id=item.call_id))
        elif isinstance(item, InputMessage):
            messages.append(Message(role=item.role, content=item.content))
        else:
            call = ToolCall(id=item.call_id, function=CalledFunction(name=item.name, arguments=item.arguments))
            if messages and messages[-1].role == "assistant":
                messages[-1].tool_calls.append(call)
            else:
                messages.append(Message(role="assistant", content="", tool_calls=[call]))
    return messages


class ResponseShape:
    """A response, whole or in events: items one after the other, each added, filled and done."""

    named = True

    def __init__(self, id: str, created: int, model: str, body: ResponsesRequest, reads: Reads | None = None) -> None:
        """Write for one request.

        Args:
            id: of the answer.
            created: seconds since 1970.
            model: name of the served model.
            body: what was asked; the answer repeats its settings.
            reads: what stands in the answer besides text; None: nothing.
        """
        self._name = id.removeprefix("resp_")
        self._reader = Reader(reads or Reads())
        self._output: list[dict[str, Any]] = []
        """Items; all but the last are done."""
        self._finish: str | None = None
        self._sequence = 0
        asked = body.model_dump(include={"tools", "tool_choice", "text"}, by_alias=True, exclude_unset=True)
        self._fields: dict[str, Any] = {
            "id": id,
            "object": "response",
            "created_at": created,
            "model": model,
            "error": None,
            "instructions": body.instructions or None,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": asked.get("text") or {"format": {"type": "text"}},
            "tool_choice": asked.get("tool_choice", "auto"),
            "tools": asked.get("tools", []),
            "top_p": body.top_p,
            "truncation": "disabled",
            "user": body.user or None,
        }
        if warnings := body.warnings():
            self._fields["warnings"] = warnings

    def begin(self, usage: Usage) -> list[dict[str, Any]]:
        """As in Shape: the response without output."""
        response = self._response("in_progress", None)
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def chunks(self, pieces: Iterable[Piece], usage: Callable[[], Usage]) -> list[dict[str, Any]]:
        """As in Shape."""
        chunks: list[dict[str, Any]] = []
        for piece in pieces:
            chunks += self._take(piece)
        return chunks

    def end(self, usage: Usage) -> list[dict[str, Any]]:
        """As in Shape."""
        status = self._status()
        last = self._done(status)
        if not self._output:
            last = [*self._added_message(), *self._done(status)]
        return [*last, self._event(f"response.{status}", response=self._response(status, usage))]

    def failed(self, error: PellucidError) -> Any:
        """As in Shape."""
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> dict[str, Any]:
        """As in Shape."""
        (piece,) = pieces
        self._take(piece)
        self.end(usage)
        return self._response(self._status(), usage)

    def _take(self, piece: Piece) -> list[dict[str, Any]]:
        self._finish = piece.finish_reason or self._finish
        said = self._reader.push(piece.text, final=piece.finish_reason is not None)
        chunks: list[dict[str, Any]] = []
        if said.reasoning:
            chunks += self._thought(said.reasoning)
        if said.content:
            chunks += self._text(said.content)
        for call in said.calls:
            chunks += self._call(call)
        return chunks

    def _is_open(self, kind: str) -> bool:
        return bool(self._output) and self._output[-1]["type"] == kind and self._output[-1]["status"] == "in_progress"

    def _added(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        done = self._done("completed")
        self._output.append(item | {"status": "in_progress"})
        added = self._event(
            "response.output_item.added", output_index=len(self._output) - 1, item=deepcopy(self._output[-1])
        )
        return [*done, added]

    def _added_message(self) -> list[dict[str, Any]]:
        id = f"msg_{self._name}{len(self._output) or ''}"
        chunks = self._added({"id": id, "type": "message", "role": "assistant", "content": []})
        self._output[-1]["content"].append(_part(""))
        return [*chunks, self._of_part("response.content_part.added", part=_part(""))]

    def _text(self, text: str) -> list[dict[str, Any]]:
        added = [] if self._is_open("message") else self._added_message()
        self._output[-1]["content"][0]["text"] += text
        return [*added, self._of_part("response.output_text.delta", delta=text, logprobs=[])]

    def _thought(self, text: str) -> list[dict[str, Any]]:
        added: list[dict[str, Any]] = []
        if not self._is_open("reasoning"):
            item: dict[str, Any] = {"id": f"rs_{self._name}", "type": "reasoning", "summary": [], "content": []}
            added = self._added(item)
            self._output[-1]["content"].append({"type": "reasoning_text", "text": ""})
        self._output[-1]["content"][0]["text"] += text
        return [*added, self._of_part("response.reasoning_text.delta", delta=text)]

    def _call(self, call: CallDelta) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        if call.id:
            id = f"fc_{self._name}{len(self._output)}"
            item = {"id": id, "type": "function_call", "call_id": call.id, "name": call.name, "arguments": ""}
            chunks += self._added(item)
        if call.arguments:
            self._output[-1]["arguments"] += call.arguments
            chunks.append(self._of_item("response.function_call_arguments.delta", delta=call.arguments))
        return chunks

    def _done(self, status: str) -> list[dict[str, Any]]:
        """End the item that is open."""
        if not self._output or self._output[-1]["status"] != "in_progress":
            return []
        item = self._output[-1]
        item["status"] = status
        chunks: list[dict[str, Any]] = []
        if item["type"] == "message":
            (part,) = item["content"]
            chunks.append(self._of_part("response.output_text.done", text=part["text"], logprobs=[]))
            chunks.append(self._of_part("response.content_part.done", part=part))
        elif item["type"] == "reasoning":
            chunks.append(self._of_part("response.reasoning_text.done", text=item["content"][0]["text"]))
        else:
            chunks.append(
                self._of_item("response.function_call_arguments.done", name=item["name"], arguments=item["arguments"])
            )
        return [
            *chunks,
            self._event("response.output_item.done", output_index=len(self._output) - 1, item=deepcopy(item)),
        ]

    def _status(self) -> str:
        return "incomplete" if self._finish == "length" else "completed"

    def _event(self, type: str, **fields: Any) -> dict[str, Any]:
        self._sequence += 1
        return {"type": type, "sequence_number": self._sequence - 1, **fields}

    def _of_item(self, type: str, **fields: Any) -> dict[str, Any]:
        return self._event(type, item_id=self._output[-1]["id"], output_index=len(self._output) - 1, **fields)

    def _of_part(self, type: str, **fields: Any) -> dict[str, Any]:
        return self._of_item(type, content_index=0, **fields)

    def _response(self, status: str, usage: Usage | None) -> dict[str, Any]:
        return self._fields | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": list(self._output),
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
