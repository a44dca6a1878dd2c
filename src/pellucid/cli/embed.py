"""`pellucid embed`: what the vectors of a text's tokens are near to, and how they lie, in two dimensions."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from pellucid.cli import draw, layout, look, options
from pellucid.cli.inputs import apart, read_argument


def embed(
    text: look.Prompt = None,
    top: Annotated[int, typer.Option(help="Nearest tokens to list for each", min=1, max=50)] = 5,
    model: options.Model = options.DEFAULT_MODEL,
    threads: options.Threads = None,
    ctx: options.Ctx = None,
    kv: options.KV = "f16",
    tokenizer: options.Tokenizer = None,
    as_json: options.Json = False,
) -> None:
    """Show the embeddings of a text's tokens: their lengths, the nearest tokens by cosine, and a map (PCA)."""
    given = read_argument(text, 'pellucid embed "king queen man woman"', chomp=True)
    with options.load(model, threads, ctx, kv, tokenizer=tokenizer) as llm:
        from pellucid.probes.embedding import neighbours, principal

        llm.check_text(given)
        ids = list(dict.fromkeys(llm.tokenize(given)))
        found = apart(lambda: neighbours(llm, ids, top))
        places = principal(found.vectors)
        texts = [look.text_of(llm, i) for i in ids]
        if as_json:
            look.print_json(
                {
                    "tokens": [
                        {
                            "id": id,
                            "text": texts[i],
                            "norm": float(np.linalg.norm(found.vectors[i])),
                            "near": [{"id": n, "text": look.text_of(llm, n), "cosine": c} for n, c in found.near[i]],
                            "place": places[i],
                        }
                        for i, id in enumerate(ids)
                    ]
                }
            )
            return
        rows = [
            (
                str(id),
                draw.token(texts[i], 16),
                f"{np.linalg.norm(found.vectors[i]):.3f}",
                "  ".join(f"{draw.token(look.text_of(llm, n), 12)} {c:.2f}" for n, c in found.near[i]),
            )
            for i, id in enumerate(ids)
        ]
        layout.table(("id", "token", "length", "nearest, by cosine"), rows, right=(0, 2))
        if len(ids) > 2:
            print()
            _print_map(places, texts)


def _print_map(places: np.ndarray, texts: list[str]) -> None:
    """A map of at most 18 lines; names that would cover others move down."""
    wide, high = min(96, draw.width() - 4), 17
    low, span = places.min(axis=0), np.ptp(places, axis=0)
    span[span == 0] = 1
    lines = [[" "] * wide for _ in range(high + len(texts))]
    for (x, y), text in sorted(zip(places.tolist(), texts, strict=True), key=lambda p: -p[0][1]):
        name = "·" + draw.token(text, 14)[1:-1].strip()
        column = int((x - low[0]) / span[0] * (wide - draw.cells(name) - 1))
        line = int((1 - (y - low[1]) / span[1]) * high)
        while any(c != " " for c in lines[line][column : column + len(name) + 1]) and line < len(lines) - 1:
            line += 1
        lines[line][column : column + len(name)] = list(name)
    shown = ["".join(line).rstrip() for line in lines]
    while shown and not shown[-1]:
        shown.pop()
    print("the two directions in which they differ most:")
    print("\n".join(shown))
