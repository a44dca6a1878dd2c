"""What clients send: one schema per request, with the limits on each field.

Law: data only, no engine and no I/O. `null` means the default for every optional field. A field nobody knows is kept
and named in `warnings`, or refused where `strict` says so; a field that would change the answer and is not served is
refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError, from_json

from pellucid.engine.pooling import PoolingKind
from pellucid.errors import RequestError
from pellucid.sampling.grammar import MAX_CHOICES, Grammar
from pellucid.sampling.params import (
    BREAKERS,
    IDLE,
    MAX_ALLOWED,
    MAX_BAD_WORDS,
    MAX_BREAKERS,
    SAMPLERS,
    SamplingParams,
    spelled_stages,
)

MAX_PROMPTS = 32
MAX_MESSAGES = 4096
MAX_N = 8
MAX_TOP_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_BIASES = 1024
MAX_STOP_IDS = 64
MAX_TEMPLATE_ARGUMENTS = 32
MAX_TOOLS = 128
MAX_NAME = 128
NAME_PATTERN = r"^[A-Za-z0-9_.-]+$"
"""Of tools."""
MAX_STAGES = 16
MAX_FIELDS = 1024
MAX_WARNINGS = 16
INT64 = 1 << 63

Prompt = str | list[int]
AnySchema = dict[str, Any] | bool
"""A JSON schema."""

_ANY: Any = object()
_NOT_SERVED: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "grammar": ("",),
    "guided_decoding_backend": _ANY,
    "guided_whitespace_pattern": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "suffix": ("",),
    "prompt_embeds": (),
    "best_of": (1,),
    "use_beam_search": (False,),
    "truncate_prompt_tokens": (),
    "continue_final_message": (False,),
    "chat_template": (),
    "documents": ([],),
    "logits_processors": ([],),
    "length_penalty": (1, 1.0),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "sampler_order": ([],),
    "n_probs": (0,),
}
"""Fields of OpenAI, vLLM and llama.cpp that change the answer and are not served → the values that change nothing."""
_INSTEAD = {
    "sampler_order": "send samplers, a list of names of stages",
    "n_probs": "send logprobs, and in a chat top_logprobs",
}
"""What to do about a field that is not served, where there is more to say than to leave it out."""
_SPELLINGS = {
    "repetition_penalty": ("repeat_penalty",),
    "max_tokens": ("n_predict",),
    "typical_p": ("typ_p", "typical"),
}
"""Field → llama.cpp's names for it. Its repeat_penalty counts the last 64 tokens unless told; ours counts all."""


def _optional_may_be_null(schema: dict[str, Any]) -> None:
    for name, field in schema.get("properties", {}).items():
        if name not in schema.get("required", ()):
            kinds = field.pop("anyOf", None) or [
                {k: field.pop(k) for k in list(field) if k not in ("default", "title", "description")}
            ]
            field["anyOf"] = kinds if {"type": "null"} in kinds else [*kinds, {"type": "null"}]


class Schema(BaseModel):
    """Base of all requests: strict types, no NaN, null is the default."""

    model_config = ConfigDict(
        strict=True,
        extra="allow",
        allow_inf_nan=False,
        json_schema_extra=_optional_may_be_null,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        fields = cast(dict[str, Any], data)
        if len(fields) > MAX_FIELDS:
            raise PydanticCustomError("too_long", "an object with more than {most} fields", {"most": MAX_FIELDS})
        return {name: value for name, value in fields.items() if value is not None}

    def unknown(self) -> Iterator[str]:
        """Name the fields that nobody knows, here and in the objects inside: tools[0].function.colour."""
        yield from self.model_extra or ()
        for name, field in type(self).model_fields.items():
            value, shown = getattr(self, name), field.alias or name
            if isinstance(value, Schema):
                yield from (f"{shown}.{inner}" for inner in value.unknown())
            elif isinstance(value, list):
                for i, item in enumerate(cast(list[Any], value)):
                    if not isinstance(item, Schema):
                        break  # items are all objects, or none is
                    yield from (f"{shown}[{i}].{inner}" for inner in item.unknown())


def _either(name: str) -> AliasChoices:
    return AliasChoices(name, *_SPELLINGS[name])


def refuse(param: str, message: str) -> PydanticCustomError:
    """Return the error that says `param` cannot be served; the text names it already."""
    return PydanticCustomError("not_served", "{text}", {"param": param, "text": message})


def text_of(content: Any) -> Any:
    """Join the parts of a message's content, with a line break between them; anything else passes on."""
    if not isinstance(content, list):
        return content
    texts: list[str] = []
    for i, part in enumerate(cast(list[Any], content)):
        fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
        kind = fields.get("type")
        if kind not in ("text", "input_text", "output_text"):
            what = (
                f"a content part of type {kind!r}" if isinstance(kind, str) and len(kind) < 64 else "this content part"
            )
            raise PydanticCustomError(
                "invalid_part", "part {i}: {what} is not served, only text parts", {"i": i, "what": what}
            )
        text = fields.get("text")
        if not isinstance(text, str):
            raise PydanticCustomError("invalid_part", "part {i}: 'text' must be a string", {"i": i})
        texts.append(text)
    return "\n".join(texts)


_PARTS_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            },
        },
    ]
}

Content = Annotated[str, BeforeValidator(text_of), WithJsonSchema(_PARTS_SCHEMA)]


class CalledFunction(Schema):
    """What a call of an earlier answer called."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    arguments: str = "{}"
    """JSON; other text is shown to the model as it is."""


class ToolCall(Schema):
    """A call of an earlier answer."""

    id: str = Field(default="", max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Schema):
    """One turn of a chat; `tool` is the result of a call."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content
    name: str = ""
    tool_calls: list[ToolCall] = Field(default_factory=list[ToolCall], max_length=MAX_TOOLS)
    tool_call_id: str = Field(default="", max_length=256)
    reasoning_content: str = ""
    """What the model thought; templates that want it get it."""

    @model_validator(mode="before")
    @classmethod
    def _something_is_said(cls, data: Any) -> Any:
        if isinstance(data, dict):
            fields = cast(dict[str, Any], data)
            if fields.get("role") == "function" or fields.get("function_call"):
                raise refuse("messages", "messages: functions are called tools now; send role tool and tool_calls")
            if fields.get("tool_calls") and fields.get("role") != "assistant":
                raise refuse("messages", "messages: tool_calls are the assistant's")
            if fields.get("content") is None and fields.get("tool_calls"):
                return fields | {"content": ""}
        return cast(Any, data)

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates know it; a developer is the system to them."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content,
        }
        if self.name:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id:
            message["tool_call_id"] = self.tool_call_id
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        return message


class Function(Schema):
    """What may be called."""

    name: str = Field(min_length=1, max_length=MAX_NAME, pattern=NAME_PATTERN)
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict[str, Any])
    """A JSON schema; it is always kept to, whatever `strict` says."""
    strict: bool = True

    def shown(self) -> dict[str, Any]:
        """Return it as models see it."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


class Tool(Schema):
    """A function that the model may call."""

    type: Literal["function"]
    function: Function


class NamedFunction(Schema):
    """Part of NamedTool."""

    name: str


class NamedTool(Schema):
    """The one tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class Obfuscation(Schema):
    """How a stream may be seen from outside."""

    include_obfuscation: bool = False
    """Packets tell nothing of tokens: they are of one size, and leave at ticks of a clock."""


class StreamOptions(Obfuscation):
    """What a stream carries besides text."""

    include_usage: bool = False
    """One more chunk at the end, with empty `choices`, that holds `usage`."""
    continuous_usage_stats: bool = False
    """`usage` so far in every chunk."""


def _stops(value: Any) -> Any:
    stops: list[Any] = [value] if isinstance(value, str) else cast(list[Any], value)
    if not isinstance(value, str | list) or not all(isinstance(stop, str) for stop in stops):
        raise PydanticCustomError("string_type", "Input should be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise PydanticCustomError(
            "too_long", "{got} strings; at most {most} are served", {"got": len(stops), "most": MAX_STOPS}
        )
    for stop in stops:
        if not 0 < len(stop.encode()) <= MAX_STOP_BYTES:
            raise PydanticCustomError("stop_length", "a stop string has 1 to {most} bytes", {"most": MAX_STOP_BYTES})
    return tuple(stops)


def _biases(value: Any) -> Any:
    if not isinstance(value, dict):
        raise PydanticCustomError("dict_type", "Input should be an object of token id → bias")
    biases = cast(dict[Any, Any], value)
    if len(biases) > MAX_BIASES:
        raise PydanticCustomError(
            "too_long", "{got} entries; at most {most} are served", {"got": len(biases), "most": MAX_BIASES}
        )
    for key, bias in biases.items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10):
            raise PydanticCustomError("int_parsing", "keys are token ids, in decimal digits")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise PydanticCustomError("float_type", "values are numbers from -100 to 100")
    return {int(key): float(bias) for key, bias in biases.items()}


Stops = Annotated[
    tuple[str, ...],
    PlainValidator(_stops),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": MAX_STOPS}]}
    ),
]
Biases = Annotated[
    dict[int, float],
    PlainValidator(_biases),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}),
]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]


class Inspect(Schema):
    """That the autopsy of this request, on a server that keeps one, may show its text."""


class Body(Schema):
    """A body that is refused for fields nobody knows, if `strict` says so."""

    strict: bool = False
    """Ours: refuse fields that nobody knows, which are otherwise named in `warnings`."""
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Fields that are not served → the values that change nothing."""

    @model_validator(mode="after")
    def _refuse_what_is_unknown(self) -> Self:
        if self.strict and (names := self._without_meaning()):
            shown = ", ".join(repr(name[:64]) for name in names[:MAX_WARNINGS])
            more = f" and {len(names) - MAX_WARNINGS} more" if len(names) > MAX_WARNINGS else ""
            text = f"Unknown field{'s' * (len(names) > 1)}: {shown}{more}; leave out what nobody knows, or strict"
            raise PydanticCustomError("unknown", "{text}", {"param": names[0][:64], "text": text})
        return self

    def _without_meaning(self) -> list[str]:
        return [name for name in self.unknown() if name not in self.neutral]


class Request(Body):
    """A request that warns of fields without meaning and refuses those that would change the answer."""

    inspect: Inspect | None = None
    """Ours: the server's operator may read this prompt and its answer in the autopsy."""
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = _NOT_SERVED

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_served(cls, data: Any) -> Any:
        if isinstance(data, dict):
            fields = cast(dict[str, Any], data)
            for name in cls.neutral.keys() & fields.keys() - cls.model_fields.keys():
                harmless = cls.neutral[name]
                value = fields[name]
                if value is not None and harmless is not _ANY and value not in harmless:
                    raise refuse(name, cls.refusal(name))
        return cast(Any, data)

    @classmethod
    def refusal(cls, name: str) -> str:
        """Say why a field that would change the answer is refused."""
        return f"{name} is not served by this version of Pellucid; {_INSTEAD.get(name, 'leave it out')}"

    def warnings(self) -> list[str]:
        """Name the fields that had no meaning here; at most MAX_WARNINGS of them, and how many more."""
        names = self._without_meaning()
        shown = [f"unknown field {name[:64]!r} was ignored" for name in names[:MAX_WARNINGS]]
        return (
            shown
            if len(names) <= MAX_WARNINGS
            else [*shown, f"{len(names) - MAX_WARNINGS} more unknown fields were ignored"]
        )


class JSONSchemaFormat(Schema):
    """`json_schema` of a response_format. It is always kept to, whatever `strict` says."""

    name: str = ""
    description: str = ""
    json_schema: AnySchema = Field(default_factory=dict[str, Any], alias="schema")
    strict: bool = True


class ResponseFormat(Schema):
    """Form of the answer, as OpenAI says it; `schema` beside type json_object is llama.cpp's and others' spelling."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JSONSchemaFormat | None = None
    just_schema: AnySchema | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _a_schema_where_one_is_due(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None and self.just_schema is None:
            raise refuse("response_format", "response_format: type json_schema needs json_schema with a schema")
        return self

    def grammar(self) -> Grammar | None:
        """Return what it asks for; None: text of any form."""
        if self.type == "text":
            return None
        schema = self.just_schema if self.json_schema is None else self.json_schema.json_schema
        return Grammar.json_object() if schema is None else Grammar.json_schema(schema)


class StructuredOutputs(Schema):
    """Form of the answer, as vLLM says it: one of these."""

    json_: AnySchema | str | None = Field(default=None, alias="json")
    json_object: bool = False
    regex: str | None = None
    choice: list[str] | None = Field(default=None, max_length=MAX_CHOICES)
    grammar: str | None = None

    def grammars(self) -> list[Grammar]:
        """Return all that it asks for."""
        asked: list[Grammar] = []
        if self.json_ is not None:
            asked.append(Grammar.json_schema(_parsed(self.json_) if isinstance(self.json_, str) else self.json_))
        if self.json_object:
            asked.append(Grammar.json_object())
        if self.regex is not None:
            asked.append(Grammar.regex(self.regex))
        if self.choice is not None:
            asked.append(Grammar.choice(self.choice))
        if self.grammar is not None:
            asked.append(Grammar.lark(self.grammar))
        return asked


def _parsed(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise RequestError(f"the json_schema is not JSON: {error}", param="json_schema") from None


class GenerationRequest(Request):
    """What chat and completions share. Names and meanings are OpenAI's, then vLLM's."""

    model: str = Field(default="", max_length=512)
    """Name of the served model; empty: the one there is."""
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, lt=1 << 31)
    min_p: float = Field(default=0.0, ge=0, le=1)
    top_n_sigma: float = Field(default=0.0, ge=-1, le=1000)
    typical_p: float = Field(default=1.0, gt=0, le=1, validation_alias=_either("typical_p"))
    xtc_probability: float = Field(default=0.0, ge=0, le=1)
    xtc_threshold: float = Field(default=0.1, ge=0, le=1)
    dynatemp_range: float = Field(default=0.0, ge=0, le=100)
    dynatemp_exponent: float = Field(default=1.0, ge=0, le=100)
    samplers: list[str] | str | None = Field(default=None, max_length=MAX_STAGES)
    """Stages in order; what is not named is not run. As a string: llama.cpp's letters."""
    dry_multiplier: float = Field(default=0.0, ge=0, le=100)
    """What is taken at least from a token that goes on with a repeat; 0: the stage dry is off."""
    dry_base: float = Field(default=1.75, ge=1, le=100)
    dry_allowed_length: int = Field(default=2, ge=0, lt=1 << 31)
    dry_penalty_last_n: int = Field(default=-1, ge=-1, lt=1 << 31)
    """Of prompt and answer, how many of the last tokens are searched for repeats; -1: all."""
    dry_sequence_breakers: list[str] = Field(default_factory=lambda: list(BREAKERS), max_length=MAX_BREAKERS)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100, validation_alias=_either("repetition_penalty"))
    repeat_last_n: int = Field(default=-1, ge=-1, lt=1 << 31)
    """Of prompt and answer, how many of the last tokens the penalties count; -1: all."""
    logit_bias: Biases = Field(default_factory=dict[int, float])
    allowed_token_ids: list[TokenId] | None = Field(default=None, min_length=1, max_length=MAX_ALLOWED)
    bad_words: list[str] = Field(default_factory=list[str], max_length=MAX_BAD_WORDS)
    seed: int | None = Field(default=None, ge=-INT64, lt=INT64)
    n: int = Field(default=1, ge=1, le=MAX_N)
    stop: Stops = ()
    stop_token_ids: list[TokenId] = Field(default_factory=list[int], max_length=MAX_STOP_IDS)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = Field(default=0, ge=0, lt=1 << 31)
    max_tokens: int | None = Field(default=None, ge=0, lt=1 << 31, validation_alias=_either("max_tokens"))
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] | None = None
    """What logprobs describe: the model, or what was drawn from, after every stage; null: --logprobs-mode."""
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    """Score the prompt's tokens, and name so many of the likeliest at each place."""
    skip_special_tokens: bool = True
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    json_schema: AnySchema | None = None
    """As llama.cpp spells a schema."""
    guided_json: AnySchema | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = Field(default=None, max_length=MAX_CHOICES)
    guided_grammar: str | None = None
    """As vLLM spelled what is structured_outputs now."""
    priority: int = Field(default=0, ge=-INT64, lt=INT64)
    cache_salt: str = Field(default="", max_length=256)
    """Only requests of the same key with the same salt share cached prefixes."""
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    user: str = ""
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, data: Any) -> Any:
        if isinstance(data, dict):
            fields = cast(dict[str, Any], data)
            for name, others in _SPELLINGS.items():
                given = [one for one in (name, *others) if fields.get(one) is not None]
                if len(given) > 1:
                    raise refuse(given[1], f"{given[1]} is another name for {given[0]}; send one of them")
        return cast(Any, data)

    @model_validator(mode="after")
    def _scores_come_whole(self) -> GenerationRequest:
        if self.stream and self.prompt_logprobs is not None:
            raise refuse("prompt_logprobs", "prompt_logprobs: come with an answer in one; leave out stream")
        return self

    def warnings(self) -> list[str]:
        """As of Request, and a stage that does nothing."""
        idle = any(stage == IDLE for _, stage in spelled_stages(self.samplers or ()))
        return super().warnings() + [f"samplers: the stage {IDLE} does nothing here"] * idle

    def grammar(self) -> Grammar | None:
        """Return the form that the answer must have. Raises RequestError if more than one is asked for."""
        asked = [] if self.structured_outputs is None else self.structured_outputs.grammars()
        guided = StructuredOutputs.model_construct(
            json_=self.guided_json,
            regex=self.guided_regex,
            choice=self.guided_choice,
            grammar=self.guided_grammar,
        )
        asked += guided.grammars()
        if self.response_format is not None and (grammar := self.response_format.grammar()) is not None:
            asked.append(grammar)
        if self.json_schema is not None:
            asked.append(Grammar.json_schema(self.json_schema))
        if len(asked) > 1:
            kinds = " and ".join(grammar.kind for grammar in asked[:4])
            raise RequestError(f"an answer has one form, and {kinds} are asked for", param="response_format")
        return asked[0] if asked else None

    def _sampling(self, *, max_tokens: int | None, logprobs: int | None, echoed: int | None = None) -> SamplingParams:
        """Make the parameters; `echoed`: of the likeliest tokens, how many an echo of the prompt names."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            top_n_sigma=self.top_n_sigma,
            typical_p=self.typical_p,
            xtc_probability=self.xtc_probability,
            xtc_threshold=self.xtc_threshold,
            dynatemp_range=self.dynatemp_range,
            dynatemp_exponent=self.dynatemp_exponent,
            samplers=SAMPLERS if self.samplers is None else tuple(self.samplers),
            dry_multiplier=self.dry_multiplier,
            dry_base=self.dry_base,
            dry_allowed_length=self.dry_allowed_length,
            dry_penalty_last_n=self.dry_penalty_last_n,
            dry_sequence_breakers=tuple(self.dry_sequence_breakers),
            repetition_penalty=self.repetition_penalty,
            repeat_last_n=self.repeat_last_n,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            allowed_token_ids=None if self.allowed_token_ids is None else tuple(self.allowed_token_ids),
            bad_words=tuple(self.bad_words),
            seed=self.seed,
            n=self.n,
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids),
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            max_tokens=max_tokens,
            logprobs=logprobs,
            logprobs_mode=self.logprobs_mode,
            prompt_logprobs=max((n for n in (echoed, self.prompt_logprobs) if n is not None), default=None),
            skip_special_tokens=self.skip_special_tokens,
            grammar=self.grammar(),
        )


class Conversation(Schema):
    """Messages, and how the model's chat template writes them."""

    messages: Annotated[list[Message], FailFast()] = Field(min_length=1, max_length=MAX_MESSAGES)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(
        default_factory=dict[str, bool | int | float | str], max_length=MAX_TEMPLATE_ARGUMENTS
    )
    """Variables for the model's own chat template, such as enable_thinking."""
    tools: list[Tool] = Field(default_factory=list[Tool], max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True

    @model_validator(mode="after")
    def _the_named_tool_is_there(self) -> Conversation:
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise refuse("tools", "tools: two of them have the same name")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise refuse("tool_choice", "tool_choice: names a function that is not among the tools")
        if self.tool_choice == "required" and not names:
            raise refuse("tool_choice", "tool_choice: required, and there are no tools")
        return self

    def callable_tools(self) -> list[Tool]:
        """Return the tools that the answer may call."""
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return [tool for tool in self.tools if tool.function.name == choice.function.name]
        return [] if choice == "none" else self.tools

    def may_call_again(self) -> bool:
        """Return whether there may be a second call: a tool that is named is called once, as OpenAI's models do."""
        return self.parallel_tool_calls and not isinstance(self.tool_choice, NamedTool)


class ChatRequest(Conversation, GenerationRequest):
    """Body of POST /v1/chat/completions."""

    max_completion_tokens: int | None = Field(default=None, ge=0, lt=1 << 31)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise refuse("top_logprobs", "top_logprobs needs logprobs to be true")
        if (self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens) == 0:
            name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
            raise refuse(name, f"{name}: a chat answer has at least 1 token")
        return self

    def sampling(self) -> SamplingParams:
        """Return the parameters; without a limit the answer may run to the end of the context."""
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        return self._sampling(max_tokens=limit, logprobs=self.top_logprobs if self.logprobs else None)


def _prompts(value: Any) -> list[Prompt]:
    wrong = PydanticCustomError(
        "prompt_type", "Input should be a string, a list of strings, a list of token ids or a list of such lists"
    )
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise wrong
    items = cast(list[Any], value)
    if not items:
        raise PydanticCustomError("too_short", "an empty list holds no prompt")
    if set(map(type, items)) == {int}:
        return [_ids(items)]
    if len(items) > MAX_PROMPTS:
        raise PydanticCustomError(
            "too_long", "{got} prompts; at most {most} are served", {"got": len(items), "most": MAX_PROMPTS}
        )
    if all(isinstance(item, str) for item in items):
        return items
    if all(isinstance(item, list) and set(map(type, cast(list[Any], item))) == {int} for item in items):
        return [_ids(item) for item in items]
    raise wrong


def _ids(ids: list[int]) -> list[int]:
    if min(ids) < 0 or max(ids) >= 1 << 31:
        raise PydanticCustomError("token_id", "a token id is outside of the vocabulary")
    return ids


Prompts = Annotated[
    list[Prompt],
    PlainValidator(_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                {
                    "type": "array",
                    "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                    "minItems": 1,
                    "maxItems": MAX_PROMPTS,
                },
            ]
        }
    ),
]


class EmbeddingRequest(Request):
    """Body of POST /v1/embeddings."""

    model: str = Field(default="", max_length=512)
    """Name of the served model; empty: the one there is."""
    input: Prompts
    """Always a list here: each item is a text or its token ids."""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1, lt=1 << 31)
    """Numbers of each embedding: the first so many, scaled to length 1 anew; null: the model's width."""
    pooling: PoolingKind = "mean"
    """Ours: the mean of the hidden states of all tokens, or that of the last token."""
    add_special_tokens: bool = True
    priority: int = Field(default=0, ge=-INT64, lt=INT64)
    cache_salt: str = Field(default="", max_length=256)
    """Only requests of the same key with the same salt share cached prefixes."""
    user: str = ""


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    prompt: Prompts
    """Always a list here: each item is a text or its token ids."""
    max_tokens: int | None = Field(default=16, ge=0, lt=1 << 31, validation_alias=_either("max_tokens"))
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool = False
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _nothing_to_do(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise refuse("max_tokens", "max_tokens: 0 is of use only with echo or prompt_logprobs")
        return self

    def sampling(self) -> SamplingParams:
        """Return the parameters; with echo and logprobs the prompt is scored, too."""
        return self._sampling(
            max_tokens=self.max_tokens, logprobs=self.logprobs, echoed=self.logprobs if self.echo else None
        )
