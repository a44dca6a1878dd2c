"""`pellucid tokens`: how text becomes tokens.

Law: only the vocabulary is read, never the weights. Control tokens are told from text by a mark as well as by colour.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.cli import layout, options
from pellucid.cli.inputs import apart, read_argument, visible
from pellucid.errors import ConfigError

if TYPE_CHECKING:
    from pellucid.models.tokens import TokenizerSource
    from pellucid.text.tokenizer import TokenInfo, Tokenizer

MARK = "◆"
_CONTROL = "1;35"
_COLOURS = ("36", "32", "33", "34")


def tokens(
    text: Annotated[str | None, typer.Argument(help="The text; - or nothing reads standard input")] = None,
    model: options.Model = options.DEFAULT_MODEL,
    tokenizer: options.Tokenizer = None,
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
    from pellucid.models.pull import resolve, resolve_tokenizer
    from pellucid.text.tokenizer import Tokenizer

    with open_checkpoint(resolve(model), None if tokenizer is None else resolve_tokenizer(tokenizer)) as checkpoint:
        source = checkpoint.tokenizer
        vocabulary = Tokenizer.from_source(source)
        if chat:
            shown, infos = apart(lambda: _of_chat(vocabulary, source, given, system))
        else:
            shown, infos = given, apart(lambda: vocabulary.explain(given, parse_special=special))
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
    decoder = getincrementaldecoder("utf-8")("ignore")
    end = 0
    for id in encode_rendered(tokenizer, rendered):
        data = tokenizer.token_bytes(id)
        start, end = end, end + len(decoder.decode(data))
        infos.append(TokenInfo(id, tokenizer.token_text(id), data, (start, end), tokenizer.is_special(id), ()))
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
    pieces: list[str] = []
    rows: list[tuple[str, ...]] = []
    styles: list[str] = []
    for place, info in enumerate(infos):
        mark = MARK if info.special else ""
        styles.append(_CONTROL if info.special else _COLOURS[place % len(_COLOURS)])
        pieces.append(layout.styled(mark + on_one_line(info.bytes.decode("utf-8", "backslashreplace")), styles[-1]))
        added = info.special and info.offsets == (0, 0)
        rows.append(
            (
                str(place),
                str(info.id),
                mark,
                on_one_line(info.piece),
                info.bytes.hex(" "),
                "added" if added else f"{info.offsets[0]}–{info.offsets[1]}",
                "  ".join(f"{on_one_line(m.left)}·{on_one_line(m.right)}" for m in info.merges),
            )
        )
    print(layout.styled("│", layout.DIM).join(pieces))
    print()
    _print_rows(rows, styles)
    print()
    control = sum(info.special for info in infos)
    size = len(text.encode())
    summary = f"{_count(len(infos), 'token')}, {_count(len(text), 'character')}, {_count(size, 'byte')}"
    print(f"{summary}; {MARK} {_count(control, 'control token')}" if control else summary)


def _print_rows(rows: list[tuple[str, ...]], styles: list[str]) -> None:
    """Columns as wide as their widest cell. Written here, for a text may have a hundred thousand tokens."""
    from rich.cells import cell_len

    header = ("#", "id", "", "piece", "bytes", "at", "merges" if any(row[6] for row in rows) else "")
    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    mark, piece = 2, 3

    def line(row: tuple[str, ...], style: str) -> str:
        cells: list[str] = []
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            pad = " " * (width - cell_len(cell))
            shown = layout.styled(cell, style) if place in (mark, piece) and style else cell
            cells.append(pad + shown if place < mark else shown + pad)
        return "  ".join(cells).rstrip()

    print(layout.styled(line(header, ""), layout.BOLD))
    for row, style in zip(rows, styles, strict=True):
        print(line(row, style))


def on_one_line(text: str) -> str:
    """Text with every control character made visible, newlines and tabs too."""
    return visible(text).replace("\n", "␊").replace("\t", "␉")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
