"""The Typer application: the commands as a group, and its help.

Law: `pellucid --help` imports no command.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer
from typer.core import TyperGroup

from pellucid import __version__
from pellucid.cli import COMMANDS

SETTINGS = {"help_option_names": ["-h", "--help"]}

CLI_ERROR: type[Exception] = typer.BadParameter.__bases__[0].__bases__[0]
"""What Typer raises for a command line that it cannot read."""


class _Commands(TyperGroup):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        return [name for theme in COMMANDS.values() for name, _ in theme]

    def get_command(self, ctx: typer.Context, cmd_name: str):  # type: ignore[override]
        about = {name: text for theme in COMMANDS.values() for name, text in theme}.get(cmd_name)
        if about is None:
            return None
        module = cmd_name.replace("-", "_")
        found = getattr(import_module(f"pellucid.cli.{module}"), module)
        single = typer.Typer(
            name=cmd_name, add_completion=False, rich_markup_mode=None, context_settings=SETTINGS, no_args_is_help=True
        )
        if isinstance(found, typer.Typer):
            single.add_typer(found, name="")
        else:
            single.command(name=cmd_name, no_args_is_help=False)(found)
        return typer.main.get_command(single)

    def format_help(self, ctx: typer.Context, formatter: object) -> None:  # type: ignore[override]
        lines = ["Usage: pellucid COMMAND [OPTIONS]", "", "The see-through LLM inference engine.", ""]
        for theme, commands in COMMANDS.items():
            lines += [f"{theme}:", *(f"  {name:<9} {about}" for name, about in commands), ""]
        lines += [
            "Options:",
            "  -V, --version         Show the version",
            "  --install-completion  Install completion for this shell",
            "  --show-completion     Show completion for this shell",
            "  -h, --help            Show this, or a command's options: pellucid run --help",
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
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", callback=_version, is_eager=True)] = False,
) -> None:
    """The see-through LLM inference engine."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
