"""From a validated request to the token ids of its prompts.

Law: spellings of control tokens in a client's text stay text; only the model's own template writes control tokens.
Nothing is ever cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pellucid.errors import ContextLengthError, RequestError
from pellucid.server.openai import CompletionRequest, Conversation, Prompt
from pellucid.text.chat import encode_rendered
from pellucid.text.toolprompt import shown
from pellucid.text.tools import style_of

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.server.service import Service


async def chat_prompt(service: Service, body: Conversation) -> list[int]:
    """Write the conversation through the model's template and encode it. Raises RequestError as the template does."""
    llm = service.llm
    if llm.template.source is None:
        raise RequestError(
            f"{service.name} has no chat template; continue text with /v1/completions instead", param="messages"
        )
    messages = [message.for_template() for message in body.messages]
    tools = [] if body.tool_choice == "none" else [tool.function.shown() for tool in body.tools]
    if (tools or any(message["role"] == "tool" or "tool_calls" in message for message in messages)) and not style_of(
        llm.template.source
    ).in_template:
        messages, tools = shown(messages, tools), []

    def work() -> list[int]:
        rendered = llm.template.render(
            messages,
            tools=[{"type": "function", "function": tool} for tool in tools] or None,
            add_generation_prompt=body.add_generation_prompt,
            extra=dict(body.chat_template_kwargs),
        )
        llm.tokenizer.check_fits(rendered.text, service.context)
        return encode_rendered(llm.tokenizer, rendered)

    return await service.prepare(work, sum(len(message.content) + 64 for message in body.messages) + 256 * len(tools))


async def prompt_ids(
    service: Service, prompts: Sequence[Prompt], *, add_special: bool, param: str = "prompt"
) -> list[list[int]]:
    """Encode the prompts that are text, pass on those that are ids.

    Raises RequestError, which names the field `param`: one is empty, does not fit, or has an id that is no token.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    ids = [prompt for prompt in prompts if not isinstance(prompt, str)]
    if texts:  # a request holds texts or ids, never both
        try:
            ids = await encode_texts(service, texts, add_special=add_special)
        except RequestError as error:
            error.param = param
            raise
    elif service.pii is not None:
        raise RequestError(
            f"{param}: this server hides personal data from the model (--pii), which takes text; send no token ids",
            param=param,
        )
    size = service.llm.tokenizer.vocab_size
    for i, prompt in enumerate(ids):
        if not prompt:
            raise RequestError(f"{param} {i} is empty; give at least one token", param=param)
        if len(prompt) > service.context:
            raise too_long(service, f"{len(prompt)} tokens", param)
        if max(prompt) >= size:
            raise RequestError(f"{param} {i} has a token id outside 0..{size - 1}", param=param)
    return ids


async def encode_texts(service: Service, texts: list[str], *, add_special: bool) -> list[list[int]]:
    """Encode texts. Raises ContextLengthError for one that cannot fit, whatever its tokens are."""
    tokenizer = service.llm.tokenizer

    def work() -> list[list[int]]:
        for text in texts:
            tokenizer.check_fits(text, service.context)
        return tokenizer.encode_batch(texts, add_special=add_special)

    return await service.prepare(work, sum(map(len, texts)))


def too_long(service: Service, size: str, param: str) -> ContextLengthError:
    """Return the error for a prompt that does not fit by itself."""
    return ContextLengthError(
        f"This model's maximum context length is {service.context} tokens. However, your prompt has {size}. "
        "Please reduce the length of the prompt.",
        param=param,
    )


def prompt_text(llm: LLM, body: CompletionRequest, index: int, ids: list[int]) -> str:
    """Return a prompt as text, to be echoed: as it came, or decoded from its ids."""
    prompt = body.prompt[index]
    return prompt if isinstance(prompt, str) else llm.tokenizer.decode(ids, skip_special=False)
