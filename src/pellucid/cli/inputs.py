"""Text that comes in by an argument, a file or standard input, and how text of a model is shown.

Law: input is UTF-8 or an error that says where it is not. What a model says cannot steer the terminal.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pellucid.errors import RequestError


def read_argument(text: str | None, example: str) -> str:
    """The argument itself, or standard input for None or "-". Raises RequestError if there is none."""
    if text is None and sys.stdin.isatty():
        raise RequestError(f"there is no text; give some: {example}")
    found = read_stdin() if text is None or text == "-" else text
    if not found:
        raise RequestError(f"the text is empty; give some: {example}")
    return found


def read_file(file: str) -> str:
    """Text of a UTF-8 file, or of standard input for "-"."""
    if file == "-":
        return read_stdin()
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}") from None
    return _decoded(data, file)


def read_stdin() -> str:
    """Standard input, to its end."""
    return _decoded(sys.stdin.buffer.read(), "standard input")


def visible(text: str) -> str:
    """Text whose control characters, other than newline and tab, are replaced by their pictures (ESC by U+241B)."""
    return "".join(map(_picture, text))


def _picture(char: str) -> str:
    if char < " " and char not in "\n\t":
        return chr(0x2400 + ord(char))
    if char == "\x7f":
        return "\u2421"
    return "\ufffd" if "\x80" <= char < "\xa0" else char


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{where} is not UTF-8 text (byte {error.start})") from None
