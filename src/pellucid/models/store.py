"""The store: where pulled models lie, what is there, and how one gets in and out.

Law: a folder of the store is a whole model. It is staged under .partial, gets its model.json, and is renamed into place
in one step; what lies under .partial never counts as a model. One pull of a model runs at a time, under its lock.

    <root>/<key>/model.json + the files     root: $PELLUCID_HOME/models, or pellucid/models in the platform's cache
    <root>/.partial/<key>/                  a pull under way, or cut off and ready to resume
    <root>/.locks/<key>                     while someone holds it
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from pellucid.errors import DownloadError, MemoryPlanError, ModelFileError, PellucidError
from pellucid.models import registry, sources
from pellucid.models.sources import HubSource, PackageSource, Source

_MANIFEST = "model.json"


@dataclass(frozen=True)
class StoredFile:
    """One file of a stored model: its path inside the folder, its size, and its SHA-256 where it was computed."""

    path: str
    nbytes: int
    sha256: str | None


@dataclass(frozen=True)
class Entry:
    """A whole model of the store."""

    folder: Path
    source: HubSource | PackageSource
    main: str
    """The file to open, relative to the folder; "." for a Hugging Face folder."""
    files: tuple[StoredFile, ...]
    licence: str | None
    revision: str | None
    pulled: str
    """When, in UTC: YYYY-MM-DDThh:mm:ssZ."""

    @property
    def path(self) -> Path:
        """What `open_checkpoint` takes."""
        return self.folder if self.main == "." else self.folder / self.main

    @property
    def row(self) -> registry.NamedModel | None:
        """Its row of the registry, if it has one."""
        return sources.row_of(self.source)

    @property
    def name(self) -> str:
        """What to call it on the command line."""
        return self.row.name if self.row else str(self.source)

    @property
    def nbytes(self) -> int:
        """Bytes of all its files."""
        return sum(f.nbytes for f in self.files)

    def check(self) -> None:
        """Compare sizes on disk with those that were pulled.

        Raises:
            ModelFileError: a file is missing or was cut.
        """
        for file in self.files:
            path = self.folder / file.path
            size = path.stat().st_size if path.is_file() else None
            if size != file.nbytes:
                found = "is missing" if size is None else f"has {size} bytes, not {file.nbytes}"
                raise ModelFileError(f"{path} {found}; bring it again with `pellucid pull --force {self.name}`")


def root() -> Path:
    """Folder of the models: $PELLUCID_HOME/models, or pellucid/models in the platform's cache."""
    home = os.environ.get("PELLUCID_HOME")
    if home:
        return Path(home).expanduser().absolute() / "models"
    if sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "pellucid" / "models"


def key_of(source: HubSource | PackageSource) -> str:
    """Name of the folder of a source: the registered name, or the source with all but plain characters replaced."""
    if (row := sources.row_of(source)) is not None:
        return row.name
    return re.sub(r"[^A-Za-z0-9._]+", "--", str(source).removesuffix(".gguf"))


def entries() -> list[Entry]:
    """Every whole model, by name. Folders without a readable model.json are no models."""
    found: list[Entry] = []
    for manifest in root().glob("*/" + _MANIFEST):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, PellucidError):
            found.append(_read(manifest))
    return sorted(found, key=lambda e: e.name.lower())


def tokenizer_key(source: HubSource) -> str:
    """Where a repository's tokenizer lies that was brought without its model. `entries` lists models alone."""
    return f".tokenizers/{key_of(HubSource(source.repo))}"


def find_tokenizer(source: HubSource) -> Path | None:
    """Folder of the tokenizer of a repository: of its model, if that is here as safetensors, else brought alone."""
    entry = find(HubSource(source.repo))
    if entry is not None and entry.main == ".":
        return entry.folder
    alone = root() / tokenizer_key(source)
    return alone if (alone / _MANIFEST).is_file() else None


def partials() -> list[tuple[str, int]]:
    """(key, bytes on disk) of every pull that was cut off or is under way."""
    return sorted((p.name, tree_bytes(p)) for p in (root() / ".partial").glob("*") if p.is_dir())


def find(source: Source) -> Entry | None:
    """The whole model that answers a source; for a repository without a file, the best one of it that is here."""
    if isinstance(source, sources.PathSource):
        return None
    from pellucid.models.quants import quant_of, rank

    here = entries()
    if isinstance(source, PackageSource):
        return next((e for e in here if e.source == source or str(e.source) == str(source)), None)
    same = [e for e in here if isinstance(e.source, HubSource) and e.source.repo.lower() == source.repo.lower()]
    if source.file:
        same = [e for e in same if e.main == source.file]
    elif source.quant:
        same = [e for e in same if e.main != "." and quant_of(e.main) == source.quant]
    return min(same, key=lambda e: rank(quant_of(e.main)), default=None)


def remove(entry: Entry) -> int:
    """Delete a model and whatever of it was staged; returns the bytes freed."""
    freed = tree_bytes(entry.folder)
    with lock(entry.folder.name):
        # Renamed first: a delete that is cut off must not leave a folder that looks whole.
        doomed = _partial(entry.folder.name + ".removed")
        shutil.rmtree(doomed, ignore_errors=True)
        doomed.parent.mkdir(parents=True, exist_ok=True)
        entry.folder.rename(doomed)
        shutil.rmtree(doomed)
    return freed + remove_partial(entry.folder.name)


def remove_partial(key: str) -> int:
    """Delete what an unfinished pull left; returns the bytes freed."""
    folder = _partial(key)
    freed = tree_bytes(folder)
    if folder.is_dir():
        with lock(key):
            shutil.rmtree(folder, ignore_errors=True)
    return freed


def discard(key: str) -> None:
    """Delete what is staged under a key whose lock the caller holds."""
    shutil.rmtree(_partial(key), ignore_errors=True)


def stage(key: str) -> Path:
    """The folder in which a pull gathers its files; what an earlier one left is still there."""
    folder = _partial(key)
    _make(folder)
    return folder


def commit(
    key: str,
    *,
    source: HubSource | PackageSource,
    main: str,
    files: list[StoredFile],
    licence: str | None,
    revision: str | None,
) -> Entry:
    """Move the staged files into the store as one whole model, replacing an older one of that key."""
    staged, whole, target = _partial(key), _partial(key + ".whole"), root() / key
    shutil.rmtree(whole, ignore_errors=True)
    for file in files:
        place = whole / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        (staged / file.path).replace(place)
    manifest = {
        "source": ("hf:" if isinstance(source, HubSource) else "") + str(source),
        "main": main,
        "files": [{"path": f.path, "bytes": f.nbytes, "sha256": f.sha256} for f in files],
        "licence": licence,
        "revision": revision,
        "pulled": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    (whole / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    old = _partial(key + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    target.parent.mkdir(parents=True, exist_ok=True)
    whole.rename(target)
    for rest in (old, staged):
        shutil.rmtree(rest, ignore_errors=True)
    return _read(target / _MANIFEST)


@contextlib.contextmanager
def lock(key: str, waiting: Callable[[], None] | None = None) -> Generator[None]:
    """Hold the lock of a key, across processes; `waiting` is called once when another holds it.

    Raises:
        DownloadError: the store cannot be written, or its disk is full.
    """
    path = root() / ".locks" / key
    try:
        handle = _locked(path, waiting)
    except OSError as e:
        raise cannot_write(e) from e
    with handle:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            for folder in (_partial(key), _partial(key).parent, root() / ".partial", path.parent):
                with contextlib.suppress(OSError):  # not empty: it is of use
                    folder.rmdir()


def _locked(path: Path, waiting: Callable[[], None] | None) -> TextIO:
    """Open and lock the file at `path`, and no other: whoever held it before has deleted theirs."""
    import fcntl

    while True:
        _make(path.parent)
        try:
            handle = path.open("w")
        except FileNotFoundError:  # another has just tidied up
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
                waiting = None
            fcntl.flock(handle, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
                return handle
        handle.close()


def _make(folder: Path) -> None:
    """Make a folder and those above it, although another process may delete the empty ones of them meanwhile."""
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # gone, or there and then gone
            folder.mkdir(parents=True, exist_ok=True)
            return
    folder.mkdir(parents=True, exist_ok=True)


def no_room(message: str) -> DownloadError:
    """The error for a disk without room: a failed pull, with the exit code of what does not fit this machine."""
    error = DownloadError(message)
    error.exit_code = MemoryPlanError.exit_code
    return error


def disk_full() -> DownloadError:
    """The error for a disk that filled up while a model came."""
    return no_room("the disk is full; free some room (`pellucid ls`, `pellucid rm`) and pull again")


def is_full(error: BaseException) -> bool:
    """Whether an error means that the disk, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def cannot_write(error: OSError) -> DownloadError:
    """The error for a store that took no file."""
    if is_full(error):
        return disk_full()
    return DownloadError(
        f"cannot write to {root()}: {error.strerror or error}; set PELLUCID_HOME to a folder you may write"
    )


def tree_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
    return total


def size_text(nbytes: float) -> str:
    """Bytes as people write them, in powers of ten: 98 MB, 1.12 GB."""
    for unit, digits in (("B", 0), ("kB", 0), ("MB", 0), ("GB", 2)):
        if nbytes < 999.5:
            return f"{nbytes:.{digits}f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.2f} TB"


def _partial(key: str) -> Path:
    return root() / ".partial" / key


def _read(manifest: Path) -> Entry:
    raw: Any = json.loads(manifest.read_text(encoding="utf-8"))
    data = cast("dict[str, Any]", raw)
    source = sources.parse(str(data["source"]))
    if isinstance(source, sources.PathSource):
        raise ValueError(f"{manifest}: a path is no source of a stored model")
    files = tuple(StoredFile(str(f["path"]), int(f["bytes"]), f.get("sha256")) for f in data["files"])
    return Entry(
        folder=manifest.parent,
        source=source,
        main=str(data["main"]),
        files=files,
        licence=data.get("licence"),
        revision=data.get("revision"),
        pulled=str(data.get("pulled", "")),
    )
