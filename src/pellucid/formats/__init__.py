"""The table of weight formats and of KV row formats."""

from pellucid.formats import blocks, floats, numbers, supers, tables, ternary
from pellucid.formats.base import Format, Weight
from pellucid.formats.rows import KV_FORMATS, RowFormat

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        floats.F32,
        floats.F16,
        floats.BF16,
        numbers.F64,
        numbers.I8,
        numbers.I16,
        numbers.I32,
        numbers.I64,
        blocks.Q4_0,
        blocks.Q4_1,
        blocks.Q5_0,
        blocks.Q5_1,
        blocks.Q8_0,
        supers.Q2_K,
        supers.Q3_K,
        supers.Q4_K,
        supers.Q5_K,
        supers.Q6_K,
        supers.Q8_K,
        tables.IQ4_NL,
        tables.IQ4_XS,
        tables.MXFP4,
        ternary.TQ1_0,
        ternary.TQ2_0,
    )
}
"""Every weight format by name."""

__all__ = ["FORMATS", "KV_FORMATS", "Format", "RowFormat", "Weight"]
