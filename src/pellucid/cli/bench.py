"""`pellucid bench`: how fast a model runs on this machine, and how near that is to what the machine can do.

Law: rates are medians over repetitions, beside the peaks that were measured between them. Ctrl-C prints what has been
measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.cli import options
from pellucid.cli.inputs import visible
from pellucid.errors import RequestError

if TYPE_CHECKING:
    from pellucid.bench.cells import Cell, Settings
    from pellucid.bench.heads import HeadShape
    from pellucid.models.spec import ModelSpec

INTERRUPTED = 130


def bench(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="As -m of the other commands")] = options.DEFAULT_MODEL,
    prompts: Annotated[str, typer.Option(help="Prompt sizes in tokens, such as 128,512; 0: no prefill")] = "512",
    depths: Annotated[str, typer.Option(help="Tokens of context that streams have when they begin to decode")] = "0",
    streams: Annotated[str, typer.Option(help="How many streams decode together; 0: no decode")] = "1,16",
    generate: Annotated[int, typer.Option(help="Tokens that each stream decodes", min=1)] = 128,
    threads: Annotated[
        str | None, typer.Option(envvar="PELLUCID_THREADS", help="Numbers of threads; default: all cores")
    ] = None,
    pin: options.Pin = False,
    ctx: Annotated[
        int | None,
        typer.Option(envvar="PELLUCID_CTX", help="Longest sequence in tokens; default: what is measured takes", min=16),
    ] = None,
    kv: Annotated[str, typer.Option(envvar="PELLUCID_KV", help="Formats of the KV cache: f16, q8_0 or both")] = "f16",
    repeat: Annotated[int, typer.Option(help="Repetitions that count", min=1, max=1000)] = 5,
    warmup: Annotated[int, typer.Option(help="Repetitions before these that do not", min=0, max=100)] = 1,
    profile: Annotated[bool, typer.Option("--profile", help="Show the time of each op and layer")] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="Measure attention alone, against the textbook's N x N matrix")
    ] = False,
    shape: Annotated[
        str | None, typer.Option(help="Of --attention: HEADS,KV_HEADS,D_HEAD, such as 9,3,64; default: MODEL's")
    ] = None,
    lengths: Annotated[str, typer.Option(help="Of --attention: numbers of tokens")] = "512,1024,2048,4096,8192",
    as_json: options.Json = False,
) -> None:
    """Measure prefill and decode against the peaks of this machine."""
    given = _given(context)
    if attention:
        _refuse(given & _OF_RATES, "does not go with --attention")
        _attention(model if "model" in given else None, shape, lengths, threads, kv, repeat, as_json=as_json)
        return
    _refuse(given & _OF_ATTENTION, "goes with --attention")
    from pellucid.bench.cells import Settings
    from pellucid.bench.measure import loading_config, measure
    from pellucid.checkpoint.open import open_checkpoint
    from pellucid.config import available_cores
    from pellucid.devices.cpu import CpuDevice
    from pellucid.models.decoder import decoder_graph
    from pellucid.models.pull import resolve

    settings = Settings(
        prompts=_numbers("--prompts", prompts, none=True),
        depths=_numbers("--depths", depths, least=0),
        streams=_numbers("--streams", streams, none=True, most=4096),
        threads=(available_cores(),) if threads is None else _numbers("--threads", threads, most=256),
        kv=tuple(dict.fromkeys(kv.split(","))),
        generate=generate,
        repeat=repeat,
        warmup=warmup,
        ctx=ctx,
        pin=pin,
    )
    cells: list[Cell] = []
    interrupted = False
    path = resolve(model, progress=sys.stderr.isatty())
    with open_checkpoint(path) as checkpoint, _status() as say:
        spec = checkpoint.spec
        try:
            say("loading")
            device = CpuDevice.load(checkpoint, decoder_graph(spec), loading_config(settings))
            measure(device, spec.context, settings, cells, profile=profile, say=say)
        except KeyboardInterrupt:
            interrupted = True
    cells = [cell for cell in cells if cell.seconds]
    if as_json:
        print(
            json.dumps(
                _facts(model, spec, settings) | {"interrupted": interrupted, "cells": [c.as_dict() for c in cells]}
            )
        )
    else:
        from pellucid.cli import rates

        rates.show(cells)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


_OF_RATES = frozenset({"prompts", "depths", "streams", "generate", "ctx", "warmup", "profile", "pin"})
_OF_ATTENTION = frozenset({"shape", "lengths"})


def _given(context: typer.Context) -> frozenset[str]:
    """Parameters that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def _refuse(names: frozenset[str], why: str) -> None:
    for name in sorted(names):
        raise RequestError(f"--{name} {why}; see pellucid bench --help")


def _attention(
    model: str | None, shape: str | None, lengths: str, threads: str | None, kv: str, repeat: int, *, as_json: bool
) -> None:
    """`pellucid bench --attention`."""
    from dataclasses import asdict

    from pellucid import __version__
    from pellucid.bench import attention
    from pellucid.cli import rates
    from pellucid.cli.machine import machine
    from pellucid.config import EngineConfig, available_cores

    if model is not None and shape is not None:
        raise RequestError("give MODEL or --shape, not both")
    sizes = _numbers("--lengths", lengths, most=attention.MOST_TOKENS)
    count, *others = (available_cores(),) if threads is None else _numbers("--threads", threads, most=256)
    if others:
        raise RequestError(f"--threads {threads}: give one number with --attention")
    EngineConfig(kv=kv)
    heads = attention.parse_shape(shape) if shape is not None else _shape_of(model or options.DEFAULT_MODEL)
    rows: list[attention.Row] = []
    interrupted = False
    with _status() as say:
        try:
            attention.measure(heads, sizes, rows, threads=count, kv=kv, repeat=repeat, say=say)
        except KeyboardInterrupt:
            interrupted = True
    facts = {"threads": count, "kv": kv, "shape": asdict(heads)}
    if as_json:
        facts |= {"pellucid": __version__, "processor": machine().processor, "isa": _isa(), "repeat": repeat}
        print(json.dumps(facts | {"interrupted": interrupted, "rows": [row.as_dict() for row in rows]}))
    else:
        told = f"{heads.heads} heads, {heads.kv_heads} KV heads of {heads.d_head} values"
        rates.show_attention(rows, f"{told}, {count} threads, kv {kv}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _shape_of(model: str) -> HeadShape:
    from pellucid.bench.heads import HeadShape
    from pellucid.checkpoint.open import open_checkpoint
    from pellucid.models.pull import resolve

    with open_checkpoint(resolve(model, progress=sys.stderr.isatty())) as checkpoint:
        spec = checkpoint.spec
        return HeadShape(spec.n_heads, spec.n_kv_heads, spec.d_head)


def _isa() -> str:
    from pellucid import _core

    return _core.isa()


def _numbers(option: str, text: str, *, least: int = 1, most: int = 1 << 20, none: bool = False) -> tuple[int, ...]:
    """Whole numbers between commas, each once. With `none`, 0 alone stands for no number."""
    if none and text.strip() == "0":
        return ()
    found: dict[int, None] = {}
    for part in text.split(","):
        try:
            value = int(part)
        except ValueError:
            raise RequestError(f"{option} {text}: {part.strip()!r} is not a whole number") from None
        if not least <= value <= most:
            raise RequestError(f"{option} {text}: {value} is out of range; give {least} to {most}")
        found[value] = None
    return tuple(found)


def _facts(model: str, spec: ModelSpec, settings: Settings) -> dict[str, object]:
    from dataclasses import asdict

    from pellucid import __version__
    from pellucid.cli.machine import machine

    return {
        "pellucid": __version__,
        "model": model,
        "family": spec.family,
        "parameters": spec.parameters(),
        "processor": machine().processor,
        "isa": _isa(),
        "settings": asdict(settings),
    }


@contextmanager
def _status() -> Generator[Callable[[str], None]]:
    """A line on stderr that says what is being measured, if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(visible(text))
