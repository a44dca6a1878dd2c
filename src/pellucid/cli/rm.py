"""`pellucid rm`: remove models from the store.

Law: only what Pellucid pulled is ever deleted; a path outside the store is refused.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.errors import ConfigError, ModelNotFoundError

if TYPE_CHECKING:
    from pellucid.models.store import Entry


def rm(
    models: Annotated[list[str], typer.Argument(help="Names as `pellucid ls` shows them")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
) -> None:
    """Remove models, or what is left of an unfinished pull."""
    from pellucid.models import store
    from pellucid.models.store import size_text

    doomed = [_find(name) for name in models]
    for found in dict.fromkeys(doomed):
        whole = not isinstance(found, str)
        name = found.name if whole else f"unfinished pull {found}"
        size = found.nbytes if whole else dict(store.partials())[found]
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigError(f"not removing {name} unasked; add --yes")
            typer.confirm(f"Remove {name} ({size_text(size)})?", abort=True, err=True)
        freed = store.remove(found) if whole else store.remove_partial(found)
        print(f"removed {name}: {size_text(freed)} freed")


def _find(name: str) -> Entry | str:
    """The model of a name, or the key of an unfinished pull."""
    from pellucid.models import sources, store

    here = store.entries()
    for entry in here:
        if name in (entry.name, entry.folder.name):
            return entry
    if name in dict(store.partials()):
        return name
    try:
        source = sources.parse(name)
    except ModelNotFoundError:
        source = None
    if isinstance(source, sources.PathSource):
        path = Path(name).expanduser().resolve()
        for entry in here:
            if path == entry.folder.resolve() or entry.folder.resolve() in path.parents:
                return entry
        raise ConfigError(f"{name} is not in Pellucid's store ({store.root()}), so it is not Pellucid's to remove")
    if source is not None and (entry := store.find(source)) is not None:
        return entry
    if source is not None and store.key_of(source) in dict(store.partials()):
        return store.key_of(source)
    raise ModelNotFoundError(f"no model {name!r} is here; `pellucid ls` lists those that are")
