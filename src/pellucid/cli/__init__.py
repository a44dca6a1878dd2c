"""The `pellucid` command: one small module a command, loaded when it is called.

Law: whatever goes wrong is one line on stderr, `error: ...`, and an exit code; PELLUCID_DEBUG=1 shows the traceback of
what was not foreseen. This module imports nothing heavy, so that Ctrl-C is quiet from the start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from typing import IO, TYPE_CHECKING

from pellucid.errors import PellucidError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

COMMANDS: dict[str, tuple[tuple[str, str], ...]] = {
    "Talk to a model": (
        ("run", "Answer one prompt, streamed to stdout"),
        ("chat", "Talk, with memory of the conversation"),
        ("serve", "Serve the OpenAI API over HTTP"),
        ("batch", "Answer a file of requests in OpenAI's batch format"),
        ("keys", "Make, list and revoke the keys of a server"),
    ),
    "Look inside": (
        ("tokens", "Show how text becomes tokens"),
        ("score", "Measure how well a model predicts a text"),
        ("why", "Say why a token was chosen: each stage of sampling, the layers, the parts"),
        ("attn", "Show where a head of attention looks"),
        ("lens", "Show what each layer would say"),
        ("heads", "Show what every head does"),
        ("influence", "Measure what each part of a prompt does for a token, by masking it"),
        ("embed", "Show what the vectors of tokens are near to"),
        ("rope", "Show how a model tells positions apart"),
        ("compare", "Compare two models or formats, token by token"),
        ("trace", "Write an answer with all there is to know of it to files"),
        ("view", "Show a trace that was saved"),
        ("replay", "Run a receipt again: bit-identical, or the first step that differs"),
        ("show", "Show a model's card"),
        ("plan", "Say what memory a model takes, before it is loaded, and what fits"),
        ("bench", "Measure how fast a model runs here, and how near the machine's limits"),
        ("top", "Watch a server live: requests, tokens a second, latencies, cache, memory"),
        ("kv", "Draw the map of a server's KV cache: which page belongs to whom"),
        ("audit", "Look for security faults of a running server, and say how to mend each"),
        ("audit-log", "Verify the audit log of a server: intact, or the first line that is not"),
        ("autopsy", "Say what became of a request to a server, and what its time went to"),
        ("waste", "Rank what a server computed for nothing, and what would save it"),
        ("doctor", "Check this machine, and say what is wrong"),
    ),
    "Models": (
        ("pull", "Bring a model to this machine"),
        ("ls", "List models that are here, or could be"),
        ("rm", "Remove a model"),
    ),
}
"""Commands by theme. `NAME` is the function, or the group of commands, `NAME` of the module
`pellucid.cli.NAME`, with _ for -."""

INTERRUPTED = 130
BROKEN_PIPE = 141


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit. `args` is without the program's name; None: sys.argv, as the program itself."""
    if args is not None:
        sys.exit(_outcome(list(args)))
    sys.excepthook = _last_resort
    sys.unraisablehook = _unraisable
    _open_streams()
    code = _outcome(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if code == INTERRUPTED:
        _leave()
    sys.exit(code)


def _last_resort(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """An interrupt that came while another one was dealt with says nothing either."""
    if issubclass(kind, KeyboardInterrupt):
        _leave()
    sys.__excepthook__(kind, error, at)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    if not issubclass(what.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(what)


def _leave() -> None:
    """End at once, without waiting for threads that are still at work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(INTERRUPTED)


def _open_streams() -> None:
    """Put something behind each standard stream that the shell closed, so that no file of ours takes its number."""
    closed = {number for number in (0, 1, 2) if not _is_open(number)}
    for number in sorted(closed):
        os.open(os.devnull, os.O_RDONLY if number < 2 else os.O_WRONLY)  # the lowest number that is free: this one
    if 1 in closed:
        sys.stdout = _writer(1)  # not writable: whoever writes hears that it is closed
    if 2 in closed:
        sys.stderr = _writer(2)


def _writer(number: int) -> IO[str]:
    return open(number, "w", encoding="utf-8", closefd=False)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _outcome(args: list[str]) -> int:
    try:
        import typer

        from pellucid.cli.app import CLI_ERROR, app
    except KeyboardInterrupt:
        return INTERRUPTED
    if args[:1] == ["help"]:
        args = [*args[1:], "--help"]
    elif args == ["version"]:
        args = ["--version"]
    try:
        command = typer.main.get_command(app)
        if "_PELLUCID_COMPLETE" in os.environ:
            command.main(args, prog_name="pellucid")
        # Not command.main(), which would turn a broken pipe into exit code 1.
        with command.make_context("pellucid", args) as context:
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as exit:
        return _flushed(exit.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except PellucidError as error:
        return _fail(error.message, error.exit_code)
    except CLI_ERROR as error:
        return _fail(_usage(error), 2)
    except MemoryError:
        return _fail("out of memory; a smaller model, --ctx or --kv q8_0 takes less", 6)
    except Exception as error:
        if isinstance(error, OSError) and (code := _unwritten(error)) is not None:
            return code
        if os.environ.get("PELLUCID_DEBUG", "0") not in ("", "0"):
            raise
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _fail(f"unexpected {what} (a fault of pellucid's; PELLUCID_DEBUG=1 shows the traceback)", 1)


def _usage(error: Exception) -> str:
    message = str(error.format_message())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "pellucid"
    return f"{message.rstrip('.')}; see {path} --help"


def _fail(message: str, code: int) -> int:
    _flushed(code)
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code


def _flushed(code: int) -> int:
    """The exit code, once what was printed is out; another one if it cannot be."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return _unwritten(error) or code
    return code


def _unwritten(error: OSError) -> int | None:
    """The exit code for an error of standard output, told on stderr where that helps; None: it is of something else."""
    if error.filename is not None or error.errno not in (*_REASONS, errno.EPIPE):
        return None
    _close_stdout()
    if error.errno == errno.EPIPE:
        return BROKEN_PIPE
    reason, code = _REASONS[error.errno]
    print(f"error: cannot write to standard output: {reason}", file=sys.stderr)
    return code


_REASONS: dict[int | None, tuple[str, int]] = {
    errno.ENOSPC: ("no space left on device", 6),
    errno.EDQUOT: ("the disk quota is used up", 6),
    errno.EFBIG: ("the file would be too large", 6),
    errno.EIO: ("input/output error", 2),
    errno.EBADF: ("it is closed", 2),
}


def _close_stdout() -> None:
    """Nobody reads any more: keep the interpreter's own last flush from complaining."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
