"""Text that comes in by an argument, a file or standard input, and how text of a model is shown.

Law: input is UTF-8 or an error that says where it is not. What a model says cannot steer the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from pellucid.errors import RequestError

T = TypeVar("T")
MOST_BYTES = 16 << 20
"""Bytes of text that a command reads from a file or from standard input."""
MOST_LINE = 1 << 20
"""Bytes of one line of a conversation that comes over a pipe."""


def read_argument(text: str | None, example: str, *, chomp: bool = False) -> str:
    """The argument itself, or standard input for None or "-". Raises RequestError if there is none.

    chomp: leave out the newline that ends standard input, which `echo` puts there.
    """
    if text is None and on_terminal():
        raise RequestError(f"there is no text; give some: {example}")
    if text is None or text == "-":
        found = read_stdin()
        found = found.removesuffix("\n").removesuffix("\r") if chomp and found.endswith("\n") else found
    else:
        found = text
    if not found:
        raise RequestError(f"the text is empty; give some: {example}")
    return found


def read_file(file: str) -> str:
    """Text of a UTF-8 file, or of standard input for "-"."""
    if file == "-":
        return read_stdin()
    try:
        with Path(file).open("rb") as opened:
            data = _bounded(opened, file)
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}") from None
    return _decoded(data, file)


def read_stdin() -> str:
    """Standard input, to its end."""
    return _decoded(_bounded(stdin(), "standard input"), "standard input")


def stdin() -> BinaryIO:
    """The bytes of standard input. Raises RequestError if the shell closed it."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - Python's own answer to `<&-`
        raise RequestError("standard input is closed; give the text as an argument")
    return sys.stdin.buffer


def on_terminal() -> bool:
    """Whether standard input is a terminal. Raises RequestError if the shell closed it."""
    stdin()
    return sys.stdin.isatty()


def apart(work: Callable[[], T]) -> T:
    """Do work that may take long inside native code on another thread, so that Ctrl-C is heard at once.

    The thread is left behind then; the command ends without waiting for it.
    """
    from queue import Empty, SimpleQueue
    from threading import Thread

    done: SimpleQueue[tuple[T, None] | tuple[None, BaseException]] = SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:
            done.put((None, error))

    Thread(target=run, name="pellucid-apart", daemon=True).start()
    while True:
        try:
            value, error = done.get(timeout=0.1)
        except Empty:
            continue
        if error is not None:
            raise error
        return value  # type: ignore[return-value]


def visible(text: str) -> str:
    """Text whose control characters, other than newline and tab, are replaced by their pictures (ESC by U+241B)."""
    return "".join(map(_picture, text))


def _picture(char: str) -> str:
    if char < " " and char not in "\n\t":
        return chr(0x2400 + ord(char))
    if char == "\x7f":
        return "\u2421"
    return "\ufffd" if "\x80" <= char < "\xa0" else char


def _bounded(file: BinaryIO, where: str) -> bytes:
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise RequestError(f"{where} holds more than {MOST_BYTES >> 20} MiB of text, the most that is read; give less")
    return data


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{where} is not UTF-8 text (byte {error.start})") from None
