"""`pellucid doctor`: what this machine is, and what is wrong with it.

Law: each check says what it found and, unless all is well, what to do. `wrong` means that Pellucid cannot do its work
and makes the exit code 1; `note` means that it could do better. The network is asked only with --network.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal, cast

import typer

from pellucid import __version__
from pellucid.cli import layout, options
from pellucid.config import ISAS
from pellucid.errors import PellucidError

LIBRARIES = (
    "numpy",
    "tokenizers",
    "huggingface_hub",
    "jinja2",
    "typer",
    "rich",
    "prompt_toolkit",
    "fastapi",
    "uvicorn",
)
ROOM = 10**9
"""Bytes of memory or disk below which hardly a model fits."""

Status = Literal["ok", "note", "wrong"]


@dataclass(frozen=True)
class Check:
    """One fact and what to think of it."""

    name: str
    found: str
    status: Status = "ok"
    fix: str = ""


def doctor(
    network: Annotated[bool, typer.Option("--network", help="Also ask the hub and the Python index")] = False,
    as_json: options.Json = False,
) -> None:
    """Say what this machine is and what is wrong; exit 1 when something is."""
    groups = examine(network=network)
    checks = [check for group in groups.values() for check in group]
    wrong = sum(c.status == "wrong" for c in checks)
    if as_json:
        print(json.dumps({"ok": not wrong, "checks": {g: [asdict(c) for c in cs] for g, cs in groups.items()}}))
    else:
        _print(groups, wrong, sum(c.status == "note" for c in checks))
    if wrong:
        raise typer.Exit(1)


def examine(*, network: bool = False) -> dict[str, list[Check]]:
    """All checks, by theme."""
    core = native()
    groups = {
        "Pellucid": software(core),
        "Processor": processor(core),
        "Memory": memory(),
        "Models": models(),
        "Sources": hub_and_index(),
    }
    if network:
        groups["Network"] = network_checks()
    return groups


def native() -> ModuleType | str:
    """The native core, or why it cannot be loaded."""
    try:
        return importlib.import_module("pellucid._core")
    except ImportError as e:
        return str(e)


def software(core: ModuleType | str) -> list[Check]:
    """Versions of Pellucid, Python and the libraries."""
    python = platform.python_version()
    checks = [
        Check("pellucid", f"{__version__} in {layout.home(Path(__file__).parents[1])}"),
        Check("python", f"{python} ({layout.home(Path(sys.executable))})"),
    ]
    if isinstance(core, str):
        fix = "build it: pip install . (takes g++ 11 or clang 14, or later)"
        checks.append(Check("native core", f"not there: {core}", "wrong", fix))
    else:
        checks.append(Check("native core", Path(core.__file__ or "?").name))
    found: list[str] = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            checks.append(Check(name, "not installed", "wrong", f"pip install {name}"))
    return [*checks, Check("libraries", ", ".join(found))]


def processor(core: ModuleType | str) -> list[Check]:
    """Processor, instruction set, cores."""
    from pellucid.cli.machine import busy, machine

    this = machine()
    checks = [Check("processor", this.processor)]
    features: Callable[[], object] | None = getattr(core, "cpu_features", None)
    detected = features_text(features()) if features is not None else ", ".join(this.flags)
    checks.append(Check("features", detected or "none that a kernel uses"))
    asked = os.environ.get("PELLUCID_ISA")
    in_use: Callable[[], str] | None = getattr(core, "isa", None)
    if asked and asked not in ISAS:
        fix = f"set it to one of {', '.join(ISAS)}, or unset it"
        checks.append(Check("instruction set", f"PELLUCID_ISA={asked} is not known", "wrong", fix))
    elif in_use is not None:
        try:
            isa = in_use()
        except Exception as e:  # the core refuses a set this processor lacks
            checks.append(Check("instruction set", str(e), "wrong", "unset PELLUCID_ISA"))
        else:
            why = " (PELLUCID_ISA)" if asked else ""
            slow = isa == "scalar" and not asked
            fix = "kernels are fast on x86 with AVX2 or AVX-512; here the portable ones run" if slow else ""
            checks.append(Check("instruction set", f"{isa} in use{why}", "note" if slow else "ok", fix))
    cores = f"{this.cores} of {this.cores_online} may be used"
    if hasattr(os, "sched_getaffinity"):
        cores += f"; affinity {_ranges(sorted(os.sched_getaffinity(0)))}"
    checks.append(Check("cores", cores))
    load = os.getloadavg()[0]
    if busy(this.cores):
        fix = "other programs compete for the cores; figures of speed will vary"
        checks.append(Check("load", f"{load:.1f} over the last minute", "note", fix))
    else:
        checks.append(Check("load", f"{load:.1f} over the last minute"))
    return checks


def features_text(features: object) -> str:
    """What `_core.cpu_features()` gives, a list of names or a mapping of name to whether it is there, as one line."""
    if isinstance(features, dict):
        have = cast("dict[str, object]", features)
        return ", ".join(name for name, there in have.items() if there)
    if isinstance(features, str):
        return features
    return ", ".join(str(f) for f in cast("list[object]", features))


def memory() -> list[Check]:
    """Memory and its pages."""
    from pellucid.cli.machine import huge_pages, machine
    from pellucid.models.store import size_text

    this = machine()
    tight = this.memory_free < ROOM
    fix = "close other programs, or raise the container's limit; only the smallest models fit" if tight else ""
    free = f"{size_text(this.memory_free)} of {size_text(this.memory)} free"
    checks = [Check("memory", free, "note" if tight else "ok", fix)]
    pages = huge_pages()
    if pages == "never":
        fix = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
        checks.append(Check("huge pages", "never: large weights are read more slowly", "note", fix))
    else:
        checks.append(Check("huge pages", pages or "the system has no such setting"))
    return checks


def models() -> list[Check]:
    """The store: room, rights, and whether its models are whole."""
    from pellucid.models import store
    from pellucid.models.store import size_text

    root = store.root()
    place = root
    while not place.exists():
        place = place.parent
    writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    status, fix = ("ok", "") if writable else ("wrong", "set PELLUCID_HOME to a folder you may write")
    checks = [Check("store", layout.home(root) + ("" if writable else " cannot be written"), status, fix)]
    free = shutil.disk_usage(place).free
    tight = free < ROOM
    fix = "pellucid rm MODEL, or PELLUCID_HOME on another disk" if tight else ""
    checks.append(Check("disk", f"{size_text(free)} free", "note" if tight else "ok", fix))
    entries = store.entries()
    for entry in entries:
        try:
            entry.check()
        except PellucidError as e:
            checks.append(Check(entry.name, e.message, "wrong", f"pellucid pull --force {entry.name}"))
    total = size_text(sum(e.nbytes for e in entries))
    checks.append(Check("models", f"{len(entries)} here, {total}" if entries else "none yet: pellucid pull smollm2"))
    for key, nbytes in store.partials():
        fix = f"pull it again to go on, or pellucid rm {key}"
        checks.append(Check("unfinished", f"{key}, {size_text(nbytes)}", "note", fix))
    return checks


def hub_and_index() -> list[Check]:
    """What pulls are configured with; nothing is asked of the network."""
    from pellucid.models import hub, package

    token = "HF_TOKEN is set" if os.environ.get("HF_TOKEN") else "no HF_TOKEN (only gated models need one)"
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    checks = [Check("hub", f"{hub.endpoint()}; {token}")]
    if offline:
        checks.append(Check("hub offline", "HF_HUB_OFFLINE is set", "note", "unset it to pull from the hub"))
    try:
        pip = package.pip_command()
    except PellucidError as e:
        checks.append(Check("pip", "not there", "note", e.message))
    else:
        checks.append(Check("pip", " ".join(layout.home(Path(p)) if p.startswith("/") else p for p in pip)))
        checks.append(Check("index", _index(pip)))
    names = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
    proxies = dict.fromkeys(name.upper() for name in names if os.environ.get(name))
    checks.append(Check("proxies", ", ".join(proxies) or "none"))
    return checks


def network_checks() -> list[Check]:
    """Ask the hub and the index for the models that Pellucid names first."""
    from pellucid.models import hub, package, registry, sources

    checks: list[Check] = []
    try:
        hub.listing(sources.HubSource("HuggingFaceTB/SmolLM2-360M-Instruct-GGUF"))
        checks.append(Check("hub", f"{hub.endpoint()} answers"))
    except PellucidError as e:
        checks.append(Check("hub", "does not answer", "wrong", e.message))
    default = sources.row_source(registry.BY_NAME[registry.DEFAULT])
    if isinstance(default, sources.PackageSource):
        name = default.parts[0].partition("==")[0]
        try:
            ask = [*package.pip_command(), "--disable-pip-version-check", "index", "versions", name]
            done = subprocess.run(ask, capture_output=True, text=True, errors="replace", timeout=60, check=False)
            answered, said = done.returncode == 0, _bare(done.stderr.strip().splitlines()[-1:] or ["no answer"])
        except (PellucidError, OSError, subprocess.TimeoutExpired) as e:
            answered, said = False, _bare([str(e)])
        if answered:
            checks.append(Check("index", f"has {name}"))
        else:
            checks.append(Check("index", f"does not give {name}", "wrong", f"{said}; see pip config list"))
    return checks


def _index(pip: list[str]) -> str:
    try:
        done = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "pip does not answer"
    settings = dict(re.findall(r"^[^.\n]*\.?([\w-]+)='(.*)'$", done.stdout, re.MULTILINE))
    found = [settings[key] for key in ("index-url", "extra-index-url", "find-links") if key in settings]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return _bare(["no index;", *found[1:]])
    return _bare(found) if "index-url" in settings else _bare(["pip's own default", *found])


def _bare(pieces: list[str]) -> str:
    """Addresses without the passwords they may carry."""
    return re.sub(r"//[^/@\s]+@", "//", " ".join(pieces))


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _print(groups: dict[str, list[Check]], wrong: int, notes: int) -> None:
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    marks = {"ok": "✓" if unicode else "ok", "note": "!", "wrong": "✗" if unicode else "X"}
    colours = {"ok": layout.GREEN, "note": layout.YELLOW, "wrong": layout.RED}
    width = max(len(c.name) for group in groups.values() for c in group)
    for title, group in groups.items():
        print(layout.styled(title, layout.BOLD))
        for c in group:
            mark = layout.styled(marks[c.status], colours[c.status])
            print(f"  {mark} {c.name.ljust(width)}  {layout.visible(c.found)}")
            if c.fix:
                print(
                    f"    {' ' * width}  {layout.styled('→ ' if unicode else '-> ', layout.DIM)}{layout.visible(c.fix)}"
                )
        print()
    if wrong:
        print(layout.styled(f"{wrong} wrong", layout.RED) + (f", {notes} to note" if notes else ""))
    else:
        print("All is well" + (f"; {notes} to note" if notes else "") + ".")
