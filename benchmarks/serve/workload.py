"""What is asked: prompts of real text as token ids, no two of which begin alike unless they are meant to.

Law: a workload is a function of its seed, so every server and every round answers the same requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import body

from pellucid.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]


class Text:
    """Token ids of this project's own pages and source, from which prompts are cut."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "src").glob("*/[a-l]*.py"))]
        self._ids = tokenizer.encode("\n".join(file.read_text() for file in files))

    def prompts(self, count: int, tokens: int, seed: int) -> list[list[int]]:
        """Pieces of the text, none of which begins where another does."""
        room = len(self._ids) - tokens
        if count > room:
            raise ValueError(f"the text has room for {room} prompts of {tokens} tokens, not {count}")
        starts = random.Random(seed).sample(range(room), count)
        return [self._ids[start : start + tokens] for start in starts]


def mixed(text: Text, count: int, seed: int) -> list[dict[str, Any]]:
    """Prompts of 16 to 256 tokens, answers of 8 to 256, both evenly over their logarithm."""
    chance = random.Random(seed)

    def draw(low: int, high: int) -> int:
        return round(math.exp(chance.uniform(math.log(low), math.log(high))))

    return [body(prompt[: draw(16, 256)], draw(8, 256)) for prompt in text.prompts(count, 256, seed)]


@dataclass
class Agent:
    """An agent's calls: each repeats all that was said and adds what a tool returned, until the context is full."""

    system: list[int]
    results: list[list[int]]
    answer: int

    def calls(self, context: int) -> Iterator[dict[str, Any]]:
        """Prompts, one after the other. What the model answered is stood for by a piece of text of the same length."""
        said = list(self.system)
        for result in self.results:
            if len(said) + len(result) + 2 * self.answer > context:
                said = list(self.system)  # as agents do: forget the middle, keep the instructions
            said += result
            yield body(said, self.answer)
            said += result[: self.answer]


def agents(text: Text, count: int, calls: int, seed: int) -> list[Agent]:
    """`count` agents with the same instructions of 512 tokens; tool results of 64 tokens, answers of 16."""
    (system,) = text.prompts(1, 512, seed)
    pieces = text.prompts(count * calls, 64, seed + 1)
    return [Agent(system, pieces[i * calls : (i + 1) * calls], 16) for i in range(count)]
