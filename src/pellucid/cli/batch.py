"""`pellucid batch`: a file of requests in, a file of answers out.

Law: it stops at any moment without loss, and the same command goes on from there. Answers go to the file, or to stdout;
all else goes to stderr.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from pellucid.cli import options
from pellucid.cli.inputs import stdin, visible
from pellucid.errors import RequestError

if TYPE_CHECKING:
    from rich.progress import Progress, Task

    from pellucid.server.batchfiles import Fault

MOST_TOLD = 20
"""Faults that stderr names, each with its line; the answers have them all."""


def batch(
    file: Annotated[str, typer.Argument(help="Requests, a JSON object a line; - reads standard input")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Answers; the same file again goes on where it ended. Default: stdout"),
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    served_model_name: Annotated[
        str | None, typer.Option(envvar="PELLUCID_SERVED_MODEL_NAME", help="Name that requests use; default: --model")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look for lines that would be refused; load no model, write nothing")
    ] = False,
    max_seqs: Annotated[
        int, typer.Option(envvar="PELLUCID_MAX_SEQS", help="Answers that run together", min=1)
    ] = options.DEFAULT_MAX_SEQS,
    seed: Annotated[
        int | None, typer.Option(envvar="PELLUCID_SEED", help="Seed of requests that bring none; default: drawn")
    ] = None,
    threads: options.Threads = None,
    ctx: options.Ctx = None,
    kv: options.KV = "f16",
    kv_pages: options.KVPages = None,
    tokenizer: options.Tokenizer = None,
) -> None:
    """Answer a file of requests in OpenAI's batch format: custom_id, method, url and body on each line.

    Lines that cannot be asked get an error and end nothing; the exit code is 1 then.
    """
    from pellucid.server.batch import check, run
    from pellucid.server.batchfiles import Answers, Requests

    name = served_model_name or model
    with _opened(file) as opened:
        requests = Requests(opened, name)
        total = len(requests.lines) + len(requests.faults)
        if not total:
            raise RequestError(f"{file} has no requests; give a JSON object a line")
        if dry_run:
            report = _Report(total, "could be asked")
            for fault in requests.faults:
                report.line(fault)
            asyncio.run(check(name, requests, report.line))
            raise typer.Exit(report.finish(None))
        if output is not None and output.exists() and os.path.samestat(output.stat(), os.fstat(opened.fileno())):
            raise RequestError(f"{output} holds the requests; give another file with -o")
        with Answers(output) as answers:
            lines = [line for line in requests.lines if not answers.holds(line)]
            done = len(requests.lines) - len(lines)
            if done:
                print(f"{done} of {total} are answered in {output} already", file=sys.stderr)
            report = _Report(total, "answered", done, bar=output is not None or not sys.stdout.isatty())
            try:
                for fault in requests.faults:
                    answers.failed(fault)
                    report.line(fault)
                if lines:
                    with options.load(
                        model, threads, ctx, kv, tokenizer=tokenizer, kv_pages=kv_pages, max_seqs=max_seqs, seed=seed
                    ) as llm:
                        report.start(lambda: llm.engine.stats.generated_tokens)
                        asyncio.run(run(llm, name, requests, lines, answers, report.line))
            except KeyboardInterrupt:
                report.stop()
                again = "" if output is None else "; the same command goes on from there"
                print(f"stopped: {report.answered} of {total} are answered{again}", file=sys.stderr)
                raise
            finally:
                report.stop()
    raise typer.Exit(report.finish(output))


class _Report:
    """Says how it goes: a bar on a terminal, lines that failed, and a sum at the end."""

    def __init__(self, total: int, verb: str, done: int = 0, *, bar: bool = False) -> None:
        self.answered = done
        self._total = total
        self._verb = verb
        self._failed = 0
        self._shown = bar and sys.stderr.isatty()
        self._bar: Progress | None = None
        self._tokens: Callable[[], int] = lambda: 0
        self._began = time.perf_counter()

    def start(self, tokens: Callable[[], int]) -> None:
        """The work begins; `tokens` counts those that were generated."""
        self._tokens, self._began = tokens, time.perf_counter()
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TimeRemainingColumn
            from rich.text import Text

            now = self._now

            class Now(ProgressColumn):
                def render(self, task: Task) -> Text:
                    return Text(now())

            columns = (BarColumn(), MofNCompleteColumn(), Now(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task("", total=self._total, completed=self.answered + self._failed)
            self._bar.start()

    def stop(self) -> None:
        """The bar goes."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def line(self, fault: Fault | None) -> None:
        """A line is through."""
        if fault is None:
            self.answered += 1
        else:
            self._failed += 1
            if self._failed <= MOST_TOLD:
                self._say(visible(f"line {fault.number}: {fault.message}"))
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])

    def finish(self, output: Path | None) -> int:
        """Say the sum. Returns the exit code."""
        if self._failed > MOST_TOLD:
            self._say(f"and {self._failed - MOST_TOLD} lines more failed" + (f"; see {output}" if output else ""))
        parts = [f"{self.answered} of {self._total} {self._verb}"]
        if self._failed:
            parts.append(f"{self._failed} failed" + ("; the same command tries them again" if output else ""))
        if self._tokens():
            parts.append(f"{time.perf_counter() - self._began:.1f} s, {self._rate():.0f} tok/s")
        self._say(" · ".join(parts))
        return 1 if self._failed else 0

    def _now(self) -> str:
        return f"{self._rate():.0f} tok/s" + (f" · {self._failed} failed" if self._failed else "")

    def _rate(self) -> float:
        return self._tokens() / max(1e-9, time.perf_counter() - self._began)

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)


@contextmanager
def _opened(file: str) -> Generator[BinaryIO]:
    """The requests, in a file that can be read at any place."""
    try:
        source = stdin() if file == "-" else Path(file).open("rb")  # noqa: SIM115 - closed below, if it is ours
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}") from None
    with nullcontext(source) if file == "-" else source:
        if source.seekable() and file != "-":
            yield source
            return
        with tempfile.TemporaryFile() as spool:
            shutil.copyfileobj(source, spool)
            spool.seek(0)
            yield spool
