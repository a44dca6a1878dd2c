"""`pellucid replay`: run a receipt again, and say whether every bit is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from pellucid.cli import look, options
from pellucid.cli.inputs import apart, read_file
from pellucid.errors import RequestError
from pellucid.probes.wire import plain


def replay(
    receipt: Annotated[str, typer.Argument(help="receipt.json, or the folder of a trace")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model; default: the one that the receipt names")
    ] = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Run an answer again from its receipt: bit-identical, or the first step that differs.

    The exit code is 0 if it is identical, 1 if not.
    """
    from pellucid.probes.receipt import check

    path = Path(receipt)
    text = read_file(str(path / "receipt.json" if path.is_dir() else path))
    try:
        found: Any = json.loads(text)
    except ValueError:
        raise RequestError(f"{receipt} is no JSON") from None
    if not isinstance(found, dict):
        raise RequestError(f"{receipt} is no receipt")
    values = cast("dict[str, Any]", found)
    try:
        name, kv, ctx = model or str(values["model"]), str(values["kv"]), int(values["context"])
    except (KeyError, TypeError, ValueError):
        raise RequestError(f"{receipt} is no receipt; `pellucid trace PROMPT -o FOLDER` writes one") from None
    with options.load(name, threads, ctx, kv) as llm:
        verdict = apart(lambda: check(llm, values))
        if as_json:
            look.print_json({"identical": verdict.identical, **plain(verdict)})
        elif verdict.identical:
            print(f"bit-identical: {verdict.steps} tokens, each with the very logprob")
        else:
            step = verdict.differs_at
            print(f"differs at step {step} of {verdict.steps}")
            for when, pair in (("then", verdict.then), ("now", verdict.now)):
                what = "nothing" if pair is None else f"{look.text_of(llm, pair[0])!r} ({pair[0]}), logprob {pair[1]!r}"
                print(f"  {when}: {what}")
        if verdict.changed and not as_json:
            print(f"not as they were then: {', '.join(verdict.changed)}")
    if not verdict.identical:
        raise typer.Exit(1)
