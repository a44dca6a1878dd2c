"""Make the terminal pictures of this folder anew: the command in a terminal of 100 columns, drawn as SVG by Rich.

    python docs/pictures/make.py [--qwen FILE] [NAME ...]

FILE: Qwen2.5-Coder-0.5B-Instruct, Q4_K_M; without it the pictures of that model stay as they are.
Law: a picture is what the command printed, with no font or style from elsewhere.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
COLUMNS = 100
CAPITAL = "The capital of France is"
STORE = "When Mary and John went to the store, John gave a drink to"
CITIES = "Anna lives in Rome. Bob lives in Berlin. The weather is nice. The city where Bob lives is"
COUNTING = "one two three four one two three four one two three"
PICTURES = {
    "why": ("why", CAPITAL, "--max-tokens", "1", "--seed", "7"),
    "lens": ("lens", CAPITAL, "--top", "3"),
    "attn": ("attn", STORE, "--layer", "1", "--head", "2"),
    "heads": ("heads", STORE, "--sort", "first", "--top", "0"),
    "heads-qwen": ("heads", COUNTING, "--sort", "induction", "--top", "6"),
    "influence": ("influence", CITIES, "--by", "word"),
}
OF_QWEN = {"heads-qwen"}


def shown(args: tuple[str, ...]) -> str:
    """What a command prints on a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    env.pop("NO_COLOR", None)
    code = "from pellucid.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=theirs, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=env
    ) as running:
        os.close(theirs)
        data = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # Linux's end of a pty
                break
            if not part:
                break
            data += part
    if running.returncode:
        raise SystemExit(f"{' '.join(args)} failed")
    return data.decode().replace("\r\n", "\n").rstrip() + "\n"


def main() -> None:
    """Draw those named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--qwen", metavar="FILE")
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*PICTURES, []])
    asked = parser.parse_args()
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    for name in asked.names or PICTURES:
        args = PICTURES[name]
        if name in OF_QWEN:
            if asked.qwen is None:
                continue
            args = (*args, "--model", asked.qwen)
        console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        console.print(Text.from_ansi(shown(args)), end="")
        svg = console.export_svg(title=f"pellucid {args[0]}", code_format=form, unique_id=name)
        (HERE / f"{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
        print(name)


if __name__ == "__main__":
    main()
