"""What the commands that look inside share: their options, and the trace that they look at.

Law: a prompt is continued as it is, so that what is looked at is what was written; --chat puts it through the model's
template, as `run` does.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.cli import draw, options
from pellucid.cli.inputs import apart, read_argument
from pellucid.errors import RequestError
from pellucid.probes.wire import plain

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.probes.trace import Level, Trace
    from pellucid.sampling.params import SamplingParams

Prompt = Annotated[str | None, typer.Argument(help="The prompt; - or nothing reads standard input")]
MaxTokens = Annotated[int, typer.Option(help="Tokens to answer before looking; 0 looks at the prompt alone", min=0)]
Pos = Annotated[int, typer.Option(help="Token to look at, from 0; below 0 from the end")]
Chat = Annotated[bool, typer.Option("--chat", help="Put the prompt through the model's chat template")]
Budget = Annotated[str, typer.Option(help="Memory that looking may take besides the model")]
Layer = Annotated[int, typer.Option(help="Layer, from 0", min=0)]
Head = Annotated[int, typer.Option(help="Query head, from 0", min=0)]


@contextmanager
def inspected(
    prompt: str | None,
    command: str,
    *,
    model: str,
    tokenizer: str | None,
    threads: int | None,
    ctx: int | None,
    kv: str,
    chat: bool,
    budget: str,
    max_tokens: int = 1,
    params: SamplingParams | None = None,
    level: Level = "tokens",
) -> Generator[tuple[LLM, Trace]]:
    """Load the model, answer the prompt, and look at it."""
    from dataclasses import replace

    from pellucid.sampling.params import SamplingParams

    text = read_argument(prompt, f'pellucid {command} "The capital of France is"', chomp=True)
    params = replace(params or SamplingParams(temperature=0.0, seed=0), max_tokens=max_tokens)
    with options.load(model, threads, ctx, kv, tokenizer=tokenizer) as llm:
        asked: Any = [{"role": "user", "content": text}] if chat else text
        if chat and llm.template.source is None:
            raise RequestError(f"{llm.name} has no chat template; leave --chat out")
        yield llm, apart(lambda: llm.inspect(asked, params, level=level, budget=budget))


def text_of(llm: LLM, token: int) -> str:
    """What a token spells."""
    from pellucid.probes.inspect import piece_of

    return piece_of(llm, token).decode("utf-8", "replace")


def heading(trace: Trace, pos: int) -> None:
    """One line: the text before a token, and the token."""
    from pellucid.cli import layout

    before = draw.token("".join(trace.texts[max(0, pos - 64) : pos]), 10**6)[1:-1]
    shown = before[-max(20, draw.width() - 40) :]
    cut = "…" if pos > 64 or len(shown) < len(before) else ""
    print(f"{layout.styled(cut + shown, layout.DIM)} ▸ {layout.styled(draw.token(trace.texts[pos]), layout.BOLD)}")


def trust(trace: Trace) -> None:
    """One line: how far the replay is from what was served."""
    if trace.delta is not None:
        how = "the very bits that were served" if trace.delta == 0 else "not the bits that were served"
        print(f"replayed: |Δ logprob| {trace.delta:.3g}, {how}")


def print_json(value: object) -> None:
    """JSON on one line; NumPy's numbers as numbers, infinities as null."""
    print(json.dumps(plain(value), ensure_ascii=False, allow_nan=False))
