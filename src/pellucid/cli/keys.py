"""`pellucid keys`: make, list and revoke the keys of a server.

Law: the key is printed once, alone on stdout; all else goes to stderr. The file holds digests only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from pellucid.cli import options
from pellucid.errors import ConfigError

keys = typer.Typer(
    no_args_is_help=True,
    help="Make, list and revoke the keys of a server.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[
    Path,
    typer.Option("--file", "-f", envvar="PELLUCID_API_KEY_FILE", help="File of keys, as serve --api-key-file reads"),
]
DEFAULT = Path("keys.toml")


@keys.command()
def new(
    name: Annotated[str, typer.Argument(help="Whose key it is; also its tenant")],
    file: File = DEFAULT,
    scopes: Annotated[str, typer.Option(help="What it may do, with commas: infer, inspect, metrics, admin")] = "infer",
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Requests a minute; default: no limit")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Tokens a minute, prompts and answers; default: no limit")
    ] = None,
    tokens_per_day: Annotated[int | None, typer.Option(min=1, help="The same a day, of UTC; default: no limit")] = None,
    weight: Annotated[
        float | None,
        typer.Option(min=0.01, max=100, help="Share under load: 2 gets twice the tokens of 1, the default"),
    ] = None,
) -> None:
    """Make a key: print it, once, and write its SHA-256 to the file."""
    from pellucid.server.keyfile import add
    from pellucid.server.keys import SCOPES, Scope

    asked = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    known: list[Scope] = [scope for scope in SCOPES if scope in asked]
    if len(known) != len(asked):
        raise ConfigError(f"--scopes {scopes}: give one or more of {', '.join(SCOPES)}", param="scopes")
    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "tokens_per_day": tokens_per_day,
        "weight": weight,
    }
    secret = add(file, name, known, {field: value for field, value in limits.items() if value is not None})
    print(f"key {name!r}, written to {file} as its SHA-256; it is shown this once:", file=sys.stderr, flush=True)
    print(secret.reveal())


@keys.command("list")
def list_keys(file: File = DEFAULT, as_json: options.Json = False) -> None:
    """List the keys of a file, and what each may do."""
    from pellucid.server.keys import read

    found = read(file)
    rows = [
        {
            "name": key.name,
            "scopes": sorted(key.scopes),
            "requests_per_minute": key.requests_per_minute,
            "tokens_per_minute": key.tokens_per_minute,
            "tokens_per_day": key.tokens_per_day,
            "weight": key.weight,
            "sha256": key.public_id,
        }
        for key in found
    ]
    if as_json:
        print(json.dumps(rows))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print(f"{file} has no key; make one: pellucid keys new NAME --file {file}", file=sys.stderr)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("key", "scopes", "requests/min", "tokens/min", "tokens/day", "weight", "sha256"):
        table.add_column(title, justify="right" if "/" in title or title == "weight" else "left")
    for row in rows:
        shown = [" ".join(value) if isinstance(value, list) else value for value in row.values()]
        table.add_row(
            *(
                "-" if v is None else f"{v:g}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else v
                for v in shown
            )
        )
    Console(width=None if sys.stdout.isatty() else 110).print(table)


@keys.command()
def revoke(name: Annotated[str, typer.Argument(help="Which")], file: File = DEFAULT) -> None:
    """Take a key out of the file; a server that runs forgets it on SIGHUP."""
    from pellucid.server.keyfile import revoke as take_out

    take_out(file, name)
    print(f"key {name!r} is revoked; tell a running server: kill -HUP PID", file=sys.stderr)
