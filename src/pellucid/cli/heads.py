"""`pellucid heads`: what every head of every layer does, as a map of one metric and a list of the strongest."""

from __future__ import annotations

from typing import Annotated

import typer

from pellucid.cli import draw, layout, look, options
from pellucid.cli.inputs import apart
from pellucid.errors import RequestError

MEANS = {
    "self": "weight on the token itself",
    "previous": "weight on the token before",
    "first": "weight on the first token, where attention sinks",
    "local": "weight on the last 16 tokens",
    "entropy": "nats: how widely it looks",
    "distance": "tokens: how far back it looks",
    "spread": "tokens: standard deviation of how far",
    "induction": "weight on what followed the same token before",
    "sink": "weight on the learned sink",
}


def heads(
    prompt: look.Prompt = None,
    sort: Annotated[str, typer.Option(help=f"Metric to show and sort by: {', '.join(MEANS)}")] = "entropy",
    top: Annotated[int, typer.Option(help="Heads to list", min=0)] = 8,
    max_tokens: look.MaxTokens = 0,
    model: options.Model = options.DEFAULT_MODEL,
    chat: look.Chat = False,
    budget: look.Budget = "512MB",
    threads: options.Threads = None,
    ctx: options.Ctx = None,
    kv: options.KV = "f16",
    tokenizer: options.Tokenizer = None,
    as_json: options.Json = False,
) -> None:
    """Show what the heads of attention do on a text."""
    if sort not in MEANS:
        raise RequestError(f"--sort {sort} is no metric; choose one of {', '.join(MEANS)}")
    with look.inspected(
        prompt, "heads", model=model, tokenizer=tokenizer, threads=threads, ctx=ctx, kv=kv, chat=chat, budget=budget,
        max_tokens=max_tokens,
    ) as (_, trace):  # fmt: skip
        metrics = apart(lambda: trace.head_metrics())
        if as_json:
            look.print_json({"tokens": len(trace.ids), "metrics": metrics.values, "kv_heads": metrics.kv_heads})
            return
        values = metrics.values[sort]
        most = float(values.max()) if sort in ("entropy", "distance", "spread") else 1.0
        print(f"{sort}: {MEANS[sort]}; mean over {len(trace.ids)} tokens. A row is a layer, a column a query head")
        print()
        labels = [f"{layer:>3}" for layer in range(len(values))]
        draw.heat(values.tolist(), labels, [str(h) for h in range(values.shape[1])], 0.0, most or 1.0, "")
        if not top:
            return
        print()
        group = values.shape[1] // metrics.kv_heads
        rows = [
            (str(layer), str(head), str(head // group), *(f"{found[name]:.3f}" for name in MEANS))
            for layer, head, found in metrics.table(sort)[:top]
        ]
        layout.table(("layer", "head", "kv", *MEANS), rows, right=range(3 + len(MEANS)))
