"""`pellucid compare`: how two models, or two formats of one, see the same text."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from pellucid.cli import draw, layout, look, options
from pellucid.cli.inputs import apart, read_argument


def compare(
    first: Annotated[str, typer.Argument(help="A model: name, org/repo[:QUANT], .gguf file or folder")],
    second: Annotated[str, typer.Argument(help="Another one, with the same vocabulary")],
    text: look.Prompt = None,
    max_tokens: look.MaxTokens = 0,
    top: Annotated[int, typer.Option(help="Tokens to list, those that differ most first", min=0)] = 10,
    kv: options.KV = "f16",
    second_kv: Annotated[str | None, typer.Option(help="Format of the second one's KV cache; default: --kv")] = None,
    budget: look.Budget = "512MB",
    threads: options.Threads = None,
    ctx: options.Ctx = None,
    as_json: options.Json = False,
) -> None:
    """Compare two models on a text: KL divergence by token, where the likeliest token flips, the first that would part.

    With --max-tokens the first model answers, and the second is asked what it thinks of the answer.
    """
    from pellucid.sampling.params import SamplingParams

    given = read_argument(text, 'pellucid compare A.gguf B.gguf "The capital of France is"', chomp=True)
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
    with options.load(first, threads, ctx, kv) as one:
        a = apart(lambda: one.inspect(given, params, level="tokens", budget=budget))
        with options.load(second, threads, ctx, second_kv or kv) as other:
            alone = SamplingParams(max_tokens=0, seed=0)
            b = apart(lambda: other.inspect(a.ids, alone, level="tokens", budget=budget))
            found = apart(lambda: a.compare(b))
    if as_json:
        look.print_json(
            {
                "models": [first, second],
                "tokens": a.texts,
                "kl": found.kl,
                "flips": found.flips,
                "first_divergence": found.first_divergence,
                "logprobs": found.logprobs,
            }
        )
        return
    n = len(found.kl)
    mean = float(found.kl.mean()) if n else 0.0
    print(f"{n} predictions: mean KL {mean:.4f} nats, median {float(np.median(found.kl)) if n else 0:.4f}")
    print(f"the likeliest token differs at {len(found.flips)} of them")
    if found.first_divergence is None:
        print("greedy decoding would not part on this text")
    else:
        at = found.first_divergence
        print(f"greedy decoding would part first at {at}, {draw.token(a.texts[at])}")
    per_token = [float(np.exp(-x.mean())) for x in found.logprobs] if n else [1.0, 1.0]
    print(f"perplexity of the text: {per_token[0]:.3f} and {per_token[1]:.3f}")
    if top and n:
        print()
        order: list[int] = np.argsort(-found.kl, kind="stable")[:top].tolist()
        rows = [
            (
                str(i + 1),
                draw.token(a.texts[i + 1]),
                f"{found.kl[i]:.4f}",
                f"{found.logprobs[0][i]:.3f}",
                f"{found.logprobs[1][i]:.3f}",
                "flips" if i + 1 in found.flips else "",
            )
            for i in order
        ]
        layout.table(("pos", "token", "KL", "logprob A", "logprob B", ""), rows, right=(0, 2, 3, 4))
