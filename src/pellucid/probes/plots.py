"""Plots of a trace, as SVG, PNG or PDF by matplotlib (pip install 'pellucid[plots]').

Law: colours are Cividis, and PuOr where zero is the middle; axes have names and units.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.errors import RequestError
from pellucid.probes.trace import Trace

VIEWS = ("surprisal", "norms", "heads", "lens", "attention")


def plot(trace: Trace, view: str, path: str | Path, **options: Any) -> Path:
    """Draw one view: surprisal, norms, heads (metric=), lens (pos=), attention (layer=, head=).

    Raises RequestError: there is no such view, or matplotlib is not installed.
    """
    if view not in VIEWS:
        raise RequestError(f"view={view!r} is none; choose {', '.join(VIEWS)}", param="view")
    try:
        drawing: Any = import_module("matplotlib.figure")
    except ImportError:
        raise RequestError("plots need matplotlib: pip install 'pellucid[plots]'") from None
    figure: Any = drawing.Figure(figsize=(8, 5), layout="constrained")
    axes: Any = figure.subplots()
    labels = [repr(text)[1:-1] for text in trace.texts]

    def mark_tokens(first: int = 0) -> None:
        if len(labels) - first <= 60:
            axes.set_xticks(range(len(labels) - first), labels[first:], rotation=90)

    match view:
        case "surprisal":
            axes.bar(range(1, len(trace.ids)), -trace.scores.logprobs, color="#39486b")
            axes.set(ylabel="surprisal (nats)")
            mark_tokens()
        case "norms":
            if trace.norms is None:
                raise RequestError("this trace has no norms; inspect with level='summary'")
            axes.plot(trace.norms.attn.mean(axis=1), label="attention", color="#0072b2", marker="o")
            axes.plot(trace.norms.mlp.mean(axis=1), label="MLP", color="#d55e00", marker="s")
            axes.set(xlabel="layer", ylabel="mean norm of what is added")
            axes.legend()
        case "heads":
            metric = options.get("metric", "entropy")
            image = axes.imshow(trace.head_metrics().values[metric], cmap="cividis", aspect="auto")
            axes.set(xlabel="head", ylabel="layer", title=metric)
            figure.colorbar(image)
        case "lens":
            found = trace.logit_lens(pos=options.get("pos", -1), top_k=1)
            axes.plot(found.layers, found.ranks[:, 0], color="#0072b2", marker="o")
            axes.set(xlabel="layers", ylabel="rank of the token", yscale="log", title=labels[found.positions[0] + 1])
            axes.invert_yaxis()
        case _:
            layer, head = options.get("layer", 0), options.get("head", 0)
            image = axes.imshow(trace.attention(layer, head)[0], cmap="cividis", vmin=0, vmax=1)
            axes.set(xlabel="key", ylabel="query", title=f"layer {layer}, head {head}")
            mark_tokens()
            if len(labels) <= 60:
                axes.set_yticks(np.arange(len(labels)), labels)
            figure.colorbar(image)
    where = Path(path)
    try:
        figure.savefig(where)
    except (OSError, ValueError) as error:
        raise RequestError(f"{where} cannot be written: {error}") from None
    return where
