"""`pellucid view`: a trace that was saved, without its model."""

from __future__ import annotations

from typing import Annotated

import typer

from pellucid.cli import draw, layout, look, options


def view(
    file: Annotated[str, typer.Argument(help="A folder or .zip that `pellucid trace` wrote")],
    top: Annotated[int, typer.Option(help="Surprising tokens to list", min=0)] = 10,
    as_json: options.Json = False,
) -> None:
    """Show a saved trace: its tokens by surprise, what layers wrote, what the engine did."""
    from pellucid.probes.export import load

    trace = load(file)
    if as_json:
        look.print_json({**trace.summary(), "events": trace.events, "norms": trace.norms, "heads": trace.heads})
        return
    n, answer = len(trace.ids), len(trace.ids) - trace.prompt_len
    print(f"{trace.model}: {trace.prompt_len} tokens of prompt, {answer} of answer, seed {trace.seed}")
    look.trust(trace)
    print()
    print("surprise, token by token (nats):")
    most = max(8.0, float(-trace.scores.logprobs.min())) if n > 1 else 8.0
    wide, line, used = draw.width(), "", 0
    for i, text in enumerate(trace.texts):
        cell = draw.shade(-trace.scores.logprobs[i - 1] / most if i else 0.0)
        shown = ("" if i != trace.prompt_len else "▸ ") + draw.token(text, 16)[1:-1]
        size = 3 + draw.cells(shown)
        if used + size > wide:
            print(line.rstrip())
            line, used = "", 0
        line += f"{cell}{shown} "
        used += size
    print(line.rstrip())
    if top and n > 1:
        print()
        rows = [
            (
                str(pos),
                draw.token(trace.texts[pos]),
                f"{surprise:.2f}",
                f"{trace.scores.ranks[pos - 1]:,}",
                f"{trace.scores.entropies[pos - 1]:.2f}",
                "prompt" if pos < trace.prompt_len else "answer",
            )
            for pos, surprise in trace.surprises(top)
        ]
        layout.table(("pos", "token", "surprise", "rank", "entropy", ""), rows, right=(0, 2, 3, 4))
    if trace.norms is not None:
        print()
        print("what layers add to the residual stream (mean norm):")
        attn, mlp = trace.norms.attn.mean(axis=1), trace.norms.mlp.mean(axis=1)
        largest = float(max(attn.max(), mlp.max()))
        for layer, (a, m) in enumerate(zip(attn, mlp, strict=True)):
            one, two = draw.bar(float(a), largest, 16), draw.bar(float(m), largest, 16)
            print(f"{layer:>4}  attention {a:>8.1f} {one}  MLP {m:>8.1f} {two}".rstrip())
    if trace.events:
        print()
        steps = [e for e in trace.events if e["point"] == "schedule"]
        print(f"{len(trace.events)} events of the engine, {len(steps)} steps; {trace.dropped} dropped")
