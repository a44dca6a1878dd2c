"""`pellucid influence`: what each part of a prompt does for a token, by masking it."""

from __future__ import annotations

from typing import Annotated

import typer

from pellucid.cli import draw, layout, look, options
from pellucid.cli.inputs import apart


def influence(
    prompt: look.Prompt = None,
    pos: look.Pos = -1,
    by: Annotated[str, typer.Option(help="Cut the prompt by section, sentence, word or token")] = "sentence",
    grounding: Annotated[
        bool, typer.Option("--grounding", help="Show what the whole prompt does for each token of the answer")
    ] = False,
    max_tokens: look.MaxTokens = 1,
    model: options.Model = options.DEFAULT_MODEL,
    chat: look.Chat = False,
    budget: look.Budget = "512MB",
    threads: options.Threads = None,
    ctx: options.Ctx = None,
    kv: options.KV = "f16",
    tokenizer: options.Tokenizer = None,
    as_json: options.Json = False,
) -> None:
    """Show how much less likely a token is where nothing may look at a part of the prompt.

    Causal, unlike attention weights: each part is masked on a fork, and the token scored again.
    """
    with look.inspected(
        prompt, "influence", model=model, tokenizer=tokenizer, threads=threads, ctx=ctx, kv=kv, chat=chat,
        budget=budget, max_tokens=max_tokens,
    ) as (_, trace):  # fmt: skip
        if grounding:
            whole = apart(lambda: trace.grounding())
            if as_json:
                look.print_json({"tokens": trace.texts, "grounding": whole})
                return
            print("what the prompt does for each token of the answer: its logprob with the prompt, less without")
            most = max(abs(change) for change in whole.changes) or 1.0
            for i, change in enumerate(whole.changes):
                at = whole.first + i
                free = any(a <= at < b for a, b in whole.free)
                name = draw.pad(draw.token(trace.texts[at]), 26)
                note = "  the prompt does nothing for it" if free else ""
                print(f"{at:>5} {name} {-change:>+8.2f}  {draw.bar(-change, most)}{note}".rstrip())
            return
        at = trace.at(pos)
        found = apart(lambda: trace.prompt_influence(at, by=by))
        if as_json:
            look.print_json({"text": trace.texts[at], "by": by, "influence": found})
            return
        look.heading(trace, at)
        print(f"logprob {found.logprob:.3f}; what each {by} adds to it (the first token is never masked)")
        print()
        most = max((abs(change) for change in found.changes), default=0.0) or 1.0
        for span, change in zip(found.spans, found.changes, strict=True):
            value = -change
            text = draw.token(span.text, max(24, draw.width() - 44))
            mark = f"{value:>+8.2f}  {draw.bar(value, most, 20)}"
            faint = abs(change) <= found.noise
            print(f"{mark}  {layout.styled(text, layout.DIM) if faint else text}")
        print()
        print(f"changes below {found.noise:.3f} are the rounding of the measurement itself")
