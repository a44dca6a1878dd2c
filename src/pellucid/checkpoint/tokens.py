"""Spellings of the tokens that end an answer.

Law: an end is a control token with one of these spellings, or an id that the file itself names as an end.
"""

from __future__ import annotations

from collections.abc import Mapping

END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "</s>",
)


def end_of_turn_ids(controls: Mapping[str, int]) -> list[int]:
    """Ids of the known end-of-turn spellings among the control tokens (spelling → id)."""
    return [controls[piece] for piece in END_OF_TURN if piece in controls]
