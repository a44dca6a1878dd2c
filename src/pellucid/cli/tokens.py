"""`pellucid tokens`: how text becomes tokens.

Law: only the vocabulary is read, never the weights. Control tokens are told from text by a mark as well as by colour.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.cli import options
from pellucid.cli.inputs import read_argument, visible
from pellucid.errors import ConfigError

if TYPE_CHECKING:
    from pellucid.models.tokens import TokenizerSource
    from pellucid.text.tokenizer import TokenInfo, Tokenizer

MARK = "◆"
_COLOURS = ("cyan", "green", "yellow", "blue")


def tokens(
    text: Annotated[str | None, typer.Argument(help="The text; - or nothing reads standard input")] = None,
    model: options.Model = options.DEFAULT_MODEL,
    chat: Annotated[bool, typer.Option("--chat", help="As a user's message in the model's chat template")] = False,
    system: options.System = None,
    special: Annotated[bool, typer.Option("--special", help="Read spellings of control tokens as tokens")] = False,
    as_json: options.Json = False,
) -> None:
    """Show how text becomes tokens: ids, pieces, bytes, places and merges."""
    if system is not None and not chat:
        raise ConfigError("--system belongs to a chat; add --chat")
    if chat and special:
        raise ConfigError("in a chat, control tokens come from the template alone; leave --special out")
    given = read_argument(text, 'pellucid tokens "The rain, again."')

    from pellucid.checkpoint.open import open_checkpoint
    from pellucid.models.pull import resolve
    from pellucid.text.tokenizer import Tokenizer

    with open_checkpoint(resolve(model)) as checkpoint:
        source = checkpoint.tokenizer
        tokenizer = Tokenizer.from_source(source)
        if chat:
            shown, infos = _of_chat(tokenizer, source, given, system)
        else:
            shown, infos = given, tokenizer.explain(given, parse_special=special)
    if as_json:
        print(json.dumps(_as_dict(model, shown, infos), ensure_ascii=False))
    else:
        _print(shown, infos)


def _of_chat(
    tokenizer: Tokenizer, source: TokenizerSource, text: str, system: str | None
) -> tuple[str, list[TokenInfo]]:
    """A rendered conversation and its tokens; places count the bytes that came before."""
    from pellucid.text.chat import ChatTemplate, encode_rendered
    from pellucid.text.tokenizer import TokenInfo

    template = ChatTemplate.from_source(source, tokenizer)
    if template.source is None:
        raise ConfigError("this model has no chat template; leave --chat out")
    messages = [{"role": "system", "content": system}] if system is not None else []
    rendered = template.render([*messages, {"role": "user", "content": text}])
    infos: list[TokenInfo] = []
    before = b""
    for id in encode_rendered(tokenizer, rendered):
        after = before + tokenizer.token_bytes(id)
        start, end = (len(part.decode("utf-8", "ignore")) for part in (before, after))
        infos.append(
            TokenInfo(id, tokenizer.token_text(id), after[len(before) :], (start, end), tokenizer.is_special(id), ())
        )
        before = after
    return rendered.text, infos


def _as_dict(model: str, text: str, infos: list[TokenInfo]) -> dict[str, Any]:
    return {
        "model": model,
        "text": text,
        "count": len(infos),
        "tokens": [
            {
                "id": info.id,
                "piece": info.piece,
                "bytes": info.bytes.hex(),
                "start": info.offsets[0],
                "end": info.offsets[1],
                "special": info.special,
                "merges": [[merge.left, merge.right] for merge in info.merges],
            }
            for info in infos
        ],
    }


def _print(text: str, infos: list[TokenInfo]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, justify in (("#", "right"), ("id", "right"), ("", "left"), ("piece", "left"), ("bytes", "left")):
        table.add_column(name, justify=justify, no_wrap=name != "bytes")  # type: ignore[arg-type]
    table.add_column("at", no_wrap=True)
    merged = any(info.merges for info in infos)
    if merged:
        table.add_column("merges")
    line = Text()
    for place, info in enumerate(infos):
        style = "bold magenta" if info.special else _COLOURS[place % len(_COLOURS)]
        mark = MARK if info.special else ""
        added = info.special and info.offsets == (0, 0)
        cells = [
            str(place),
            str(info.id),
            Text(mark, style),
            Text(on_one_line(info.piece), style),
            info.bytes.hex(" "),
            "added" if added else f"{info.offsets[0]}–{info.offsets[1]}",
            Text("  ".join(f"{on_one_line(m.left)}·{on_one_line(m.right)}" for m in info.merges), "dim"),
        ]
        table.add_row(*cells[: 7 if merged else 6])
        piece = info.bytes.decode("utf-8", "backslashreplace")
        line.append(f"{mark}{on_one_line(piece)}" if info.special else on_one_line(piece), style)
        line.append("│", "dim")
    line.right_crop(1)
    console.print(line, soft_wrap=True)
    console.print()
    console.print(table)
    console.print()
    control = sum(info.special for info in infos)
    size = len(text.encode())
    summary = f"{_count(len(infos), 'token')}, {_count(len(text), 'character')}, {_count(size, 'byte')}"
    console.print(f"{summary}; {MARK} {_count(control, 'control token')}" if control else summary)


def on_one_line(text: str) -> str:
    """Text with every control character made visible, newlines and tabs too."""
    return visible(text).replace("\n", "␊").replace("\t", "␉")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
