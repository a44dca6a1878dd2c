"""Make perplexity.json: perplexity of text.txt by Hugging Face in float32 and by llama.cpp, on the same token ids.

    python tests/golden/make_perplexity.py hf|llama.cpp [MODEL ...]       # what it needs: README.md here

The text is encoded once, without special tokens, and cut into chunks of 512 ids that share nothing; what is left at the
end is dropped. A model that wants a BOS gets one at the front of every chunk, in whose place one id less of text goes
in. The second half is scored: the 256 ids at positions 256..511, each from the logits one position before.
Perplexity is exp of the mean of all those negative log-likelihoods. The ids themselves lie in perplexity_tokens.npz.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hf
import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
CHUNK, FIRST = 512, 256
Run = Callable[[list[int]], NDArray[np.float32]]
"""Logits (256, vocab) of positions 255..510 of one chunk."""


def chunks(name: str) -> NDArray[np.int32]:
    """Token ids (chunks, 512) of the text; kept in perplexity_tokens.npz once they are made."""
    path = HERE / "perplexity_tokens.npz"
    kept = dict(np.load(path)) if path.exists() else {}
    if name not in kept:
        tokenizer = hf.tokenizer(name)
        text = (HERE / "text.txt").read_text(encoding="utf-8")
        bos = [tokenizer.bos_token_id] if name.startswith("gemma") else []
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
        step = CHUNK - len(bos)
        kept[name] = np.array([bos + ids[i : i + step] for i in range(0, len(ids) - step + 1, step)], np.int32)
        np.savez_compressed(path, **kept)
    return kept[name]


@contextmanager
def hugging_face(name: str) -> Iterator[Run]:
    """The float32 model on dequantised weights."""
    model = hf.build(name)
    yield lambda tokens: hf.logits(model, tokens[:-1], list(range(FIRST - 1, CHUNK - 1)))


@contextmanager
def llama_cpp(name: str) -> Iterator[Run]:
    """llama.cpp as llama-cpp-python sets it up: CPU, K and V in f16, no flash attention, a batch of 512.

    But for extra buffer types (repacked weights, AMX): AMX crashes in virtual machines that show it and forbid it. The
    products are the same int8 dots without them.
    """
    from llama_cpp import Llama, llama_cpp

    defaults = llama_cpp.llama_model_default_params

    def plain() -> object:
        params = defaults()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_model_default_params = plain
    model = Llama(
        str(hf.path_of(name)),
        n_ctx=CHUNK,
        n_batch=CHUNK,
        n_threads=1,
        n_threads_batch=1,
        logits_all=True,
        verbose=False,
    )

    def run(tokens: list[int]) -> NDArray[np.float32]:
        model.reset()
        model.eval(tokens)
        return model.scores[FIRST - 1 : CHUNK - 1]

    yield run
    model.close()


ENGINES = {"hf": hugging_face, "llama.cpp": llama_cpp}


def versions(engine: str) -> dict[str, str]:
    """Versions of what an engine is made of."""
    if engine == "hf":
        import torch
        import transformers

        return {"torch": torch.__version__, "transformers": transformers.__version__}
    import llama_cpp

    return {
        "llama-cpp-python": llama_cpp.__version__,
        "system": llama_cpp.llama_print_system_info().decode().strip(" |"),
        "extra_buffer_types": "off",
    }


def main() -> None:
    """Run one engine on the models named, or on all, and note the results in perplexity.json."""
    engine, names = sys.argv[1], sys.argv[2:] or list(hf.FILES)
    for name in names:
        tokens, start = chunks(name), time.monotonic()
        sums = []
        with ENGINES[engine](name) as run:
            for chunk in tokens.tolist():
                logprobs = hf.log_softmax(run(chunk))
                sums.append(-float(logprobs[np.arange(CHUNK - FIRST), chunk[FIRST:]].sum()))
        perplexity = float(np.exp(np.sum(sums) / (len(sums) * (CHUNK - FIRST))))
        path = HERE / "perplexity.json"
        out = (
            json.loads(path.read_text(encoding="utf-8"))
            if path.exists()
            else {"method": " ".join(__doc__.split("\n\n")[2].split())}
        )
        model = out.setdefault("models", {}).setdefault(name, {})
        model |= {"file": hf.FILES[name], "chunks": len(sums), "scored": len(sums) * (CHUNK - FIRST)}
        model[engine] = {
            "perplexity": round(perplexity, 5),
            "nll_of_chunks": [round(s, 3) for s in sums],
            "versions": versions(engine),
        }
        if "hf" in model and "llama.cpp" in model:
            ratio = model["llama.cpp"]["perplexity"] / model["hf"]["perplexity"] - 1
            model["llama.cpp"]["relative_to_hf"] = round(ratio, 6)
        path.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
        print(
            f"{name} {engine}: {perplexity:.4f} over {len(sums)} chunks in {time.monotonic() - start:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
