"""Every command of the README and of docs/ runs as it is pasted.

Law: a `bash` block is one script; a `console` block is its `$` lines, each with the output it must have if some is
shown (`...` stands for anything); the `python` blocks of a page are one program. A block after `<!-- not run: WHY -->`
is left out.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(
    r"(?P<skip><!-- not run: [^>]+ -->\n)?^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)
TIMEOUT = 300


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    body: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        if found["skip"] is None:
            yield Block(page.name, text.count("\n", 0, found.start("body")), found["kind"], found["body"])


ALL = [block for page in PAGES for block in blocks(page)]


def environment() -> dict[str, str]:
    """Ours, with the `pellucid` of this interpreter first, no colours, and a fixed width."""
    bins = str(Path(sys.executable).parent)
    return os.environ | {"PATH": f"{bins}:{os.environ['PATH']}", "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def bash(script: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, f"{script}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Path:
    """A folder to run in, which has what the pages speak of: a text file."""
    folder = tmp_path_factory.mktemp("docs")
    text = "The rain had stopped by the time the train came in, and the platform was bright with water. "
    (folder / "notes.txt").write_text(text * 40)
    return folder


@pytest.mark.parametrize("block", [b for b in ALL if b.kind in ("bash", "sh")], ids=str)
def test_bash(block: Block, folder: Path) -> None:
    bash(block.body, folder)


@pytest.mark.parametrize("block", [b for b in ALL if b.kind == "console"], ids=str)
def test_console(block: Block, folder: Path) -> None:
    checker = doctest.OutputChecker()
    for part in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]:
        command, _, wanted = part.partition("\n")
        while command.endswith("\\"):
            more, _, wanted = wanted.partition("\n")
            command += "\n" + more
        output = bash(command, folder)
        if wanted.strip():
            same = checker.check_output(
                wanted.strip() + "\n", output.strip() + "\n", doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            )
            assert same, f"$ {command}\n{output}\n-- is not --\n{wanted}"


@pytest.mark.parametrize("page", sorted({b.page for b in ALL if b.kind == "python"}))
def test_python(page: str, folder: Path) -> None:
    program = "\n".join(block.body for block in ALL if block.page == page and block.kind == "python")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr


def test_blocks_are_of_known_kinds() -> None:
    unknown = [f"{b} {b.kind}" for b in ALL if b.kind not in ("bash", "sh", "console", "python", "text", "json")]
    assert not unknown
