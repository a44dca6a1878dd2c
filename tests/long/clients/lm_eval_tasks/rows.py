"""The rows of the tasks beside this file: lm-eval imports it, and nothing is downloaded."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

FACTS: list[dict[str, Any]] = [
    {"question": "The capital of France is", "choices": ["Paris", "Rome", "a colour"], "answer": 0},
    {"question": "Water freezes at zero degrees", "choices": ["Celsius", "of a bicycle"], "answer": 0},
    {"question": "Ein Jahr hat zwölf", "choices": ["Monate", "Äpfel 🍎", "Stunden am Tag"], "answer": 0},
    {"question": "A dog has four", "choices": ["wheels", "legs"], "answer": 1},
    {"question": "one two three four", "choices": ["five", "blue", "banana trees"], "answer": 0},
    {"question": "At night one sees the moon and the", "choices": ["carpets", "stars"], "answer": 1},
]
PAGES = ["The sea is wide, and the ships upon it are small.", "Grüße aus Köln! 🌧️", "def add(a, b):\n    return a + b\n"]
BEGUN = ["One, two, three, four,", "The three primary colours are", "Once upon a time there was a"]


def facts(**_: object) -> dict[str, Dataset]:
    """Questions with choices."""
    return {"test": Dataset.from_list(FACTS)}


def pages(**_: object) -> dict[str, Dataset]:
    """Whole texts."""
    return {"test": Dataset.from_list([{"page": page} for page in PAGES])}


def begun(**_: object) -> dict[str, Dataset]:
    """Texts to go on with."""
    return {"test": Dataset.from_list([{"begun": begun} for begun in BEGUN])}
