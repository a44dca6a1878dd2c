"""Make logits_*.json: log-probabilities of Hugging Face in float32 on dequantised weights, for three real models.

    python tests/golden/make_logits.py [MODEL ...]       # what it needs: README.md here

A file holds, for five prompts, the prompt's token ids and at nine positions (the last among them) the 50 likeliest next
tokens with their log-probabilities, best first. Models: `hf.FILES` but for the largest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import hf
import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
TOP = 50
POSITIONS = 9
CHATML = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
)
TURNS = "<start_of_turn>user\n{user}<end_of_turn>\n<start_of_turn>model\n"
USER = "Name three rivers of Europe, and say in one sentence where each of them ends."
PROMPTS = {
    "prose": "The lighthouse keeper wound the great clock every evening at six, and in thirty years he had never once"
    " been late. On the night of the storm, however, he climbed the stairs more slowly than usual, for he had heard a"
    " sound that did not belong to the sea.",
    "code": "def merge(left: list[int], right: list[int]) -> list[int]:\n"
    '    """Merge two sorted lists into one sorted list."""\n'
    "    out = []\n    i = j = 0\n    while i < len(left) and j < len(right):\n"
    "        if left[i] <= right[j]:\n            out.append(left[i])\n            i += 1\n        else:\n",
    "digits": "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377; π ≈ 3.14159265358979; 2^32 = 4294967296.\n"
    "Grüße aus Köln, привет из Москвы, 東京からこんにちは 👋🏽 — naïve café №42: −17 °C, ½ + ¼ = ",
}


def prompts(name: str, tokenizer: transformers.PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """Name of each prompt and its token ids, BOS first where the model wants one."""
    chat = (TURNS if name.startswith("gemma") else CHATML).format(user=USER)
    long = (HERE / "text.txt").read_text(encoding="utf-8")
    texts = PROMPTS | {"chat": chat, "long": long}
    return {key: tokenizer(text)["input_ids"][:700] for key, text in texts.items()}


def main() -> None:
    """Write the goldens of the models named on the command line, or of all."""
    for name in sys.argv[1:] or [n for n in hf.FILES if n != "qwen2.5-coder-1.5b"]:
        model, tokenizer = hf.build(name), hf.tokenizer(name)
        out = {
            "file": hf.FILES[name],
            "method": "transformers, float32, eager attention, weights dequantised by gguf",
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "prompts": {},
        }
        for key, tokens in prompts(name, tokenizer).items():
            rows = sorted({int(r) for r in np.linspace(0, len(tokens) - 1, POSITIONS)})
            logprobs = hf.log_softmax(hf.logits(model, tokens, rows))
            top = np.argsort(-logprobs, axis=1, kind="stable")[:, :TOP]
            out["prompts"][key] = {
                "tokens": tokens,
                "positions": [
                    {"position": r, "ids": ids.tolist(), "logprobs": [float(f"{p:.7g}") for p in row[ids]]}
                    for r, ids, row in zip(rows, top, logprobs, strict=True)
                ],
            }
        path = HERE / f"logits_{name}.json"
        path.write_text(_compact(out), encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size} bytes")


def _compact(value: dict) -> str:
    """JSON with one line for each prompt's tokens and each position."""

    def dense(x: object) -> str:
        return json.dumps(x, separators=(",", ":"))

    prompts = value.pop("prompts")
    head = json.dumps(value, indent=1)[:-2]
    body = ",\n".join(
        f'  {dense(key)}: {{\n   "tokens": {dense(p["tokens"])},\n   "positions": [\n    '
        + ",\n    ".join(dense(row) for row in p["positions"])
        + "\n   ]\n  }"
        for key, p in prompts.items()
    )
    text = f'{head},\n "prompts": {{\n{body}\n }}\n}}\n'
    json.loads(text)
    return text


if __name__ == "__main__":
    main()
