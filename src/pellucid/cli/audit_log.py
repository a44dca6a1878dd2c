"""`pellucid audit-log`: verify the audit log of a server, `serve --audit-log`.

Law: exit code 0 only if every line follows from the one before it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.cli import options

if TYPE_CHECKING:
    from pellucid.server.auditchain import Intact

BROKEN = 1
"""Exit code."""

audit_log = typer.Typer(
    no_args_is_help=True,
    help="Verify the audit log of a server.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@audit_log.command()
def verify(
    files: Annotated[list[Path], typer.Argument(help="The log; where it was rotated, all files, the oldest first")],
    head: Annotated[
        str | None,
        typer.Option(help="Digest that was noted earlier, as serve tells it; without it a cut tail cannot be seen"),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Follow the chain from line to line. Exit code 1: a line was changed, taken out, put in or moved."""
    from pellucid.errors import ConfigError
    from pellucid.server.auditchain import DIGEST, BrokenError
    from pellucid.server.auditchain import verify as follow

    if head is not None and not DIGEST.fullmatch(head):
        raise ConfigError(f"--head {head[:80]} is not a digest; it has 64 digits of 0-9 and a-f", param="head")
    try:
        intact = follow(files, head)
    except BrokenError as error:
        print(json.dumps({"intact": False, "why": str(error)}) if as_json else f"broken: {error}")
        raise typer.Exit(BROKEN) from None
    print(json.dumps({"intact": True, **asdict(intact)}) if as_json else told(intact))


def told(intact: Intact) -> str:
    """The outcome for people."""
    lines = [f"intact: {intact.lines:,} lines, head {intact.head}"]
    if intact.first is not None and intact.first > 1:
        lines.append(f"it begins with line {intact.first:,} of the chain; what came before was not given")
    lines += [f"torn by a crash, and sealed at the next start: {where}" for where in intact.sealed]
    return "\n".join(lines)
