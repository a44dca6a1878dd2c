"""Models from the Hugging Face hub: list a repository, choose files of it, bring them.

Law: only data is fetched (GGUF, safetensors, JSON, the chat template), at one commit, and each large file is checked
against the SHA-256 the hub states for it. Pickle formats and Python files are never fetched. Every failure is one line.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from pellucid.errors import ConfigError, DownloadError, ModelNotFoundError, PellucidError, UnsupportedModelError
from pellucid.models import quants, registry
from pellucid.models.sources import HubSource, row_of
from pellucid.models.store import StoredFile, disk_full, is_full, no_room, size_text

_TOKENIZERS = ("tokenizer.json", "tekken.json")
_INDEX = "model.safetensors.index.json"
_SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    _INDEX,
)
_ASIDE = re.compile(r"mmproj|imatrix|(?:^|/)ggml-vocab", re.IGNORECASE)
_TIMEOUT = 20.0
"""Seconds the hub may take to answer what it holds."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Listing:
    """A repository at one commit: file → (bytes, SHA-256 where the hub states one)."""

    repo: str
    commit: str
    files: dict[str, tuple[int, str | None]]
    licence: str | None


@dataclass(frozen=True)
class Choice:
    """What is taken of a listing."""

    source: HubSource
    main: str
    files: tuple[str, ...]


def endpoint() -> str:
    """The hub's address: $HF_ENDPOINT or the public hub."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def offline() -> str | None:
    """Name of the variable that keeps pulls off the network, if one is set; as huggingface_hub reads them."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if value := os.environ.get(name):
            return name if value.upper() in ("1", "TRUE", "YES", "ON") else None
    return None


def listing(source: HubSource) -> Listing:
    """Ask the hub what a repository holds.

    Raises:
        ModelNotFoundError: no such repository, or a private one.
        DownloadError: the hub cannot be reached or refuses.
        ConfigError: HF_ENDPOINT is no address.
    """
    with _hub_call(source):
        info = _api().model_info(source.repo, files_metadata=True, timeout=_TIMEOUT)
    files: dict[str, tuple[int, str | None]] = {}
    for sibling in cast("list[Any]", info.siblings or []):
        if ".." in Path(sibling.rfilename).parts or sibling.rfilename.startswith("/"):
            continue
        lfs = sibling.lfs
        files[sibling.rfilename] = (int(sibling.size or 0), str(lfs.sha256) if lfs else None)
    card: Any = info.card_data
    licence = (card.get("license_name") or card.get("license")) if card else None
    return Listing(source.repo, str(info.sha), files, str(licence) if licence else None)


def choose(found: Listing, source: HubSource) -> Choice:
    """Pick the files of a source from a listing.

    Raises:
        ModelNotFoundError: no such file or quantization; names those there are.
        UnsupportedModelError: nothing that Pellucid reads.
    """
    # A later part of a split GGUF, and what is no language model, is never the file to open.
    ggufs = [f for f in found.files if f.lower().endswith(".gguf") and not _ASIDE.search(f)]
    heads = [f for f in ggufs if (split := quants.split_of(f)) is None or split[1] == 1]
    if source.file is not None:
        if source.file not in heads:
            raise ModelNotFoundError(f"{source.repo} has no file {source.file}; {_offer(heads)}")
        return _gguf(found, heads, source, source.file)
    if source.quant is not None:
        of_quant = sorted((f for f in heads if quants.quant_of(f) == source.quant), key=len)
        if not of_quant:
            raise ModelNotFoundError(f"{source.repo} has no file of quantization {source.quant}; {_offer(heads)}")
        return _gguf(found, heads, source, of_quant[0])
    good = sorted(
        (f for f in heads if quants.readable(quants.quant_of(f))),
        key=lambda f: (quants.rank(quants.quant_of(f)), len(f)),
    )
    if good:
        return _gguf(found, heads, source, good[0])
    if heads:
        raise UnsupportedModelError(
            f"Pellucid reads no file of {source.repo}: {_offer(heads)}; look for a repository with one of "
            f"{_readable_labels()}"
        )
    return _safetensors(found, source)


def choose_tokenizer(found: Listing, source: HubSource) -> Choice:
    """The small files of a repository that say how its model reads text. Raises UnsupportedModelError."""
    if not any(f in found.files for f in _TOKENIZERS):
        raise UnsupportedModelError(
            f"{source.repo} has neither {' nor '.join(_TOKENIZERS)}; name the repository of the original model, "
            "or give a file"
        )
    return Choice(source, ".", tuple(f for f in (*_TOKENIZERS, *_SIDE_FILES) if f in found.files and f != _INDEX))


def fetch(found: Listing, choice: Choice, folder: Path) -> list[StoredFile]:
    """Bring the chosen files into a folder, going on where an earlier try stopped; returns them with their digests.

    Raises:
        DownloadError: network, licence, disk, or a digest that differs.
    """
    from pellucid.models.store import tree_bytes

    total = sum(found.files[f][0] for f in choice.files)
    check_room(folder, total - tree_bytes(folder))
    brought: list[StoredFile] = []
    for name in choice.files:
        with _hub_call(choice.source):
            _api().hf_hub_download(choice.source.repo, name, revision=found.commit, local_dir=folder)
        path = folder / name
        size, stated = found.files[name]
        if path.stat().st_size != size:
            path.unlink()
            raise DownloadError(f"{name} arrived with a size other than the hub's {size} bytes; pull again")
        digest = sha256_of(path)
        wanted = choice.source.sha256 if name == choice.main and len(choice.files) == 1 else None
        for expected, by in ((stated, "the hub"), (wanted, "its source")):
            if expected is not None and digest != expected:
                path.unlink()
                raise DownloadError(
                    f"{name} of {choice.source.repo} has SHA-256 {digest}, but {by} states {expected}; it was deleted, "
                    "so pull it again"
                )
        brought.append(StoredFile(name, size, digest))
    return brought


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def check_room(folder: Path, nbytes: int) -> None:
    """Raise DownloadError (exit code 6) when the disk of a folder has no room for that many bytes."""
    import shutil

    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise no_room(
            f"the disk of {folder.parent.parent} has {size_text(free)} free and this takes {size_text(nbytes)}; "
            "free some (`pellucid ls`, `pellucid rm`) or set PELLUCID_HOME to another disk"
        )


def _gguf(found: Listing, heads: list[str], source: HubSource, main: str) -> Choice:
    quant = quants.quant_of(main)
    if not quants.readable(quant):
        raise UnsupportedModelError(
            f"{main} is {quant}, which Pellucid does not read; choose one of {_readable_labels()}, "
            f"as in {source.repo}:Q4_K_M"
        )
    files = [main]
    if (split := quants.split_of(main)) is not None:
        stem, _, count = split
        files = [f"{stem}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
        if missing := [f for f in files if f not in found.files]:
            raise ModelNotFoundError(f"{source.repo} lacks {missing[0]}, one of {count} parts of the model")
    same = [f for f in heads if quants.quant_of(f) == quant and f not in files]
    known = HubSource(source.repo, file=main) if same or quant is None else HubSource(source.repo, quant=quant)
    return Choice(HubSource(known.repo, known.file, known.quant, source.sha256), main, tuple(files))


def _safetensors(found: Listing, source: HubSource) -> Choice:
    weights = [f for f in found.files if f.endswith(".safetensors") and "/" not in f]
    named = [f for f in weights if f.startswith("model")]
    if weights and "config.json" in found.files:
        beside = [f for f in (*_TOKENIZERS, *_SIDE_FILES) if f in found.files]
        return Choice(source, ".", tuple(beside + sorted(named or weights)))
    if any(f.endswith(_PICKLES) for f in found.files):
        raise UnsupportedModelError(
            f"{source.repo} has its weights as pickle files, which can run code and are never read; "
            "look for a repository with GGUF or safetensors files"
        )
    raise UnsupportedModelError(
        f"{source.repo} has neither a GGUF file nor config.json with safetensors; is it a language model?"
    )


def _offer(heads: list[str]) -> str:
    labels = sorted({quants.quant_of(f) or f for f in heads}, key=quants.rank)
    return f"it has {', '.join(labels[:16])}" if labels else "it has no GGUF file at all"


def _readable_labels() -> str:
    return ", ".join(label for label in quants.LABELS if quants.readable(label))


def _api() -> Any:
    from huggingface_hub import HfApi

    address = endpoint()
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound or not address.isascii() or not address.isprintable() or " " in address:
        shown = re.sub(r"//[^/@]+@", "//", address)  # it may carry a password
        raise ConfigError(
            f"HF_ENDPOINT={shown!r} is not an http(s) address; write https://HOST, or unset it", param="HF_ENDPOINT"
        )
    return HfApi(endpoint=address, token=_token())


def _token() -> str | None:
    # None lets the library look for a saved login; HF_TOKEN is read here so that a change of it is seen at once.
    return (os.environ.get("HF_TOKEN") or "").strip() or None


@contextlib.contextmanager
def _hub_call(source: HubSource) -> Generator[None]:
    """Run calls of huggingface_hub without its bars and warnings; what they raise becomes one clear line."""
    try:
        from huggingface_hub.utils import (
            are_progress_bars_disabled,
            disable_progress_bars,
            enable_progress_bars,
            logging,
        )
    except ImportError as e:
        raise DownloadError(f"the hub needs the package huggingface_hub ({e}); install it, or give a path") from e
    bars, verbosity = not are_progress_bars_disabled(), logging.get_verbosity()
    disable_progress_bars()
    logging.set_verbosity_error()
    try:
        yield
    except PellucidError:
        raise
    except Exception as e:  # the library raises errors of three HTTP stacks, by its version
        raise _explain(e, source) from e
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            enable_progress_bars()


def _explain(error: BaseException, source: HubSource) -> PellucidError:
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 12:
        chain.append(cause)
    kinds = {c.__name__ for e in chain for c in type(e).__mro__}
    text = " ".join(str(e) for e in chain)
    statuses = [getattr(getattr(e, "response", None), "status_code", None) for e in chain]
    status = next((s for s in statuses if s is not None), None)
    repo, hub = source.repo, endpoint()
    if any(is_full(e) for e in chain):
        return disk_full()
    if any(isinstance(e, PermissionError) for e in chain):
        return DownloadError(f"cannot write the model: {error}; set PELLUCID_HOME to a folder you may write")
    if "GatedRepoError" in kinds or (status == 403 and "gated" in text.lower()):
        row = row_of(source)
        other = (row.alternative if row else None) or registry.OPEN_ALTERNATIVE
        step = (
            "check that HF_TOKEN belongs to the account that accepted it"
            if _token()
            else "set HF_TOKEN to a token of yours"
        )
        return DownloadError(
            f"{repo} is gated: accept its licence at {hub}/{repo} and {step} ({hub}/settings/tokens), "
            f"or take an open one: `pellucid pull {other}`"
        )
    if "RevisionNotFoundError" in kinds or ("EntryNotFoundError" in kinds and status == 404):
        return ModelNotFoundError(f"{repo} no longer has a file it listed; pull again")
    if "RepositoryNotFoundError" in kinds or status == 404:
        return ModelNotFoundError(
            f"{hub} has no public model {repo}; check the spelling, or set HF_TOKEN if it is a private one"
        )
    if status == 401:
        return DownloadError(
            f"{hub} refused HF_TOKEN; make a new one at {hub}/settings/tokens, or unset it for public models"
        )
    if status == 403:
        return DownloadError(f"{hub} forbids {repo} to this token or network; check HF_TOKEN's scopes")
    if status == 429:
        return DownloadError(f"{hub} asks to slow down; wait some minutes, or set HF_TOKEN for a higher limit")
    if status is not None and status >= 500:
        return DownloadError(f"{hub} has a fault of its own (status {status}); try again later")
    if "ProxyError" in kinds:
        return DownloadError("the proxy does not let us through; check HTTPS_PROXY, HTTP_PROXY and NO_PROXY")
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return DownloadError(
            f"the certificate of {hub} is not trusted; set SSL_CERT_FILE to your authority's certificates"
        )
    if any(s in text for s in ("Name or service not known", "name resolution", "nodename nor servname", "getaddrinfo")):
        return DownloadError(f"cannot find {hub}: no network or no DNS; check the connection, HF_ENDPOINT and proxies")
    if kinds & {"TimeoutException", "Timeout", "TimeoutError"}:
        return DownloadError(f"{hub} did not answer in time; pull again: it resumes where it stopped")
    if kinds & {"ConnectError", "ConnectionRefusedError"} or "refused" in text.lower():
        return DownloadError(f"cannot connect to {hub}; check the network, HF_ENDPOINT and proxies")
    if kinds & {"HTTPError", "RequestException", "TransportError", "ConnectionError", "LocalEntryNotFoundError"}:
        return DownloadError(f"the connection to {hub} broke; pull again: it resumes where it stopped")
    first = str(error).strip().splitlines()
    return DownloadError(f"pulling {repo} failed: {type(error).__name__}: {first[0] if first else 'no reason given'}")
