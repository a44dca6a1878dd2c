"""`pellucid attn`: where a head looks: the whole map, or the row of one token.

Law: what is not shown is said: keys beyond the strongest are summed up as the rest.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from pellucid.cli import draw, look, options
from pellucid.cli.inputs import apart

MOST_KEYS = 16


def attn(
    prompt: look.Prompt = None,
    layer: look.Layer = 0,
    head: look.Head = 0,
    pos: Annotated[int | None, typer.Option(help="Query token, from 0 or from the end; default: all of them")] = None,
    by_value: Annotated[
        bool, typer.Option("--by-value", help="Show ‖αv‖, weight times the length of the value, as shares of a row")
    ] = False,
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
    """Show where a head of attention looks.

    Without --pos the map of all tokens, a row for each query; with it the keys that one token weighs most. Attention is
    not an explanation: `pellucid influence` says what a part of the prompt did. A head that rests on the first token
    brings little from there: --by-value counts what is brought.
    """
    with look.inspected(
        prompt, "attn", model=model, tokenizer=tokenizer, threads=threads, ctx=ctx, kv=kv, chat=chat, budget=budget,
        max_tokens=max_tokens,
    ) as (_, trace):  # fmt: skip
        rows = None if pos is None else trace.at(pos)
        weights = apart(lambda: trace.attention(layer, head, rows, by_value=by_value))[0]
        if as_json:
            told = "norms" if by_value else "weights"
            look.print_json({"layer": layer, "head": head, "pos": rows, "tokens": trace.texts, told: weights})
            return
        if by_value:
            total = weights.sum(axis=1, keepdims=True)
            weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        kv_head = trace.source().anatomy.layers[layer].kv_head(head)
        print(f"layer {layer}, head {head} (of KV head {kv_head}), {len(trace.ids)} tokens")
        names = [draw.token(text, 12) for text in trace.texts]
        most = max(8, (draw.width() - 24) // 2)
        if rows is None and len(names) <= most:
            labels = [f"{i:>3} {name}" for i, name in enumerate(names)]
            draw.heat(
                weights.tolist(),
                labels,
                [str(i % 100) for i in range(len(names))],
                0.0,
                1.0,
                "of ‖αv‖" if by_value else "weight",
            )
            return
        if rows is None:
            rows, weights = len(names) - 1, weights[-1:]
            print(f"the map of {len(names)} tokens is too wide here; the row of the last, and --json has all")
        print(f"{rows:>5} {names[rows]} {'takes ‖αv‖ from' if by_value else 'looks at'}")
        row = weights[0]
        order = [int(key) for key in np.argsort(-row, kind="stable")[:MOST_KEYS]]
        for key in order:
            if row[key] > 0:
                name = draw.pad(names[key], 15)
                print(
                    f"{key:>5} {name} {draw.percent(float(row[key])):>8}  {draw.bar(float(row[key]), 1.0, 40)}".rstrip()
                )
        rest = float(row.sum() - row[order].sum())
        if rest > 5e-4:
            print(f"{'':>5} {draw.pad('the rest', 15)} {draw.percent(rest):>8}  {draw.bar(rest, 1.0, 40)}")
