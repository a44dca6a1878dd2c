"""Which GGUF of a repository to take: the quantization a file's name states, and whether Pellucid reads its formats.

Law: a row names the formats that quantizers mix under that label, the one of most weights first; a label is readable
when every one of them is in `formats.FORMATS`, so this table needs no change when a format is added there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LABELS: dict[str, tuple[str, ...]] = {
    "Q4_K_M": ("q4_k", "q6_k"),
    "UD-Q4_K_XL": ("q4_k", "q5_k", "q6_k", "q8_0", "iq4_nl", "iq4_xs"),
    "Q4_K_S": ("q4_k", "q5_k", "q6_k"),
    "Q8_0": ("q8_0",),
    "Q4_0": ("q4_0", "q4_1", "q6_k"),
    "Q5_K_M": ("q5_k", "q6_k"),
    "UD-Q5_K_XL": ("q5_k", "q6_k", "q8_0"),
    "Q5_K_S": ("q5_k", "q6_k"),
    "Q6_K": ("q6_k",),
    "UD-Q6_K_XL": ("q6_k", "q8_0"),
    "Q4_1": ("q4_1", "q6_k"),
    "Q5_0": ("q5_0", "q6_k"),
    "Q4_K_L": ("q4_k", "q6_k", "q8_0"),
    "Q5_K_L": ("q5_k", "q6_k", "q8_0"),
    "Q6_K_L": ("q6_k", "q8_0"),
    "UD-Q8_K_XL": ("q8_0", "bf16", "f16"),
    "Q5_1": ("q5_1", "q6_k"),
    "MXFP4_MOE": ("mxfp4", "q8_0"),
    "MXFP4": ("mxfp4", "q8_0"),
    "IQ4_XS": ("iq4_xs", "q5_k", "q6_k"),
    "IQ4_NL": ("iq4_nl", "q5_k", "q6_k"),
    "Q3_K_L": ("q3_k", "q5_k", "q6_k"),
    "Q3_K_M": ("q3_k", "q4_k", "q5_k", "q6_k"),
    "Q3_K_XL": ("q3_k", "q4_k", "q5_k", "q6_k", "q8_0"),
    "Q3_K_S": ("q3_k", "q6_k"),
    "Q2_K": ("q2_k", "q3_k", "q4_k", "q6_k"),
    "Q2_K_L": ("q2_k", "q3_k", "q4_k", "q8_0"),
    "Q2_K_S": ("q2_k", "q3_k", "q4_k", "q6_k"),
    "BF16": ("bf16",),
    "F16": ("f16",),
    "F32": ("f32",),
    "TQ2_0": ("tq2_0", "q4_k", "q6_k"),
    "TQ1_0": ("tq1_0", "q4_k", "q6_k"),
}
"""Label → formats; in the order in which a file is preferred when nobody says which."""

FILE_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip
"""GGUF's general.file_type → label (llama.cpp's llama_ftype)."""

_TAIL = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|BF16|FP?16|FP?32))$", re.IGNORECASE
)
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")


def quant_of(file: str) -> str | None:
    """The quantization a file's name states, as in LABELS: x-q4_k_m-00001-of-00002.gguf → Q4_K_M."""
    match = _TAIL.search(_SPLIT.sub("", file.removesuffix(".gguf")))
    if match is None:
        return None
    label = match.group(1).upper()
    return {"FP16": "F16", "FP32": "F32"}.get(label, label)


def split_of(file: str) -> tuple[str, int, int] | None:
    """(name without the split's number, number from 1, count) of a file that is one of several."""
    stem = file.removesuffix(".gguf")
    match = _SPLIT.search(stem)
    return (stem[: match.start()], int(match.group(1)), int(match.group(2))) if match else None


def label_of(file: str, file_type: object, formats: Mapping[str, int]) -> str | None:
    """What to call the mix of an open model: `formats` are bytes by format, `file_type` is what its metadata claims.

    The file's name, or else the claim, counts if the mix holds the first format of that label; else it is the format of
    most bytes. The name comes first, for metadata know nothing of the L, XL and UD mixes. None for no weights.
    """
    for label in (quant_of(file), FILE_TYPES.get(file_type) if isinstance(file_type, int) else None):
        if label in LABELS and LABELS[label][0] in formats:
            return label
    return max(formats, key=formats.__getitem__).upper() if formats else None


def rank(quant: str | None) -> int:
    """Place of a label in the order of preference; what is not in the table comes last."""
    return list(LABELS).index(quant) if quant in LABELS else len(LABELS)


def readable(quant: str | None) -> bool:
    """Whether Pellucid has every format of a label; True where the name states none, since only the file can tell."""
    from pellucid.formats import FORMATS

    if quant is None:
        return True
    return quant in LABELS and all(f in FORMATS for f in LABELS[quant])
