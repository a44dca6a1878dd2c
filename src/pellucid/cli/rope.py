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
    from pellucid.models.pull import resolve
    from pellucid.probes.rotation import DISTANCES, rotation

    with open_checkpoint(resolve(model)) as checkpoint:
        spec = checkpoint.spec
    found = rotation(spec, layer, ctx or min(spec.context, 4096), distance or DISTANCES)
    if as_json:
        from pellucid.probes.wire import plain

        look.print_json(plain(found))
        return
    away, wavelengths = found.distances, found.wavelengths
    scaling = f", linear scaling by {found.linear:g}" if found.linear != 1 else ""
    scaling += ", scaled frequencies" if found.scaled else ""
    print(
        f"layer {layer}: base {found.base:g}, {found.dims} of {spec.d_head} values of a head rotate"
        + scaling
        + (f", window {found.window}" if found.window else "")
        + f"; made for {spec.context:,} tokens"
    )
    print()
    shown = np.unique(np.linspace(0, len(wavelengths) - 1, min(len(wavelengths), 12)).astype(int))
    rows: list[tuple[str, ...]] = []
    for pair in shown:
        turns = [f"{math.degrees(angle) % 360:.0f}°" for angle in found.angles[:, pair]]
        rows.append((str(pair), f"{wavelengths[pair]:,.1f}", *turns))
    header = ("pair", "tokens a turn", *(f"at {d:,}" for d in away))
    layout.table(header, rows, right=range(len(header)))
    print()
    print("how alike two equal vectors look from afar (mean cosine over all pairs):")
    for d, value in zip(away, found.mean_cosine, strict=True):
        print(f"  {d:>7,} {value:>+6.2f}  {draw.bar(float(value), 1.0, 40)}".rstrip())
    slow = int((wavelengths > spec.context).sum())
    print(f"{slow} of {len(wavelengths)} pairs turn less than once in the whole context")
