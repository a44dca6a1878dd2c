"""`pellucid lens`: what each layer would say, if it were the last: when a token was decided."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from pellucid.cli import draw, layout, look, options
from pellucid.cli.inputs import apart


def lens(
    prompt: look.Prompt = None,
    pos: look.Pos = -1,
    max_tokens: look.MaxTokens = 1,
    top: Annotated[int, typer.Option(help="Tokens to show of each layer", min=1, max=20)] = 5,
    names: Annotated[bool, typer.Option("--names", help="List the values that Python can look at, and end")] = False,
    model: options.Model = options.DEFAULT_MODEL,
    chat: look.Chat = False,
    budget: look.Budget = "512MB",
    threads: options.Threads = None,
    ctx: options.Ctx = None,
    kv: options.KV = "f16",
    tokenizer: options.Tokenizer = None,
    as_json: options.Json = False,
) -> None:
    """Show what each layer would say for a token: the residual stream through the last norm and the unembedding."""
    if names:
        with options.load(model, threads, ctx, kv, tokenizer=tokenizer) as llm:
            from pellucid.probes.inspect import replay_of

            for name in replay_of(llm, [0]).anatomy.names:
                print(name)
        return
    with look.inspected(
        prompt, "lens", model=model, tokenizer=tokenizer, threads=threads, ctx=ctx, kv=kv, chat=chat, budget=budget,
        max_tokens=max_tokens,
    ) as (llm, trace):  # fmt: skip
        at = trace.at(pos)
        found = apart(lambda: trace.logit_lens(pos=at, top_k=top))
        decided = found.decided(at - 1)
        if as_json:
            look.print_json(
                {
                    "pos": at,
                    "text": trace.texts[at],
                    "decided_at_layer": decided,
                    "layers": [
                        {
                            "layer": layer,
                            "rank": found.ranks[i, 0],
                            "logprob": found.logprobs[i, 0],
                            "entropy": found.entropies[i, 0],
                            "top": [
                                {"id": id, "text": look.text_of(llm, id), "logprob": logprob}
                                for id, logprob in found.top[i][0]
                            ],
                        }
                        for i, layer in enumerate(found.layers)
                    ],
                }
            )
            return
        look.heading(trace, at)
        print()
        column = 16
        head = "layer     rank   p(token)      " + "".join(f"{n + 1}".ljust(column + 3) for n in range(top))
        print(layout.styled(head.rstrip(), layout.BOLD))
        for i, layer in enumerate(found.layers):
            share = math.exp(found.logprobs[i, 0])
            line = f"{'embed' if layer == 0 else layer:>5} {found.ranks[i, 0]:>8,} {draw.percent(share):>10}  "
            marks = ""
            for id, logprob in found.top[i][0]:
                own = id == found.targets[0]
                name = draw.pad(draw.token(look.text_of(llm, id), column - 4), column - 1)
                cell = draw.shade(math.exp(logprob)) + " " + (layout.styled(name, layout.BOLD) if own else name) + " "
                marks += cell
            print((line + marks).rstrip())
        print()
        print(
            f"{draw.token(trace.texts[at])} is the likeliest from layer {decided} of {len(found.layers) - 1} on"
            if decided >= 0
            else f"{draw.token(trace.texts[at])} is not the likeliest even at the end"
        )
