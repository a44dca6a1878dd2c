"""Chat templates: messages to the text, and the tokens, that a model was trained on.

Law: the text equals Hugging Face's apply_chat_template; only the template's own control tokens become control tokens
(spellings inside messages and tools stay text); never two BOS. The template runs in `sandbox`, bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from jinja2 import Template
from jinja2.exceptions import TemplateError

from pellucid.errors import RequestError
from pellucid.models.tokens import TokenizerSource
from pellucid.text.controls import Controls, break_data, choose_mark, mend, strings
from pellucid.text.sandbox import MAX_TEMPLATE, BoundedEnvironment, TemplateRefusedError, budget
from pellucid.text.tokenizer import Tokenizer

_ROWS = ("messages", "tools", "documents")


@dataclass(frozen=True)
class Part:
    """A stretch of rendered text: plain, or one control token that the template wrote."""

    text: str
    control: int | None = None


@dataclass(frozen=True)
class Rendered:
    """A rendered conversation, its control tokens told apart from text that merely spells them."""

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The whole text, as the template wrote it."""
        return "".join(part.text for part in self.parts)


class ChatTemplate:
    """One model's template. Safe to use from several threads."""

    def __init__(self, source: str | None, tokenizer: Tokenizer, variables: Mapping[str, str]) -> None:
        """`variables`: the spellings that a template may ask for, such as bos_token."""
        self.source = source
        self.variables = dict(variables)
        self._controls = Controls({token.text: token.id for token in tokenizer.added.values() if token.control})
        self._compiled: Template | None = None

    @classmethod
    def from_source(cls, source: TokenizerSource, tokenizer: Tokenizer) -> ChatTemplate:
        """A model's own template; one without has `source` None."""
        ids = {"bos_token": source.bos_id, "eos_token": source.eos_id, "unk_token": source.unk_id}
        ids["pad_token"] = source.pad_id
        variables = {name: tokenizer.token_text(index) for name, index in ids.items() if index is not None}
        return cls(source.chat_template, tokenizer, variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """Render a conversation.

        messages: dicts with `role` and `content` (text, or a list of parts), and what the template reads besides.
        tools: JSON schemas of functions. extra: more variables for the template (enable_thinking, documents …).
        Raises RequestError if there is no template, if it refuses the messages, or if it asks for too much.
        """
        if self.source is None:
            raise RequestError(
                "the model has no chat template: it continues raw text; use completions, or a model tuned for chat",
                param="messages",
            )
        data: dict[str, Any] = {**(extra or {}), "messages": _messages(messages, self.source), "tools": tools}
        data.setdefault("documents", None)
        texts = list(strings(data))
        mark = choose_mark([*texts, self.source])
        known = {**self.variables, **break_data(data, self._controls, mark)}
        try:
            with budget(sum(map(len, texts)) + 4 * len(texts)) as held:
                if self._compiled is None:
                    self._compiled = _compile(self.source)
                chunks: list[str] = []
                written = 0
                for chunk in self._compiled.generate(**known, add_generation_prompt=add_generation_prompt):
                    chunks.append(chunk)
                    written += len(chunk)
                    held.fits(written // 2)
        except TemplateRefusedError as error:
            raise RequestError(str(error), param="messages") from None
        except TemplateError as error:
            raise RequestError(f"the chat template refuses the messages: {_line(error)}", param="messages") from None
        except (
            Exception
        ) as error:  # a template may fail as any Python program does; that is the request's end, not ours
            raise RequestError(f"the chat template failed on the messages: {_line(error)}", param="messages") from None
        return Rendered(tuple(_parts("".join(chunks), self._controls, mark)))


def encode_rendered(tokenizer: Tokenizer, rendered: Rendered) -> list[int]:
    """Ids of a rendered conversation: one BOS if the model wants one, whoever wrote it, and no EOS."""
    ids: list[int] = []
    parts = rendered.parts
    for at, part in enumerate(parts):
        if part.control is not None:
            ids.append(part.control)
            continue
        before = None if at == 0 else parts[at - 1].control
        after = None if at + 1 == len(parts) else parts[at + 1].control
        text = part.text
        if before is not None and tokenizer.added[before].rstrip:
            text = text.lstrip()
        if after is not None and tokenizer.added[after].lstrip:
            text = text.rstrip()
        ids.extend(tokenizer.encode(text, add_special=False) if at == 0 else tokenizer.encode_after_control(text))
    bos = tokenizer.bos_id
    while len(ids) > 1 and bos is not None and ids[0] == ids[1] == bos:
        del ids[0]
    prefix = list(tokenizer.prefix)
    return ids if ids[: len(prefix)] == prefix else prefix + ids


def _compile(source: str) -> Template:
    if len(source) > MAX_TEMPLATE:
        raise TemplateRefusedError(f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE} are run")
    try:
        return BoundedEnvironment().from_string(source)
    except (RecursionError, MemoryError, SyntaxError):  # Python's own limits on the code that Jinja writes
        raise TemplateRefusedError("the chat template is nested too deep") from None


def _parts(text: str, controls: Controls, mark: str) -> list[Part]:
    parts: list[Part] = []
    done = 0
    for start, end, token in controls.find(text):
        if start > done:
            parts.append(Part(mend(text[done:start], mark)))
        parts.append(Part(text[start:end], token))
        done = end
    if done < len(text):
        parts.append(Part(mend(text[done:], mark)))
    return parts


def _messages(messages: Sequence[Mapping[str, Any]], source: str) -> list[dict[str, Any]]:
    """Messages as templates expect them: arguments as objects, and parts of text as text if it reads no parts."""
    reads_parts = "text']" in source or 'text"]' in source or ".text" in source
    return [_message(message, reads_parts) for message in messages]


def _message(message: Mapping[str, Any], reads_parts: bool) -> dict[str, Any]:
    out = dict(message)
    content = out.get("content")
    if isinstance(content, list) and not reads_parts:
        parts = cast(list[Any], content)
        texts = [cast(dict[str, Any], part).get("text") for part in parts if isinstance(part, dict)]
        if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
            out["content"] = "\n".join(cast(list[str], texts))
    calls = out.get("tool_calls")
    if isinstance(calls, list):
        out["tool_calls"] = [_call(call) for call in cast(list[Any], calls)]
    return out


def _call(call: Any) -> Any:
    """A tool call with its arguments as an object: the API carries them as JSON text, templates write it themselves."""
    if not isinstance(call, dict):
        return call
    out = cast(dict[str, Any], call).copy()
    if isinstance(out.get("function"), dict):
        out["function"] = _call(out["function"])
    if isinstance(out.get("arguments"), str):
        try:
            arguments = json.loads(out["arguments"])
        except (ValueError, RecursionError):
            return out
        if isinstance(arguments, dict):
            out["arguments"] = arguments
    return out


def _line(error: Exception) -> str:
    """An error as one line that is not too long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "…"
