"""`pellucid trace`: an answer with all that there is to know of it, in files that others open."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from pellucid.cli import layout, look, options
from pellucid.cli.inputs import apart, read_argument
from pellucid.errors import RequestError


def trace(
    prompt: look.Prompt = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="A folder to make, or a .zip; default: pellucid.trace, or none with --html"
        ),
    ] = None,
    html: Annotated[
        str | None,
        typer.Option("--html", help="A report to write: one file that a browser opens, without a server or a network"),
    ] = None,
    html_budget: Annotated[
        str, typer.Option(help="Largest size of the report, which says what was left out for it")
    ] = "8MB",
    activations: Annotated[
        list[str] | None, typer.Option(help="Values to write too, by name (* fits anything); may be repeated")
    ] = None,
    plots: Annotated[list[str] | None, typer.Option(help="Views to draw into the folder; may be repeated")] = None,
    heads: Annotated[bool, typer.Option("--heads", help="Measure all heads, too")] = False,
    max_tokens: look.MaxTokens = 32,
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
    """Answer a prompt and write a trace: tokens, events, norms, a timeline for Perfetto, and a receipt.

    `pellucid view` shows it again, `pellucid replay` runs it again. --html writes the page that `pellucid serve` shows,
    of this answer, as one file. Whoever has the files can read the prompt and the answer.
    """
    from contextlib import nullcontext
    from pathlib import Path
    from zipfile import ZipFile

    from pellucid.probes import report
    from pellucid.probes.export import save
    from pellucid.probes.inspect import inspect_with_receipt
    from pellucid.probes.plots import VIEWS, plot
    from pellucid.probes.replay import budget_bytes

    if output is None and (html is None or plots or activations):
        output = "pellucid.trace"
    if plots and output and output.endswith(".zip"):
        raise RequestError("--plots draws into a folder; give a folder to -o")
    if unknown := set(plots or ()) - set(VIEWS):
        raise RequestError(f"--plots {min(unknown)} is no view; choose {', '.join(VIEWS)}")
    for place, option in ((output, "-o"), (html, "--html")):
        if place is not None and Path(place).exists():
            raise RequestError(f"{place} is there already; choose another place with {option}")
    if html is not None and not Path(html).parent.is_dir():
        raise RequestError(f"--html {html}: there is no folder {Path(html).parent}")
    budget_bytes(html_budget)
    text = read_argument(prompt, 'pellucid trace "The capital of France is" -o france', chomp=True)
    params = options.sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=None,
    )
    params = replace(params, max_tokens=max_tokens)
    with options.load(model, threads, ctx, kv, tokenizer=tokenizer) as llm:
        asked: Any = [{"role": "user", "content": text}] if chat else text
        level = "heads" if heads or html else "summary"
        with report.CacheWatch(llm) if html else nullcontext() as cache:
            found, receipt = apart(lambda: inspect_with_receipt(llm, asked, params, level=level, budget=budget))
        if output is not None:
            apart(lambda: save(found, output, names=activations or (), receipt=receipt))
            for view in plots or ():
                plot(found, view, Path(output) / f"{view}.svg")
        made = None
        if html is not None:
            print(f"writing the report of {len(found.ids)} tokens", file=sys.stderr)
            kv_map = cache.map if cache else None
            made = apart(lambda: report.save(llm, found, html, budget=html_budget, cache=kv_map))
    answer = b"".join(found.pieces[found.prompt_len :]).decode("utf-8", "replace")
    names: list[str] = []
    if output is not None:
        where = Path(output)
        names = sorted(p.name for p in where.iterdir()) if where.is_dir() else sorted(ZipFile(where).namelist())
    left_out = made.left_out if made else []
    if as_json:
        told = {"output": output, "text": answer, "files": names, "delta": found.delta, "seed": found.seed}
        look.print_json({**told, "html": html, "left_out": left_out})
        return
    print(answer)
    print()
    if output is not None:
        layout.facts([("written to", output), ("files", ", ".join(names))])
    if html is not None and made is not None:
        size = f"{made.nbytes / 1e6:.1f} MB"
        layout.facts(
            [("report", f"{html} ({size}); the prompt and the answer are in it"), *(("", line) for line in left_out)]
        )
    layout.facts([("seed", str(found.seed))])
    look.trust(found)
