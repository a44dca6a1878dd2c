"""Which GGUF of a repository to take: the quantization a file's name states, and whether Pellucid reads its formats.

Law: a row names the block formats that llama.cpp's quantizer mixes under that label; a label is readable when every one
of them is in `formats.FORMATS`, so this table needs no change when a format is added there.
"""

from __future__ import annotations

import re

LABELS: dict[str, tuple[str, ...]] = {
    "Q4_K_M": ("q4_k", "q6_k"),
    "Q4_K_S": ("q4_k", "q5_k", "q6_k"),
    "Q8_0": ("q8_0",),
    "Q4_0": ("q4_0", "q4_1", "q6_k"),
    "Q5_K_M": ("q5_k", "q6_k"),
    "Q5_K_S": ("q5_k", "q6_k"),
    "Q6_K": ("q6_k",),
    "Q4_1": ("q4_1", "q6_k"),
    "Q5_0": ("q5_0", "q6_k"),
    "Q4_K_L": ("q4_k", "q6_k", "q8_0"),
    "Q5_K_L": ("q5_k", "q6_k", "q8_0"),
    "Q6_K_L": ("q6_k", "q8_0"),
    "Q5_1": ("q5_1", "q6_k"),
    "IQ4_NL": ("iq4_nl",),
    "IQ4_XS": ("iq4_xs",),
    "Q3_K_L": ("q3_k", "q5_k"),
    "Q3_K_M": ("q3_k", "q4_k", "q5_k"),
    "Q3_K_S": ("q3_k",),
    "Q2_K": ("q2_k", "q3_k"),
    "BF16": ("bf16",),
    "F16": ("f16",),
    "F32": ("f32",),
}
"""Label → formats; in the order in which a file is preferred when nobody says which."""

_TAIL = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|MXFP4|BF16|FP?16|FP?32))$", re.IGNORECASE)
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


def rank(quant: str | None) -> int:
    """Place of a label in the order of preference; what is not in the table comes last."""
    return list(LABELS).index(quant) if quant in LABELS else len(LABELS)


def readable(quant: str | None) -> bool:
    """Whether Pellucid has every format of a label; True where the name states none, since only the file can tell."""
    from pellucid.formats import FORMATS

    if quant is None:
        return True
    return quant in LABELS and all(f in FORMATS for f in LABELS[quant])
