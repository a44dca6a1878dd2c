"""Pellucid: the see-through LLM inference engine.

Law: importing this module is cheap; each public name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["LLM", "Grammar", "RequestOutput", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.results import RequestOutput
    from pellucid.sampling.grammar import Grammar
    from pellucid.sampling.params import SamplingParams

_HOMES = {
    "Grammar": "pellucid.sampling.grammar",
    "LLM": "pellucid.llm",
    "RequestOutput": "pellucid.results",
    "SamplingParams": "pellucid.sampling.params",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'pellucid' has no attribute {name!r}")
