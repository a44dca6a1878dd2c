"""Conversation: the turns of one chat, and the commands that change how it goes on.

Law: a turn is either kept whole, question and answer, or not at all; an answer that was stopped counts as far as it
came.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pellucid.cli.run import stats_line, write
from pellucid.errors import ContextLengthError, RequestError

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.results import RequestOutput
    from pellucid.sampling.params import SamplingParams

_SETTABLE: dict[str, type] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "max_tokens": int,
    "seed": int,
    "stop": str,
}


class Conversation:
    """Messages so far, and how the next answer is sampled.

    Args:
        llm: a model with a chat template.
        params: sampling of the answers.
        max_tokens: longest answer; None: 512, or what the context leaves.
        system: system message.
    """

    COMMANDS: ClassVar[dict[str, str]] = {
        "help": "/help                   these commands",
        "reset": "/reset                  forget the conversation",
        "set": "/set NAME VALUE         change sampling: temperature 0.2, seed none; alone: show all",
        "system": "/system TEXT            set the system message and begin anew; none: drop it; alone: show it",
        "stats": "/stats                  counts, times and seed of the last answer, and the room that is left",
        "save": "/save FILE              write the conversation to a new file, as JSON",
        "exit": "/exit                   leave (Ctrl-D)",
    }

    def __init__(self, llm: LLM, params: SamplingParams, max_tokens: int | None, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._max_tokens = max_tokens
        self._system = system
        self.messages: list[dict[str, str]] = []
        self._last: tuple[RequestOutput, float, float] | None = None

    def turn(self, text: str) -> None:
        """Answer the user's next message on stdout. Ctrl-C stops the answer and passes on."""
        asked = [*self.messages, {"role": "user", "content": text}]
        ids = self._llm.tokenize_chat(self._with_system(asked))
        context = self._llm.device.context
        if len(ids) >= context:
            raise ContextLengthError(
                f"the conversation is {len(ids)} tokens long and the context {context}; /reset begins anew, "
                "or leave and start with a larger --ctx"
            )
        limit = self._llm.room(len(ids), *([] if self._max_tokens is None else [self._max_tokens]))
        began = time.perf_counter()
        first = 0.0
        result: RequestOutput | None = None
        try:
            with closing(self._llm.stream(ids, replace(self._params, max_tokens=limit))) as stream:
                for chunk in stream:
                    first = first or time.perf_counter()
                    result = chunk.request
                    write(chunk)
        finally:
            ended = time.perf_counter()
            if result is not None:
                answer = result.outputs[0]
                self._last = (result, first - began, ended - first)
                if answer.text:
                    self.messages = [*asked, {"role": "assistant", "content": answer.text}]
        print(flush=True)
        if result is None:
            return
        answer = result.outputs[0]
        if answer.finish_reason == "error":
            raise RequestError(f"the answer broke off: {result.error}")
        if answer.finish_reason == "length":
            full = len(ids) + len(answer.token_ids) >= context
            hint = "the context is full; /reset begins anew" if full else "/set max_tokens N allows more"
            print(f"(cut after {len(answer.token_ids)} tokens: {hint})", file=sys.stderr)

    def command(self, line: str) -> bool:
        """Carry out a line that starts with /. Returns False if it asks to leave."""
        name, _, rest = line[1:].strip().partition(" ")
        rest = rest.strip()
        match name:
            case "exit" | "quit" | "bye":
                return False
            case "help" | "?":
                say("\n".join(self.COMMANDS.values()), indent=24)
            case "reset":
                self.messages, self._last = [], None
                say("(the conversation is forgotten)")
            case "set":
                self._set(rest)
            case "system":
                self._set_system(rest)
            case "stats":
                self._stats()
            case "save":
                self._save(rest)
            case _:
                raise RequestError(f"there is no command /{name}; /help lists them")
        return True

    def _with_system(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        return messages if self._system is None else [{"role": "system", "content": self._system}, *messages]

    def _set(self, rest: str) -> None:
        name, _, value = rest.replace("=", " ", 1).partition(" ")
        name, value = name.strip().replace("-", "_"), value.strip()
        if not name:
            values = {key: getattr(self._params, key) for key in _SETTABLE} | {"max_tokens": self._max_tokens}
            say("\n".join(f"{key:<20} {_shown(item)}" for key, item in values.items()))
            return
        kind = _SETTABLE.get(name)
        if kind is None:
            raise RequestError(f"{name!r} cannot be set; choose one of {', '.join(_SETTABLE)}")
        if not value:
            raise RequestError(f"give a value: /set {name} VALUE")
        none = value.lower() == "none"
        if none and name not in ("max_tokens", "seed", "stop"):
            raise RequestError(f"{name} must be a number")
        try:
            parsed = None if none else kind(value)
        except ValueError:
            raise RequestError(f"{name}={value!r} is not a {'whole ' if kind is int else ''}number") from None
        if name == "max_tokens":
            if parsed is not None and parsed < 1:
                raise RequestError("max_tokens must be at least 1")
            self._max_tokens = parsed
        else:
            self._params = replace(self._params, **{name: (parsed,) if kind is str and parsed is not None else parsed})
        say(f"{name} = {_shown(parsed)}")

    def _set_system(self, text: str) -> None:
        if not text:
            say(self._system if self._system is not None else "(there is no system message)")
            return
        self._system = None if text.lower() == "none" else text
        self.messages, self._last = [], None
        say("(the system message is set; the conversation begins anew)")

    def _stats(self) -> None:
        if self._last is None:
            say("(nothing has been said yet)")
            return
        result, to_first, decoding = self._last
        used = len(result.prompt_token_ids) + len(result.outputs[0].token_ids)
        context = self._llm.device.context
        say(f"{stats_line(result, to_first, decoding)}\n{used} of {context} tokens of the context used")

    def _save(self, name: str) -> None:
        if not name:
            raise RequestError("give a file: /save FILE")
        path = Path(name).expanduser()
        content = {"model": self._llm.name, "messages": self._with_system(self.messages)}
        try:
            with path.open("x", encoding="utf-8") as file:
                json.dump(content, file, ensure_ascii=False, indent=2)
                file.write("\n")
        except FileExistsError:
            raise RequestError(f"{path} exists already; choose another name") from None
        except OSError as error:
            raise RequestError(f"{path} cannot be written: {error.strerror}") from None
        say(f"(saved {len(self.messages)} messages to {path})")


def say(text: str, indent: int = 0) -> None:
    """Print on stderr. A terminal gets lines broken between words, the later ones indented."""
    if sys.stderr.isatty():
        width = max(40, shutil.get_terminal_size().columns)
        fill = partial(textwrap.fill, width=width, subsequent_indent=" " * indent, break_on_hyphens=False)
        text = "\n".join(map(fill, text.split("\n")))
    print(text, file=sys.stderr)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        value = " ".join(str(item) for item in value) or None  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return "none" if value is None else str(value)
