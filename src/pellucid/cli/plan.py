"""`pellucid plan`: the memory a model will take, before it is loaded, and what else would fit.

Law: every line is counted from the device that would run (devices/ledger.py). Nothing is pulled but what `serve` would
pull, and no weight is read into memory.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.cli import layout, options

if TYPE_CHECKING:
    from pellucid.devices.ledger import Ledger, Unloaded
    from pellucid.models.spec import ModelSpec


def plan(
    model: Annotated[
        str, typer.Argument(envvar="PELLUCID_MODEL", help="Name, org/repo[:QUANT], .gguf file or folder")
    ] = options.DEFAULT_MODEL,
    ctx: options.Ctx = None,
    seqs: Annotated[
        int | None, typer.Option(help="Sequences of full length that the KV cache holds; default: 4", min=1, max=4096)
    ] = None,
    kv_pages: options.KVPages = None,
    kv: options.KV = "f16",
    threads: options.Threads = None,
    max_seqs: Annotated[
        int, typer.Option("--max-seqs", envvar="PELLUCID_MAX_SEQS", help="Answers that run together", min=1)
    ] = 64,
    token_budget: Annotated[
        int, typer.Option("--token-budget", envvar="PELLUCID_TOKEN_BUDGET", help="Rows of one step", min=1)
    ] = 512,
    memory: Annotated[
        float | None, typer.Option(help="Gigabytes there are; default: what is available on this machine now", min=0.01)
    ] = None,
    cost_per_hour: Annotated[
        float | None, typer.Option(help="Price of the machine an hour: say what a million tokens cost at best", min=0)
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Say what memory a model takes by part, before it is loaded, and what would fit. Exit code 6: it does not fit."""
    from pellucid.checkpoint import open_checkpoint
    from pellucid.config import EngineConfig, available_memory
    from pellucid.devices.ledger import ledger_of, refusal, unloaded
    from pellucid.errors import ConfigError, MemoryPlanError
    from pellucid.models.decoder import decoder_graph
    from pellucid.models.pull import resolve
    from pellucid.text.tokenizer import Tokenizer

    config = EngineConfig(
        model=model, threads=threads, ctx=ctx, kv=kv, kv_pages=kv_pages, max_seqs=max_seqs, token_budget=token_budget
    )
    if seqs is not None and kv_pages is not None:
        raise ConfigError("--seqs and --kv-pages both size the KV cache; give one of them", param="seqs")
    available = available_memory() if memory is None else int(memory * 1e9)
    with open_checkpoint(resolve(model)) as checkpoint:
        # The program that is measured has what a server has: its modules and the tokenizer.
        import_module("pellucid.server.app")
        tokenizer = Tokenizer.from_source(checkpoint.tokenizer)
        if seqs is not None:
            longest = min(ctx or min(checkpoint.spec.context, 4096), checkpoint.spec.context)
            config = replace(config, kv_pages=max(2, seqs * -(-longest // config.page_size)))
        empty = unloaded(checkpoint, decoder_graph(checkpoint.spec), config)
        ledger = ledger_of(empty)
        spec = checkpoint.spec
        about = _about(model, spec, ledger, available)
        del tokenizer
        if cost_per_hour is not None:
            about["cost"] = _cost(empty, cost_per_hour)
    print(json.dumps(about)) if as_json else _print(about)
    if not about["fits"]:
        raise MemoryPlanError(refusal(ledger, spec, available))


def _about(model: str, spec: ModelSpec, ledger: Ledger, available: int) -> dict[str, Any]:
    """All that `plan` says, as JSON values; sizes in bytes."""
    from pellucid.devices.ledger import room

    config = ledger.config
    return {
        "model": model,
        "parameters": spec.parameters(),
        "active_parameters": spec.active_parameters(),
        "ctx": config.ctx,
        "kv": config.kv,
        "kv_pages": config.kv_pages,
        "page_size": config.page_size,
        "sequences": (config.kv_pages or 0) / -(-(config.ctx or 1) // config.page_size),
        "threads": config.threads,
        "max_seqs": config.max_seqs,
        "token_budget": config.token_budget,
        "vocabulary": spec.vocab,
        "available": available,
        "total": ledger.total,
        "fits": ledger.total <= available,
        "lines": ledger.lines(),
        "weights": ledger.weights,
        "kv_per_token": ledger.kv_per_page / config.page_size,
        "room": {
            kv: {str(n): count for n, count in fits.items()} for kv, fits in room(ledger, spec, available).items()
        },
    }


def _cost(empty: Unloaded, per_hour: float) -> dict[str, Any]:
    """What a million tokens cost where the machine's measured peaks are reached: no engine makes it cheaper here."""
    from pellucid.bench.peaks import PeakMeter
    from pellucid.bench.work import PlanWork, Rows

    work = PlanWork(empty.device)
    with PeakMeter(empty.config.threads or 1, empty.config.isa) as meter:
        peaks = meter.measure()
    half, streams = (empty.config.ctx or 2) // 2, empty.config.max_seqs
    costs: dict[str, Any] = {"per_hour": per_hour}
    cases = {
        "prompt": (Rows(((0, empty.config.token_budget),), 1), empty.config.token_budget),
        "one stream": (Rows(((half, 1),), 1), 1),
        f"{streams} streams": (Rows(((half, 1),) * streams, streams), streams),
    }
    for name, (rows, tokens) in cases.items():
        rate = tokens / work.demand(rows).seconds(peaks)
        costs[name] = {"tokens_per_second": rate, "per_million_tokens": per_hour / 3600 / rate * 1e6}
    return costs


def _print(about: dict[str, Any]) -> None:
    from pellucid.models.store import size_text

    lines, kv_name = about["lines"], about["kv"]
    parts = ", ".join(f"{part} {size_text(n)}" for part, n in about["weights"].items())
    sequences = about["sequences"]
    shown = f"{sequences:.0f}" if sequences == int(sequences) else f"{sequences:.1f}"
    cache = f"{shown} x {about['ctx']} tokens, {kv_name}: {about['kv_per_token']:,.0f} B a token"
    rows = [
        ("weights", size_text(lines["weights"]), parts),
        ("padding", size_text(lines["padding"]), "weights in huge pages end on bounds of 2 MiB"),
        ("KV cache", size_text(lines["kv"]), cache),
        (
            "step",
            size_text(lines["scratch"]),
            f"activations of {about['token_budget']} rows, {about['threads']} threads",
        ),
        ("logits", size_text(lines["logits"]), f"{about['max_seqs']} rows of {about['vocabulary']}"),
        ("program", size_text(lines["program"]), "Python, libraries, tokenizer; measured here"),
        ("all", size_text(about["total"]), f"of {size_text(about['available'])} available"),
    ]
    layout.table(("MEMORY", "SIZE", "FOR"), rows, right=(1,))
    total, active = about["parameters"], about["active_parameters"]
    if active < total:
        share = f"{layout.count_text(active)} of {layout.count_text(total)} parameters"
        print(f"a token meets {share}; the memory holds all")
    print()
    names = list(about["room"])
    contexts = list(next(iter(about["room"].values())))
    table = [(n, *(f"{about['room'][name][n]:,}" for name in names)) for n in contexts]
    layout.table(("CONTEXT", *(f"SEQUENCES, {name}" for name in names)), table, right=tuple(range(len(names) + 1)))
    print(f"so many sequences of full length fit into {size_text(about['available'])}")
    if "cost" in about:
        print()
        costs = dict(about["cost"])
        per_hour = costs.pop("per_hour")
        table = [
            (name, f"{c['tokens_per_second']:,.0f}", f"{c['per_million_tokens']:.3f}") for name, c in costs.items()
        ]
        layout.table(("AT BEST", "TOK/S", "COST OF 1 M TOKENS"), table, right=(1, 2))
        print(f"at {per_hour:g} an hour and this machine's measured peaks; `pellucid bench` measures the real rate")
