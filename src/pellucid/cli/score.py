"""`pellucid score`: how well a model predicts a text.

Law: the text's tokens are cut into windows of `chunk`, one beginning every `stride` tokens; each window is scored on
its own. A token is scored once, in the first window where more than `context` tokens stand before it. The defaults are
llama.cpp's: windows side by side, of which the second half counts; with a stride, Hugging Face's: all of the first
window, and of each later one what is new. Where the model begins texts with a BOS, each window does.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.cli import options
from pellucid.cli.inputs import apart, read_file
from pellucid.errors import RequestError

if TYPE_CHECKING:
    from pellucid.llm import LLM


@dataclass(frozen=True)
class Window:
    """Tokens start:stop of the text, of which those from `first` on are scored."""

    start: int
    stop: int
    first: int


def windows(tokens: int, chunk: int, stride: int, context: int) -> list[Window]:
    """The windows of a text of so many tokens. A text shorter than a window is one, scored from its second token."""
    if tokens <= chunk:
        return [Window(0, tokens, 1 if tokens < chunk else min(context + 1, tokens))]
    cut: list[Window] = []
    done = 0
    for start in range(0, tokens - chunk + 1, stride):
        cut.append(Window(start, start + chunk, max(start + context + 1, done)))
        done = start + chunk
    return cut


def score(
    file: Annotated[str, typer.Argument(help="A UTF-8 text file; - reads standard input")],
    model: options.Model = options.DEFAULT_MODEL,
    chunk: Annotated[int, typer.Option(help="Tokens in a window", min=2)] = 512,
    stride: Annotated[
        int | None, typer.Option(help="Tokens from one window's start to the next; default: --chunk", min=1)
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            help="Score a token after more than so many; default: half of --chunk, 0 with a smaller --stride", min=0
        ),
    ] = None,
    threads: options.Threads = None,
    kv: options.KV = "f16",
    as_json: options.Json = False,
) -> None:
    """Measure how well a model predicts a text: perplexity, with windows and strides."""
    stride = chunk if stride is None else stride
    if context is None:
        context = chunk // 2 if stride == chunk else 0
    if stride > chunk:
        raise RequestError(f"--stride {stride} leaves tokens out between windows of {chunk}; give {chunk} or less")
    if context >= chunk - 1:
        raise RequestError(
            f"--context {context} leaves nothing to score in a window of {chunk}; give {chunk - 2} or less"
        )
    text = read_file(file)
    with options.load(model, threads, max(chunk, 16), kv, prefix_cache=False) as llm:
        ids = apart(lambda: llm.tokenize(text))
        if len(ids) < 2:
            raise RequestError(f"the text is {len(ids)} token{'s' * (len(ids) != 1)} long; it takes two to score one")
        cut = windows(len(ids), chunk, stride, context)
        began = time.perf_counter()
        with _bar(len(cut)) as tick:
            losses = list(_losses(llm, ids, cut, tick))
        elapsed = time.perf_counter() - began
    computed = sum(window.stop - window.start for window in cut)
    mean = math.fsum(losses) / len(losses)
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in losses) / max(1, len(losses) - 1) / len(losses))
    perplexity = math.exp(min(mean, 700.0))
    if as_json:
        result = {
            "model": model,
            "file": file,
            "tokens": len(ids),
            "scored": len(losses),
            "windows": len(cut),
            "chunk": chunk,
            "stride": stride,
            "context": context,
            "perplexity": perplexity,
            "perplexity_error": perplexity * spread,
            "nats_per_token": mean,
            "tokens_per_second": computed / elapsed,
            "seconds": elapsed,
        }
        print(json.dumps(result))
        return
    print(f"perplexity {perplexity:.4f} ± {perplexity * spread:.4f}  ({mean:.4f} nats a token)")
    print(f"{len(losses)} of {len(ids)} tokens scored, {_cut(len(ids), len(cut), chunk, stride, context)}")
    print(f"{computed / elapsed:.0f} tokens/s, {elapsed:.1f} s")


def _cut(tokens: int, windows: int, chunk: int, stride: int, context: int) -> str:
    """How the text was cut, in words."""
    if tokens < chunk:
        return "all in one window"
    if windows == 1:
        return f"one window of {chunk}, after its first {context + 1}"
    return f"{windows} windows of {chunk}, one every {stride}, each after its first {context + 1}"


def _losses(llm: LLM, ids: list[int], cut: list[Window], tick: Callable[[float], None]) -> Iterator[float]:
    """Negative logprob of each scored token, in nats; `tick` hears the perplexity so far."""
    bos = llm.tokenize("")[:1]
    total, count = 0.0, 0
    for window in cut:
        tokens = ids[window.start : window.stop]
        result = llm.score([*bos, *tokens[1:]] if bos else tokens)
        for value in result.logprobs[window.first - window.start :]:
            if value is not None:
                total, count = total - value, count + 1
                yield -value
        tick(math.exp(min(total / max(1, count), 700.0)))


@contextmanager
def _bar(total: int) -> Generator[Callable[[float], None]]:
    """A bar on stderr while windows are computed, if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda perplexity: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("windows · perplexity {task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("…", total=total)
        yield lambda perplexity: bar.update(task, advance=1, description=f"{perplexity:.3f}")
