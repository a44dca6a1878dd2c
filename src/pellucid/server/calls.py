"""What a chat answer is held to and read for: calls of tools, and thoughts.

Law: whether calls are drawn and how they are read is decided here, from the model's template, once a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pellucid.errors import RequestError
from pellucid.sampling.grammar import Grammar
from pellucid.sampling.schemafault import place_of
from pellucid.sampling.trial import TOO_SLOW
from pellucid.text.callgrammar import arguments_schema, grammar
from pellucid.text.marks import Marks
from pellucid.text.read import Reads
from pellucid.text.reasoning import tags_of
from pellucid.text.tools import Tool, style_of

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.sampling.grammar import Matcher
    from pellucid.sampling.params import SamplingParams
    from pellucid.server.openai import Conversation


def expected(
    llm: LLM, params: SamplingParams, body: Conversation, ids: list[int]
) -> tuple[SamplingParams, Reads | None]:
    """Return the parameters of an answer, its form if it may call tools included, and what is read in it.

    Args:
        llm: the model; its template tells how it writes calls.
        params: as they were asked for.
        body: the conversation and its tools.
        ids: the prompt.

    Raises RequestError for a text that must have a form and may be calls, too.
    """
    template = llm.template.source or ""
    tools = [tool.function.shown() for tool in body.callable_tools()]
    required = bool(tools) and body.tool_choice != "auto"
    if params.grammar is not None and tools and not required:  # where calls are all there is, no text can have a form
        raise RequestError(
            f"an answer that may call tools has no other form ({params.grammar.kind}); set tool_choice to none",
            param="response_format",
        )
    thoughts = tags_of(template) if tools or params.grammar is None else None
    style = style_of(template) if tools else None
    if style is None and thoughts is None:
        return params, None
    controls = {token.text: token.id for token in llm.tokenizer.added.values() if token.control}
    spelled = [] if style is None else [style.begin, style.separator, style.end]
    spelled += [] if thoughts is None else [thoughts.open, thoughts.close]
    reads = Reads(
        style,
        Marks(spelled, controls),
        thoughts,
        thoughts is not None and thoughts.begun(llm.tokenizer.decode(ids[-8:], skip_special=False)),
        one_call=not body.may_call_again(),
        tools=() if body.tool_choice == "none" else tuple(tool.function.shown() for tool in body.tools),
    )
    if style is not None:
        text = grammar(
            style,
            tools,
            required=required,
            parallel=body.may_call_again(),
            marks=reads.marks,
            thoughts=thoughts,
            thinking=reads.thinking,
        )
        try:
            params = replace(params, grammar=Grammar.lark(text))
        except RequestError as error:
            raise RequestError(f"the tools are too large: {error.message}", param="tools") from None
    return params, reads


def compiled(llm: LLM, params: SamplingParams, reads: Reads | None) -> Matcher | None:
    """Return the matcher of an answer, as LLM.matcher does. For calls it raises RequestError with the tool at fault."""
    try:
        return llm.matcher(params)
    except RequestError as error:
        if reads is None or reads.style is None:
            raise
        raise _of_tool(llm, reads.tools, error) from None


def _of_tool(llm: LLM, tools: Sequence[Tool], error: RequestError) -> RequestError:
    """Return the error of a tool's schema: the first that cannot be compiled by itself."""

    def fault(schema: Mapping[str, Any]) -> str:
        return llm.grammar_fault(Grammar.json_schema(schema))

    why = error.message
    if TOO_SLOW not in why:  # or each look might take as long again
        for i, tool in enumerate(tools):
            schema = arguments_schema(tool)
            if why := fault(schema):
                param = f"tools[{i}].function.parameters"
                return RequestError(f"{param}{place_of(schema, why, fault)}: {why}", param=param)
    return RequestError(f"tools: their schemas cannot be compiled together: {error.message}", param="tools")
