"""Progress of a pull, on stderr: a bar on a terminal, one line elsewhere, nothing when it is not wanted.

Law: progress is read from the bytes on disk, so every source shows it alike and no library's own bar is needed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Generator

from pellucid.models.store import size_text


class Progress:
    """Says on stderr what a pull is doing; silent when `enabled` is false."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def say(self, line: str) -> None:
        """One line, for people."""
        if self.enabled:
            print(line, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def growth(self, label: str, total: int | None, measure: Callable[[], int]) -> Generator[None]:
        """Show `measure()` growing towards `total` bytes while the body runs."""
        if not self.enabled or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
            expand=True,
        )
        start = measure()
        done = threading.Event()

        def watch() -> None:
            # What an earlier pull left counts as done, but not as speed: the task starts there.
            task = bar.add_task(label, total=total, completed=start)
            while not done.wait(0.1):
                now = measure()
                bar.update(task, completed=min(now, total) if total else now)

        with bar:
            watcher = threading.Thread(target=watch, name="pellucid-progress", daemon=True)
            watcher.start()
            try:
                yield
            finally:
                done.set()
                watcher.join()

    def size(self, nbytes: int | None) -> str:
        """A size for a line, or "size unknown"."""
        return size_text(nbytes) if nbytes else "size unknown"
