"""The `pellucid` command: one small module a command, loaded when it is called.

Law: `pellucid --help` imports no command. Whatever goes wrong is one line on stderr, `error: ...`, and an exit code;
PELLUCID_DEBUG=1 shows the traceback of what was not foreseen.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from pellucid import __version__
from pellucid.errors import PellucidError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: dict[str, tuple[tuple[str, str], ...]] = {
    "Talk to a model": (
        ("run", "Answer one prompt, streamed to stdout"),
        ("chat", "Talk, with memory of the conversation"),
        ("serve", "Serve the OpenAI API over HTTP"),
    ),
    "Look inside": (
        ("tokens", "Show how text becomes tokens"),
        ("score", "Measure how well a model predicts a text"),
        ("show", "Show a model's card"),
        ("bench", "Measure how fast a model runs here, and how near the machine's limits"),
        ("doctor", "Check this machine, and say what is wrong"),
    ),
    "Models": (
        ("pull", "Bring a model to this machine"),
        ("ls", "List models that are here, or could be"),
        ("rm", "Remove a model"),
    ),
}
"""Commands by theme. `NAME` is the function `NAME` of the module `pellucid.cli.NAME`."""

INTERRUPTED = 130
BROKEN_PIPE = 141
SETTINGS = {"help_option_names": ["-h", "--help"]}

_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
_CLI_ERROR: type[Exception] = _USAGE_ERROR.__bases__[0]


class _Commands(TyperGroup):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return [name for theme in COMMANDS.values() for name, _ in theme]

    def get_command(self, ctx: typer.Context, cmd_name: str):  # type: ignore[override]
        about = {name: text for theme in COMMANDS.values() for name, text in theme}.get(cmd_name)
        if about is None:
            return None
        single = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=SETTINGS)
        single.command(name=cmd_name, no_args_is_help=False)(
            getattr(import_module(f"pellucid.cli.{cmd_name}"), cmd_name)
        )
        return typer.main.get_command(single)

    def format_help(self, ctx: typer.Context, formatter: object) -> None:  # type: ignore[override]
        lines = ["Usage: pellucid COMMAND [OPTIONS]", "", "The see-through LLM inference engine.", ""]
        for theme, commands in COMMANDS.items():
            lines += [f"{theme}:", *(f"  {name:<8} {about}" for name, about in commands), ""]
        lines += [
            "Options:",
            "  --version             Show the version",
            "  --install-completion  Install completion for this shell",
            "  --show-completion     Show completion for this shell",
            "  --help                Show this, or a command's options: pellucid run --help",
            "",
            'Begin with:  pellucid run "What is gravity?"',
        ]
        formatter.write("\n".join(lines) + "\n")  # type: ignore[attr-defined]


app = typer.Typer(
    cls=_Commands, name="pellucid", invoke_without_command=True, rich_markup_mode=None, context_settings=SETTINGS
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pellucid {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False
) -> None:
    """The see-through LLM inference engine."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit. `args` is without the program's name; None: sys.argv."""
    sys.exit(_outcome(list(sys.argv[1:] if args is None else args)))


def _outcome(args: list[str]) -> int:
    try:
        command = typer.main.get_command(app)
        if "_PELLUCID_COMPLETE" in os.environ:
            command.main(args, prog_name="pellucid")
        # Not command.main(), which would turn a broken pipe into exit code 1.
        with command.make_context("pellucid", args) as context:
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as exit:
        return exit.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        _close_stdout()
        return BROKEN_PIPE
    except PellucidError as error:
        return _fail(error.message, error.exit_code)
    except _CLI_ERROR as error:
        return _fail(_usage(error), 2)
    except MemoryError:
        return _fail("out of memory; a smaller model, --ctx or --kv q8_0 takes less", 6)
    except Exception as error:
        if os.environ.get("PELLUCID_DEBUG", "0") not in ("", "0"):
            raise
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _fail(f"unexpected {what} (a fault of pellucid's; PELLUCID_DEBUG=1 shows the traceback)", 1)


def _usage(error: Exception) -> str:
    message = str(error.format_message())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "pellucid"
    return f"{message.rstrip('.')}; see {path} --help"


def _fail(message: str, code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _close_stdout()
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code


def _close_stdout() -> None:
    """Nobody reads any more: keep the interpreter's own last flush from complaining."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
