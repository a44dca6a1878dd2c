"""`pellucid why`: why this token: the sampling funnel, the layer that decided, and the parts that wrote it."""

from __future__ import annotations

import math
from textwrap import wrap
from typing import TYPE_CHECKING

from pellucid.cli import draw, layout, look, options
from pellucid.cli.inputs import apart

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.probes.funnel import Funnel
    from pellucid.probes.trace import Trace


def why(
    prompt: look.Prompt = None,
    pos: look.Pos = -1,
    max_tokens: look.MaxTokens = 1,
    model: options.Model = options.DEFAULT_MODEL,
    temperature: options.Temperature = 0.7,
    top_k: options.TopK = 0,
    top_p: options.TopP = 0.9,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = None,
    chat: look.Chat = False,
    budget: look.Budget = "512MB",
    threads: options.Threads = None,
    ctx: options.Ctx = None,
    kv: options.KV = "f16",
    tokenizer: options.Tokenizer = None,
    as_json: options.Json = False,
) -> None:
    """Say why a token was chosen.

    Every stage of sampling, with what it cut; the number that was drawn; what would have been chosen otherwise; the
    layer from which the token led; and the parts of the model that wrote its logit.
    """
    params = options.sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=None,
    )
    with look.inspected(
        prompt, "why", model=model, tokenizer=tokenizer, threads=threads, ctx=ctx, kv=kv, chat=chat, budget=budget,
        max_tokens=max_tokens, params=params,
    ) as (llm, trace):  # fmt: skip
        at = trace.at(pos)
        funnel = apart(lambda: trace.why(at))
        lens = apart(lambda: trace.logit_lens(pos=at, top_k=1))
        wrote = apart(lambda: trace.attribution(at))
        decided = lens.decided(at - 1)
        if as_json:
            drawn = at >= trace.prompt_len
            look.print_json(
                {
                    "model": trace.model,
                    "text": trace.texts[at],
                    "drawn": drawn,
                    "replays": funnel.replays if drawn else None,
                    "delta": trace.delta,
                    "seed": trace.seed,
                    "funnel": funnel,
                    "decided_at_layer": decided,
                    "written_by": wrote.parts,
                    "logit": wrote.logit,
                    "remainder": wrote.remainder,
                }
            )
            return
        look.heading(trace, at)
        surprisal = -math.log(max(funnel.chosen_probability, 1e-45))
        print(
            f"rank {funnel.chosen_rank} of {llm.device.vocab_size:,}, probability "
            f"{draw.percent(funnel.chosen_probability)}, {surprisal:.2f} nats of surprise"
        )
        print()
        if at >= trace.prompt_len:
            _print_funnel(llm, trace, funnel)
        else:
            print("a token of the prompt: it was given, not drawn. The likeliest were:")
            for token, share in funnel.raw[:8]:
                name = draw.pad(draw.token(look.text_of(llm, token)), 26)
                print(f"  {name} {draw.percent(share):>8}  {draw.bar(share, 1.0)}")
        print()
        _print_parts(trace, wrote.parts, wrote.logit, wrote.remainder)
        layers = len(lens.layers) - 1
        print(
            f"likeliest from layer {decided} of {layers} on"
            if decided >= 0
            else f"not the likeliest, after all {layers} layers"
        )
        look.trust(trace)


def _print_funnel(llm: LLM, trace: Trace, funnel: Funnel) -> None:
    rows: list[tuple[str, ...]] = []
    idle = [stage.name for stage in funnel.stages if not stage.changed]
    for stage in funnel.stages:
        if not stage.changed:
            continue
        best = "  ".join(f"{draw.token(look.text_of(llm, i), 12)} {draw.percent(p)}" for i, p in stage.top[:2])
        cut = ""
        if stage.cut is not None:
            cut = f"{draw.token(look.text_of(llm, stage.cut[0]), 12)} {draw.percent(stage.cut[1])}"
        removed = draw.percent(stage.mass_removed) if stage.mass_removed else ""
        kept = f"{stage.kept:,}"
        rows.append((stage.name, kept, removed, cut, best))
    layout.table(("stage", "left", "mass gone", "last one kept", "likeliest then"), rows, right=(1, 2))
    if idle:
        for line in wrap(f"nothing to do: {', '.join(idle)}", draw.width(), subsequent_indent="  "):
            print(layout.styled(line, layout.DIM))
    if funnel.random is not None:
        print()
        print(f"the draw: {funnel.random:.6f} (seed {trace.seed}) falls on")
        for place in funnel.cdf[:10]:
            mark = "▸" if place.token == funnel.token else " "
            name = draw.pad(draw.token(look.text_of(llm, place.token)), 26)
            print(
                f"  {mark} {name} {place.low:.4f} … {place.high:.4f}  {draw.bar(place.high - place.low, 1.0)}".rstrip()
            )
    others = {name: token for name, token in funnel.counterfactuals if token != funnel.token}
    if others:
        print()
        print("otherwise:  " + "   ".join(f"{n} → {draw.token(look.text_of(llm, t))}" for n, t in others.items()))
    elif funnel.counterfactuals:
        print(f"the same with {', '.join(name for name, _ in funnel.counterfactuals)}")
    if not funnel.replays:
        print(f"note: the chain gives {draw.token(look.text_of(llm, funnel.token))} here, not what was served")


def _print_parts(trace: Trace, parts: list[tuple[str, float]], logit: float, remainder: float) -> None:
    print(f"its logit is {logit:.2f}, written by")
    order = sorted(parts, key=lambda part: -abs(part[1]))[:8]
    most = max(abs(value) for _, value in order)
    for name, value in order:
        print(f"  {name:<28} {value:>+8.2f}  {draw.bar(value, most)}".rstrip())
    rest = logit - remainder - sum(value for _, value in order)
    print(f"  {'all the others':<28} {rest:>+8.2f}")
