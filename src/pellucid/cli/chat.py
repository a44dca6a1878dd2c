"""`pellucid chat`: a conversation in the terminal, or over a pipe.

Law: a line is either a command, which starts with /, or the user's next turn. Ctrl-C stops the answer, never the
program. Answers go to stdout; everything else goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pellucid.cli import options
from pellucid.cli.conversation import Conversation, say
from pellucid.cli.inputs import MOST_LINE, on_terminal, stdin
from pellucid.errors import PellucidError, RequestError

if TYPE_CHECKING:
    from pathlib import Path


def chat(
    model: options.Model = options.DEFAULT_MODEL,
    system: options.System = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = 0.7,
    top_k: options.TopK = 0,
    top_p: options.TopP = 0.9,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    threads: options.Threads = None,
    ctx: options.Ctx = None,
    kv: options.KV = "f16",
    tokenizer: options.Tokenizer = None,
) -> None:
    """Talk with a model; it remembers the conversation.

    /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves. Without a terminal, each line of standard input
    is a turn.
    """
    typed = on_terminal()
    params = options.sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop,
    )
    with options.load(model, threads, ctx, kv, tokenizer=tokenizer) as llm:
        if llm.template.source is None:
            raise RequestError(
                f'{llm.name} has no chat template, so it cannot chat; use: pellucid run -m {model} "text"'
            )
        conversation = Conversation(llm, params, max_tokens, system)
        if typed:
            print(
                f"{llm.name} · context {llm.device.context} tokens · /help for commands, Ctrl-D to leave",
                file=sys.stderr,
            )
            _talk(conversation, _typed_lines())
        else:
            _talk(conversation, _piped_lines())


def _talk(conversation: Conversation, lines: Iterator[str]) -> None:
    failed: PellucidError | None = None
    for line in lines:
        if not line.strip():
            continue
        try:
            if line.startswith("/"):
                if not conversation.command(line):
                    break
            else:
                conversation.turn(line)
        except PellucidError as error:
            say(f"error: {error.message}")
            failed = error
        except KeyboardInterrupt:
            print("\n(stopped; /exit leaves)", file=sys.stderr)
    if failed is not None and not on_terminal():
        raise SystemExit(failed.exit_code)


def _piped_lines() -> Iterator[str]:
    while data := stdin().readline(MOST_LINE + 1):
        if len(data) > MOST_LINE:
            raise RequestError(f"a line of standard input is longer than {MOST_LINE >> 20} MiB, the most that is read")
        yield data.decode("utf-8", "replace").rstrip("\r\n")


def _typed_lines() -> Iterator[str]:
    ask = _asker()
    while True:
        try:
            yield ask()
        except KeyboardInterrupt:
            print("(Ctrl-D or /exit leaves)", file=sys.stderr)
        except EOFError:
            return


def _asker() -> Callable[[], str]:
    """Line editing with history and completion of commands. A paste keeps its newlines; Alt-Enter makes one."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    file = _history_file()
    session: PromptSession[str] = PromptSession(
        history=FileHistory(file) if file is not None else InMemoryHistory(),
        completer=WordCompleter([f"/{name}" for name in Conversation.COMMANDS], sentence=True),
        complete_while_typing=False,
        key_bindings=keys,
        prompt_continuation="... ",
    )
    return lambda: session.prompt(">>> ")


def _history_file() -> Path | None:
    """The history of what was typed, readable by its owner alone; None where it cannot be kept."""
    import os
    from pathlib import Path

    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "pellucid"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / "history"
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        file.chmod(0o600)
    except OSError as error:
        print(f"note: history is not kept ({error.strerror}: {folder})", file=sys.stderr)
        return None
    return file
