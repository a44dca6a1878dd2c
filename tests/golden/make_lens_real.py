"""Make lens_*.npz: what Hugging Face's eager attention in float32 shows of two real models, weights dequantised.

    python tests/golden/make_lens_real.py [MODEL ...]       # what it needs: README.md here

Of the prompt `prose` of make_logits.py: tokens; attn_layers and attn, the weights (layers, heads, rows, tokens) of the
last ROWS queries in four layers; norms (layers, tokens), lengths of the residual stream that each layer reads; and at
lens_rows the TOP likeliest tokens of each layer read as the last, lens_ids and lens_logprobs (layers + 1, rows, TOP).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import hf
import numpy as np
import torch

HERE = Path(__file__).parent
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b")
ROWS, TOP = 6, 5


def main() -> None:
    """Write the files of the models named on the command line, or of both."""
    for name in sys.argv[1:] or MODELS:
        model = hf.build(name)
        golden = json.loads((HERE / f"logits_{name}.json").read_text(encoding="utf-8"))
        tokens = golden["prompts"]["prose"]["tokens"]
        with torch.inference_mode():
            out = model.model(
                input_ids=torch.tensor([tokens]), use_cache=False, output_attentions=True, output_hidden_states=True
            )
            hidden = [h[0] for h in out.hidden_states]  # the last is behind the final norm already
            rows = [len(tokens) // 3, 2 * len(tokens) // 3, len(tokens) - 1]
            ends = [model.model.norm(h[rows]) for h in hidden[:-1]] + [hidden[-1][rows]]
            logprobs = np.stack([hf.log_softmax(model.lm_head(end).numpy()) for end in ends])
        count = len(hidden) - 1
        layers = [0, count // 3, 2 * count // 3, count - 1]
        top = np.argsort(-logprobs, axis=-1, kind="stable")[..., :TOP]
        path = HERE / f"lens_{name}.npz"
        np.savez_compressed(
            path,
            tokens=np.array(tokens, np.int32),
            attn_layers=np.array(layers, np.int32),
            attn=np.stack([out.attentions[i][0, :, -ROWS:].numpy() for i in layers]).astype(np.float32),
            norms=np.stack([h.norm(dim=-1).numpy() for h in hidden[:-1]]).astype(np.float32),
            lens_rows=np.array(rows, np.int32),
            lens_ids=top.astype(np.int32),
            lens_logprobs=np.take_along_axis(logprobs, top, axis=-1).astype(np.float32),
        )
        print(f"{path.name}: {path.stat().st_size} bytes, {len(tokens)} tokens")


if __name__ == "__main__":
    main()
