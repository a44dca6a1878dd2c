"""A report: the page and the answers to what it would ask, in one file that needs no server and no network.

Law: an answer is the one that a server gives (probes.views), kept under the path by which the page asks for it. All of
them are compressed and in base64, so no text of a prompt can end an element; the file's policy lets it load nothing. It
is never larger than its budget, and it says what was left out.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from pellucid import __version__
from pellucid.errors import RequestError
from pellucid.kv.map import Holding, KVMap, View, map_of
from pellucid.probes import views
from pellucid.probes.embedding import neighbours
from pellucid.probes.packed import heads_packed
from pellucid.probes.receipt import params_as_dict
from pellucid.probes.replay import budget_bytes
from pellucid.probes.rotation import rotation
from pellucid.probes.shapes import shapes
from pellucid.probes.trace import Trace
from pellucid.probes.wire import plain

if TYPE_CHECKING:
    from pellucid.llm import LLM

DEFAULT_BUDGET = "8MB"
ID = "report"
"""Of the trace, in paths."""
MOST_OF_PROMPT = 64
"""Tokens of the prompt that are looked into one by one, beside all of the answer: each takes a third of a second on a
small model."""
AT_ONCE = 16
"""Tokens whose layers are read together."""
DIGITS = 7
"""Of a number: all that a float32 has."""
SHRINKS = (0.25, 0.6)
"""The least and the usual size of a head's weights when compressed, beside what they take raw."""


@dataclass(frozen=True)
class Report:
    """The file, and what it does not hold."""

    html: str
    left_out: list[str]
    """A sentence each."""

    @property
    def nbytes(self) -> int:
        """Of the file."""
        return len(self.html.encode())


class CacheWatch:
    """Keeps the map of the KV cache as it stood at the last step of what runs between `with` and its end."""

    def __init__(self, llm: LLM) -> None:
        self._engine = llm.engine
        self._end: Callable[[], None] = lambda: None
        self._seen: tuple[View, list[Holding]] | None = None

    def __enter__(self) -> Self:
        self._end = self._engine.hub.subscribe("schedule", self._look)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _look(self, point: str, frame: dict[str, Any]) -> None:
        self._seen = self._engine.pool.view(), self._engine.scheduler.holdings()

    @property
    def map(self) -> KVMap | None:
        """None: nothing ran."""
        return None if self._seen is None else map_of(*self._seen)


def save(llm: LLM, trace: Trace, path: str | Path, **options: Any) -> Report:
    """Write a report to a file, which must not be there; options as of `report`. Raises RequestError."""
    made = report(llm, trace, **options)
    try:
        with Path(path).open("x", encoding="utf-8", newline="\n") as file:
            file.write(made.html)
    except FileExistsError:
        raise RequestError(f"{path} is there already; choose another place") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}") from None
    return made


def report(llm: LLM, trace: Trace, *, budget: int | str = DEFAULT_BUDGET, cache: KVMap | None = None) -> Report:
    """Make the report of a trace.

    Args:
        budget: bytes of the file, at most. The answer's tokens go before the prompt's, and heads that look at the text
            before those that rest on the first token.
        cache: the map of the KV cache while it was answered; None: as it is now.

    Raises RequestError: the trace has no model any more, or not even what every view needs fits.
    """
    most, n = budget_bytes(budget), len(trace.ids)
    if cache is None:
        cache = map_of(llm.engine.pool.view(), [])
    blocks = {"answers": _block(_common(llm, trace, cache))}
    facts: dict[str, Any] = {
        "version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "params": plain(params_as_dict(trace.params)),
        "arrivals": _arrivals(trace),
        "places": list(range(n)),
        "heads": [[layer.layer, head] for layer in trace.source().anatomy.layers for head in range(layer.heads)],
        "first": n,
        "left_out": [""] * 3,
    }
    room = most - len(_document(facts, blocks).encode()) - 1024
    if room < 0:
        raise RequestError(
            f"a report of {n} tokens takes at least {(most - room) / 1e6:.1f} MB, more than the {most / 1e6:g} MB that "
            "it may; raise its budget"
        )
    heads_take = int(len(facts["heads"]) * _size(0, n) * SHRINKS[1])
    found = _places(llm, trace, max(room // 2, room - heads_take))
    blocks |= {f"token-{pos}": block for pos, block in found.items()}
    first, heads = _heads(trace, room - sum(map(_cost, found.values())))
    blocks |= {f"head-{layer}-{head}": block for (layer, head), block in heads.items()}
    left_out = _left_out(n, len(found), first, len(heads), len(facts["heads"]))
    facts |= {"places": sorted(found), "heads": sorted(map(list, heads)), "first": first, "left_out": left_out}
    return Report(_document(facts, blocks), left_out)


def _common(llm: LLM, trace: Trace, cache: KVMap) -> dict[str, Any]:
    """Path → answer, of what does not belong to one token or head."""
    model = shapes(llm, _name(llm.name))
    layers = range(model["n_layers"] if model["rotates"] else 0)
    rotations = {f"/inspect/model/rope?layer={i}": rotation(llm.spec, i, llm.engine.context) for i in layers}
    tokens = views.tokens(trace)
    del tokens["events"]  # no view shows them
    tokens["model"] = model["name"]
    return {
        "/inspect/model": model,
        "/inspect/kv": cache,
        **rotations,
        f"/inspect/requests/{ID}/tokens": tokens,
        f"/inspect/requests/{ID}/attn/heads": views.heads(trace),
    }


def _name(model: str) -> str:
    """A model's name; of a file or folder the last part: a report does not tell where its writer keeps things."""
    return Path(model).absolute().name if Path(model).exists() else model


def _places(llm: LLM, trace: Trace, room: int) -> dict[int, str]:
    """The block of each token that is looked into, as far as there is room: the answer's, then the prompt's last."""
    prompt = range(trace.prompt_len)
    order = [*range(trace.prompt_len, len(trace.ids)), *reversed(prompt[-MOST_OF_PROMPT:])]
    found: dict[int, str] = {}
    for at in range(0, len(order), AT_ONCE):
        for pos, answers in _looks(llm, trace, order[at : at + AT_ONCE]):
            block = _block({f"/inspect/requests/{ID}/{what}": answer for what, answer in answers.items()})
            room -= _cost(block)
            if room < 0:
                return found
            found[pos] = block
    return found


def _looks(llm: LLM, trace: Trace, places: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(place, what is asked of it → answer) of some tokens. What no view of the page shows is left out of answers."""
    near = neighbours(llm, [trace.ids[pos] for pos in places], 8)
    foreseen = [pos for pos in places if pos]
    layers = trace.logit_lens(pos=foreseen, top_k=5) if foreseen else None
    for i, pos in enumerate(places):
        answers = {f"embed?pos={pos}": views.embed(llm, trace, pos, near, i)}
        if layers is not None and pos:
            why = views.logits(llm, trace, pos, 24)
            for stage in why["funnel"]["stages"]:
                stage["top"] = []
            answers |= {
                f"logits?pos={pos}&top=24": why,
                f"lens?pos={pos}&top=5": views.lens(llm, trace, layers.at(pos - 1)),
                f"neurons?pos={pos}&top=12": _or_error(lambda pos=pos: trace.top_neurons(pos, 12)),
                f"attribution?pos={pos}": {**plain(trace.attribution(pos)), "heads": None},
            }
        yield pos, answers


def _or_error(look: Callable[[], Any]) -> Any:
    """What a look gives, or the error as a server tells it."""
    try:
        return look()
    except RequestError as error:
        return {"error": {"message": str(error)}}


def _heads(trace: Trace, room: int) -> tuple[int, dict[tuple[int, int], str]]:
    """(first query, block of each head) as far as there is room.

    The queries are all of them if a head of each layer fits then; if not, those from which the answer was drawn.
    """
    n, layers = len(trace.ids), trace.source().anatomy.layers
    values = trace.head_metrics().values
    rest = values["first"] + values["sink"]
    order = [(a.layer, head) for a in layers for head in range(a.heads)]
    order.sort(key=lambda place: (round(float(rest[place]), 6), place))
    first = 0
    if len(layers) * _size(0, n) * SHRINKS[1] > room:
        first = max(0, min(trace.prompt_len, n) - 1)
    wanted = order[: max(0, int(room / (_size(first, n) * SHRINKS[0])))]
    made: dict[tuple[int, int], str] = {}
    for layer in sorted({layer for layer, _ in wanted}):
        for head, data in heads_packed(trace, layer, [h for i, h in wanted if i == layer], first).items():
            made[layer, head] = _squeezed(data)
    kept: dict[tuple[int, int], str] = {}
    for place in wanted:
        room -= _cost(made[place])
        if room < 0:
            break
        kept[place] = made[place]
    return first, kept


def _size(first: int, n: int) -> float:
    """Bytes in base64 of the raw weights of a head, of the queries from `first` on."""
    return 2 * (n * (n + 1) - first * (first + 1)) // 2 * 4 / 3


def _left_out(n: int, places: int, first: int, heads: int, all_heads: int) -> list[str]:
    """What a report does not hold, for its reader."""
    out: list[str] = []
    if places < n:
        out.append(
            f"Sampling, layers and vectors are in it for {places:,} of the {n:,} tokens: the answer's first, "
            "then the last of the prompt."
        )
    if heads < all_heads:
        out.append(
            f"Attention is in it for {heads:,} of the {all_heads:,} heads: those that rest least on the first token."
        )
    if first and heads:
        out.append(f"Of each of these heads it has the queries from token {first:,} on.")
    return out


def _arrivals(trace: Trace) -> list[float]:
    """Seconds after the request came at which each token of the answer was drawn."""
    steps = [event for event in trace.events if event["point"] in ("schedule", "finish")]
    return [
        round(after["at"], 6)
        for step, after in pairwise(steps)
        if step["point"] == "schedule" and step["position"] + step["rows"] >= trace.prompt_len
    ]


# -- the file --------------------------------------------------------------------------------------------------------


def _document(facts: Mapping[str, Any], blocks: Mapping[str, str]) -> str:
    """The page as one file: the very bundle that a server serves, and blocks of data that it reads."""
    script, style, icon = (_static(name) for name in ("page.js", "page.css", "favicon.svg"))
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )
    told = json.dumps(facts, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            "<title>Pellucid report</title>",
            f'<link rel="icon" href="data:image/svg+xml;base64,{base64.b64encode(icon.encode()).decode()}">',
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            '<div id="app"></div>',
            "<noscript>This report needs JavaScript; it runs none but its own, and loads nothing.</noscript>",
            f'<script type="application/json" id="report">{told}</script>',
            *(_element(name, block) for name, block in blocks.items()),
            f'<script type="module">{script}</script>',
            "</body>",
            "</html>",
            "",
        ]
    )


def _element(name: str, block: str) -> str:
    return f'<script type="application/gzip" id="{name}">{block}</script>'


def _cost(block: str) -> int:
    """Bytes that a block takes of the file, at most."""
    return len(block) + 80


def _block(answers: Mapping[str, Any]) -> str:
    """Path → answer as a block."""
    text = json.dumps(_short(plain(answers)), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _squeezed(text.encode())


def _squeezed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _short(value: Any) -> Any:
    """Numbers to the digits that they have."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in cast("dict[str, Any]", value).items()}
    return [_short(v) for v in cast("list[Any]", value)] if isinstance(value, list) else value


def _static(name: str) -> str:
    """A file of the page."""
    return files("pellucid").joinpath("server", "static", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
