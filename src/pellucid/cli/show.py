"""`pellucid show`: a model's card, read from the model itself.

Law: every figure comes from the opened checkpoint; a model that is not here is described by its row of the registry.
Nothing is fetched.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.cli import layout, options

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid.checkpoint import Checkpoint
    from pellucid.models.registry import NamedModel
    from pellucid.models.spec import ModelSpec
    from pellucid.models.store import Entry
    from pellucid.models.tokens import TokenizerSource

PARTS = {
    "embed": "embedding",
    "pos_embed": "embedding",
    "unembed": "unembedding",
    "attn": "attention",
    "mlp": "feed-forward",
}
"""Piece of a canonical name → part of the model; what has none of them is a norm."""


def show(
    model: Annotated[
        str, typer.Argument(envvar="PELLUCID_MODEL", help="Name, org/repo[:QUANT], .gguf file or folder")
    ] = options.DEFAULT_MODEL,
    ctx: Annotated[int | None, typer.Option(help="Tokens to plan memory for; default: at most 4096", min=1)] = None,
    template: Annotated[
        bool, typer.Option("--template", help="Print the whole chat template and nothing else")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare token ids and template with the tokenizer.json (or GGUF) at hand; exit code 1: they differ, "
            "3: nothing to compare",
        ),
    ] = False,
    tokenizer: options.Tokenizer = None,
    as_json: options.Json = False,
) -> None:
    """Show a model's card: shapes, parameters, formats, tokenizer, template, memory."""
    from pellucid.checkpoint import open_checkpoint
    from pellucid.errors import ModelNotFoundError
    from pellucid.models import pull, sources, store

    source = sources.parse(model)
    entry = store.find(source)
    row = None if isinstance(source, sources.PathSource) else sources.row_of(source)
    if isinstance(source, sources.PathSource):
        path = pull.resolve(source.path)
    elif entry is not None:
        entry.check()
        path = entry.path
    elif row is not None and not template and not verify:
        _not_here(row, as_json)
        return
    else:
        raise ModelNotFoundError(f"{model} is not here; bring it with `pellucid pull {model}`")
    given = None if tokenizer is None else pull.resolve_tokenizer(tokenizer)
    if verify:
        _verify(path, given, as_json)
        return
    with open_checkpoint(path, given) as checkpoint:
        if template:
            print(checkpoint.tokenizer.chat_template or "")
            return
        about = card(checkpoint, ctx, entry, row)
    if as_json:
        print(json.dumps(about, ensure_ascii=False))
    else:
        _print(about, path)


def _verify(path: Path, given: Path | None, as_json: bool) -> None:
    from pellucid.cli import verify
    from pellucid.cli.inputs import apart

    result = apart(lambda: verify.certificate(path, given))
    print(json.dumps(verify.as_dict(result), ensure_ascii=False) if as_json else verify.report(result))
    raise typer.Exit(verify.exit_code(result))


def card(checkpoint: Checkpoint, ctx: int | None, entry: Entry | None, row: NamedModel | None) -> dict[str, Any]:
    """All that `show` says, as JSON values; sizes in bytes."""
    from pellucid.devices.ledger import part_of
    from pellucid.formats import KV_FORMATS
    from pellucid.models.quants import label_of

    spec, tokens = checkpoint.spec, checkpoint.tokenizer
    parts: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    values: Counter[str] = Counter()
    per_token = 0.0
    for weight in checkpoint.weights():
        if spec.tied or weight.name != "embed.W_E":  # which is looked up, unless it is the unembedding, too
            per_token += weight.data.nbytes * spec.active_share(weight.name)
        n = 1
        for side in weight.shape:
            n *= side
        parts[part_of(weight.name)] += n
        counts[weight.format.name] += 1
        sizes[weight.format.name] += weight.data.nbytes
        values[weight.format.name] += n
        checkpoint.release(weight)
    tokens_planned = min(ctx or min(spec.context, 4096), spec.context)
    kv = {name: kv_bytes(spec, name) for name in ("f16", "q8_0") if spec.d_head % KV_FORMATS[name].block == 0}
    licence = (entry.licence if entry else None) or checkpoint.metadata.get("general.license") or (row and row.licence)
    return {
        "name": entry.name if entry else spec.name,
        "title": row.title if row else spec.name,
        "family": spec.family,
        "source": str(entry.source) if entry else None,
        "revision": entry.revision if entry else None,
        "licence": str(licence) if licence else None,
        "path": str(checkpoint.path),
        "files": len(checkpoint.files),
        "parameters": {"total": spec.parameters(), **dict(parts)},
        "active_parameters": spec.active_parameters(),
        "weights": checkpoint.nbytes,
        "weights_per_token": round(per_token),
        "quant": label_of(checkpoint.path.name, checkpoint.metadata.get("general.file_type"), sizes),
        "bits_per_weight": round(8 * checkpoint.nbytes / max(1, sum(values.values())), 2),
        "formats": {f: {"tensors": counts[f], "parameters": values[f], "bytes": n} for f, n in sizes.most_common()},
        "shape": {
            "layers": spec.n_layers,
            "width": spec.d_model,
            "feed_forward": spec.d_ff,
            "heads": spec.n_heads,
            "kv_heads": spec.n_kv_heads,
            "head": spec.d_head,
            "vocabulary": spec.vocab,
            "context": spec.context,
            "experts": spec.experts.count if spec.experts else 0,
            "experts_per_token": spec.experts.top if spec.experts else 0,
            "shared_expert": spec.experts.d_shared if spec.experts else 0,
            "tied": spec.tied,
            "windows": sorted({layer.window for layer in spec.layers}),
            "windowed_layers": sum(layer.window > 0 for layer in spec.layers),
            "rope_bases": sorted({layer.rope.base for layer in spec.layers if layer.rope}),
            "rotated_layers": sum(layer.rope is not None for layer in spec.layers),
            "learned_positions": spec.learned_positions,
        },
        "tokenizer": {
            "kind": tokens.kind,
            "pre": tokens.pre or None,
            "bos": tokens.bos_id,
            "bos_text": _piece(tokens, tokens.bos_id),
            "eos": tokens.eos_id,
            "ends": list(tokens.eot_ids),
            "ends_text": [_piece(tokens, i) for i in tokens.eot_ids],
            "adds_bos": tokens.add_bos,
        },
        "template": tokens.chat_template,
        "memory": {
            "ctx": tokens_planned,
            "weights": checkpoint.nbytes,
            "weights_per_token": round(per_token),
            "kv_per_token": kv,
            "total": {name: checkpoint.nbytes + per * tokens_planned for name, per in kv.items()},
        },
    }


def _piece(tokens: TokenizerSource, id: int | None) -> str | None:
    return tokens.pieces[id] if id is not None and id < len(tokens.pieces) else None


def _named(id: int | None, piece: str | None) -> str:
    return f"{piece} ({id})" if piece else str(id)


def _positions(shape: dict[str, Any]) -> str:
    """How the model knows where a token stands."""
    if not shape["rope_bases"]:
        return "learned" if shape["learned_positions"] else "none"
    bases = "rotary, base " + " and ".join(f"{base:g}" for base in shape["rope_bases"])
    rotated, layers = shape["rotated_layers"], shape["layers"]
    return bases if rotated == layers else f"{bases}; {rotated} of {layers} layers rotate"


def _experts(shape: dict[str, Any]) -> str:
    told = f"{shape['experts']}, of which {shape['experts_per_token']} for a token"
    return told + (f"; one of width {shape['shared_expert']} for every token" if shape["shared_expert"] else "")


def kv_bytes(spec: ModelSpec, name: str) -> int:
    """Bytes of K and V for one token in all layers, in a KV format."""
    from pellucid.formats import KV_FORMATS

    return spec.n_layers * 2 * spec.n_kv_heads * KV_FORMATS[name].row_bytes(spec.d_head)


def _print(about: dict[str, Any], path: Path) -> None:
    from pellucid.models.store import size_text

    shape, tokens, memory = about["shape"], about["tokenizer"], about["memory"]
    title = "" if about["title"] == about["name"] else f"  {about['title']}"
    print(layout.styled(about["name"], layout.BOLD) + layout.visible(title))
    print()
    windowed = shape["windowed_layers"]
    attention = f"{shape['heads']} heads of {shape['head']}, {shape['kv_heads']} for K and V"
    if windowed:
        attention += f"; {windowed} of {shape['layers']} layers see the last {shape['windows'][-1]} tokens"
    parameters = dict(about["parameters"])
    total, active = parameters.pop("total"), about["active_parameters"]
    of_each = f"{layout.count_text(total)}" + (
        f", {layout.count_text(active)} of them for a token" if active < total else ""
    )
    shares = ", ".join(f"{part} {100 * n / total:.0f} %" for part, n in parameters.items() if n / total >= 0.005)
    ends = ", ".join(map(_named, tokens["ends"], tokens["ends_text"]))
    first = f"begins with {_named(tokens['bos'], tokens['bos_text'])}" if tokens["adds_bos"] else "no BOS"
    layout.facts(
        [
            ("family", about["family"]),
            ("parameters", f"{of_each}: {shares}" + (" (tied)" if shape["tied"] else "")),
            ("shape", f"{shape['layers']} layers, width {shape['width']}, feed-forward {shape['feed_forward']}"),
            *([("experts", _experts(shape))] if shape["experts"] else []),
            ("attention", attention),
            ("positions", _positions(shape)),
            ("context", f"{shape['context']} tokens"),
            (
                "tokenizer",
                f"{tokens['kind']}{' (' + tokens['pre'] + ')' if tokens['pre'] else ''}, {shape['vocabulary']} tokens; "
                f"{first}, ends at {ends or 'nothing'}",
            ),
            ("licence", about["licence"] or "not stated"),
            ("source", about["source"] or "a file of yours"),
            ("path", layout.home(path)),
        ]
    )
    print()
    rows = [
        (name, str(f["tensors"]), layout.count_text(f["parameters"]), size_text(f["bytes"]))
        for name, f in about["formats"].items()
    ]
    rows.append(("all", str(sum(f["tensors"] for f in about["formats"].values())), "", size_text(about["weights"])))
    layout.table(("FORMAT", "TENSORS", "PARAMS", "SIZE"), rows, right=(1, 2, 3))
    read = f"; {size_text(about['weights_per_token'])} of them are read for a token"
    print(f"{about['quant']}: {about['bits_per_weight']:.2f} bits a weight" + (read if active < total else ""))
    print()
    rows = [
        (name, f"{per:,} B", size_text(per * memory["ctx"]), size_text(memory["total"][name]))
        for name, per in memory["kv_per_token"].items()
    ]
    layout.table(("KV CACHE", "A TOKEN", f"{memory['ctx']} TOKENS", "WITH WEIGHTS"), rows, right=(1, 2, 3))
    print()
    if about["template"] is None:
        print("No chat template: prompts are continued as raw text.")
        return
    lines = layout.visible(about["template"]).splitlines()
    print(layout.styled("chat template", layout.DIM) + f" ({len(about['template'])} characters)")
    for line in lines[:6]:
        print("  " + (line if len(line) <= 110 else line[:109] + "…"))
    if len(lines) > 6 or any(len(line) > 110 for line in lines[:6]):
        print("  … all of it: pellucid show --template " + about["name"])


def _not_here(row: NamedModel, as_json: bool) -> None:
    from pellucid.models.store import size_text

    if as_json:
        about = {"name": row.name, "title": row.title, "family": row.family, "source": row.source, "here": False}
        about |= {"bytes": row.nbytes, "parameters": row.parameters, "context": row.context, "licence": row.licence}
        print(json.dumps(about | {"gated": row.gated, "alternative": row.alternative}))
        return
    print(layout.styled(row.name, layout.BOLD) + f"  {row.title}")
    print()
    gate = f" (gated; an open one: {row.alternative})" if row.gated else ""
    layout.facts(
        [
            ("family", row.family),
            ("parameters", layout.count_text(row.parameters)),
            ("size", f"about {size_text(row.nbytes)}"),
            ("context", f"{row.context} tokens"),
            ("licence", row.licence + gate),
            ("source", row.source),
        ]
    )
    print()
    print(f"Not here yet: pellucid pull {row.name}")
