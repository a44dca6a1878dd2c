"""`pellucid trace`: an answer with all that there is to know of it, in files that others open."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from pellucid.cli import layout, look, options
from pellucid.cli.inputs import apart, read_argument
from pellucid.errors import RequestError


def trace(
    prompt: look.Prompt = None,
    output: Annotated[str, typer.Option("--output", "-o", help="A folder to make, or a .zip")] = "pellucid.trace",
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

    `pellucid view` shows it again, `pellucid replay` runs it again.
    """
    from pathlib import Path
    from zipfile import ZipFile

    from pellucid.probes.export import save
    from pellucid.probes.inspect import inspect_with_receipt
    from pellucid.probes.plots import VIEWS, plot

    if plots and output.endswith(".zip"):
        raise RequestError("--plots draws into a folder; give a folder to -o")
    if unknown := set(plots or ()) - set(VIEWS):
        raise RequestError(f"--plots {min(unknown)} is no view; choose {', '.join(VIEWS)}")
    if Path(output).exists():
        raise RequestError(f"{output} is there already; choose another place with -o")
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
        level = "heads" if heads else "summary"
        found, receipt = apart(lambda: inspect_with_receipt(llm, asked, params, level=level, budget=budget))
        apart(lambda: save(found, output, names=activations or (), receipt=receipt))
        for view in plots or ():
            plot(found, view, Path(output) / f"{view}.svg")
    answer = b"".join(found.pieces[found.prompt_len :]).decode("utf-8", "replace")
    where = Path(output)
    names = sorted(p.name for p in where.iterdir()) if where.is_dir() else sorted(ZipFile(where).namelist())
    if as_json:
        look.print_json({"output": output, "text": answer, "files": names, "delta": found.delta, "seed": found.seed})
        return
    print(answer)
    print()
    layout.facts([("written to", output), ("files", ", ".join(names)), ("seed", str(found.seed))])
    look.trust(found)
