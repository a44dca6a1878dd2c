"""The table of weight formats and of KV row formats."""

from pellucid.formats import blocks, floats
from pellucid.formats.base import Format, Weight
from pellucid.formats.rows import KV_FORMATS, RowFormat

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        floats.F32,
        floats.F16,
        floats.BF16,
        blocks.Q4_0,
        blocks.Q4_1,
        blocks.Q5_0,
        blocks.Q8_0,
        blocks.Q4_K,
        blocks.Q6_K,
    )
}
"""Every weight format by name."""

__all__ = ["FORMATS", "KV_FORMATS", "Format", "RowFormat", "Weight"]
