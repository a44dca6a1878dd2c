"""`pellucid rope`: how a model tells positions apart: the angle of each frequency, by distance."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import typer

from pellucid.cli import draw, layout, look, options


def rope(
    model: options.Model = options.DEFAULT_MODEL,
    layer: look.Layer = 0,
    distance: Annotated[
        list[int] | None, typer.Option(help="Distances in tokens to show; may be repeated", min=0)
    ] = None,
    ctx: options.Ctx = None,
    as_json: options.Json = False,
) -> None:
    """Show the rotary positions of a layer: the wavelength of each pair of values, and its angle at some distances.

    Reads the model's header only.
    """
    from pellucid.checkpoint.open import open_checkpoint
    from pellucid.errors import RequestError
    from pellucid.graph.reference import rope_angles
    from pellucid.models.pull import resolve

    with open_checkpoint(resolve(model)) as checkpoint:
        spec = checkpoint.spec
    if layer >= spec.n_layers:
        raise RequestError(f"layer {layer} is not there; this model has 0 to {spec.n_layers - 1}")
    found = spec.layers[layer].rope
    if found is None:
        raise RequestError(f"layer {layer} of this model does not rotate its queries and keys")
    context = ctx or min(spec.context, 4096)
    settled = found.at(context)
    away = np.array(distance or [1, 4, 16, 64, 256, 1024, 4096])
    cos, sin = rope_angles(settled, np.array([0, 1]))
    step = np.arctan2(sin[1], cos[1]).astype(np.float64)
    # A frequency above half a turn a token shows as its remainder; the formula has it whole.
    exact = settled.base ** (-2.0 * np.arange(settled.dims // 2) / settled.dims)
    exact = exact / np.asarray(settled.factors or 1.0) / settled.linear
    step = np.where(exact > math.pi, exact, np.where(np.abs(step) > 1e-6, step, exact))
    wavelengths = 2 * math.pi / step
    # How alike a vector of ones and itself are, seen from so far: the mean of the cosines.
    alike = np.cos(away[:, None] * step[None]).mean(axis=1)
    if as_json:
        look.print_json(
            {
                "layer": layer,
                "base": settled.base,
                "dims": settled.dims,
                "window": spec.layers[layer].window,
                "trained_context": spec.context,
                "frequencies": step,
                "wavelengths": wavelengths,
                "distances": away,
                "angles": away[:, None] * step[None],
                "mean_cosine": alike,
            }
        )
        return
    scaling = f", linear scaling by {settled.linear:g}" if settled.linear != 1 else ""
    scaling += ", scaled frequencies" if settled.factors else ""
    window = spec.layers[layer].window
    print(
        f"layer {layer}: base {settled.base:g}, {settled.dims} of {spec.d_head} values of a head rotate"
        + scaling
        + (f", window {window}" if window else "")
        + f"; made for {spec.context:,} tokens"
    )
    print()
    shown = np.unique(np.linspace(0, len(step) - 1, min(len(step), 12)).astype(int))
    rows: list[tuple[str, ...]] = []
    for pair in shown:
        turns = [f"{math.degrees(d * step[pair]) % 360:.0f}°" for d in away]
        rows.append((str(pair), f"{wavelengths[pair]:,.1f}", *turns))
    header = ("pair", "tokens a turn", *(f"at {d:,}" for d in away))
    layout.table(header, rows, right=range(len(header)))
    print()
    print("how alike two equal vectors look from afar (mean cosine over all pairs):")
    for d, value in zip(away, alike, strict=True):
        print(f"  {d:>7,} {value:>+6.2f}  {draw.bar(float(value), 1.0, 40)}".rstrip())
    slow = int((wavelengths > spec.context).sum())
    print(f"{slow} of {len(step)} pairs turn less than once in the whole context")
