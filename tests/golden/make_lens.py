"""Make lens.npz beside the tiny models: what Hugging Face's eager attention shows of them.

    python tests/golden/make_lens.py       # needs torch, transformers

Of each model: attentions (layers, heads, tokens, tokens) and hidden states (layers + 1, tokens, d_model) for the tokens
of its golden.npz, in float32. MHA, GQA, sliding windows, bounded scores and sinks are among them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
MODELS = ("tiny/llama", "tiny/mistral", "tiny/gemma3", "families/gpt2", "families/gemma2", "families/gpt-oss")


def main() -> None:
    """Write every file."""
    torch.set_num_threads(1)
    for name in MODELS:
        folder = HERE / name
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        golden = np.load(folder / "golden.npz")
        tokens = golden["tokens"] if "tokens" in golden else golden["tokens_0"]
        ids = torch.tensor(tokens.reshape(1, -1).astype(np.int64))
        with torch.inference_mode():
            out = model(input_ids=ids, use_cache=False, output_attentions=True, output_hidden_states=True)
        np.savez_compressed(
            folder / "lens.npz",
            attentions=np.stack([a[0].numpy() for a in out.attentions]),
            hidden=np.stack([h[0].numpy() for h in out.hidden_states]),
        )
        print(name, ids.shape, (folder / "lens.npz").stat().st_size)


if __name__ == "__main__":
    main()
