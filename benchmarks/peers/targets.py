"""What is aimed at: the ratio to the best peer whose numbers are right, and the share of the roofline.

Law: keyed by the file's name and by the case as it prints itself; a case without an entry has no target. The share of a
prompt of 4096 tokens is of the roofline that counts attention too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """At least so much, where it is given."""

    ratio: float | None = None
    share: float | None = None
    attention: bool = False
    """The share is of int8 products plus attention."""


_CASES = ("prefill 512", "decode 128", "decode 128, 16 streams", "decode 128, depth 4096")
_ALL = {"prefill 4096": Target(share=0.60, attention=True)}
_TABLE = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": ((1.4, 0.50), (1.6, 0.80), (2.5, None), (1.7, 0.70)),
    "gemma-3-270m.Q4_K_M.gguf": ((2.0, 0.45), (1.25, 0.88), (2.5, None), (1.1, None)),
    "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf": ((1.6, 0.62), (1.12, 0.90), (2.0, None), (1.2, None)),
    "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf": ((1.4, 0.65), (1.0, 0.90), (1.8, None), (1.4, None)),
}
_OF_AVX2 = Target(ratio=1.0)


def target_of(model: str, case: str, isa: str | None = None) -> Target:
    """The target of a case; under AVX2, with peers that are built for it, it is to be no slower than the best."""
    if isa == "avx2":
        return _OF_AVX2
    if model in _TABLE and case in _CASES:
        return Target(*_TABLE[model][_CASES.index(case)])
    return _ALL.get(case, Target()) if model in _TABLE else Target()
