"""The real models: what they are, and that opening them is quick."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from pellucid.checkpoint import open_checkpoint

EXPECTED = {
    "smollm2": ("llama", 30, 576, 134_515_008, True, (2, 0)),
    "gemma3-270m": ("gemma3", 18, 640, 268_098_176, True, (1, 106)),
    "qwen-0.5b": ("qwen2", 24, 896, 630_167_424, False, (151645, 151643)),
    "qwen-1.5b": ("qwen2", 28, 1536, 1_777_088_000, False, (151645, 151643)),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_card(name: str, real_model: Callable[[str], Path]) -> None:
    c = open_checkpoint(real_model(name))
    s = c.spec
    assert (s.family, s.n_layers, s.d_model, s.parameters(), s.tied, c.tokenizer.eot_ids) == EXPECTED[name]
    assert len(c.tokenizer.pieces) == s.vocab
    assert c.nbytes <= c.path.stat().st_size
    c.close()


@pytest.mark.parametrize("name", EXPECTED)
def test_opening_is_quick(name: str, real_model: Callable[[str], Path]) -> None:
    path = real_model(name)
    best = 9.0
    for _ in range(5):
        start = time.process_time()
        open_checkpoint(path)
        best = min(best, time.process_time() - start)
    assert best < 0.4


def test_weights_are_those_that_gguf_reads(smollm2_path: Path) -> None:
    theirs = {t.name: t for t in gguf.GGUFReader(smollm2_path).tensors}
    with open_checkpoint(smollm2_path) as c:
        down = c.weight("blocks.3.mlp.W_out")
        t = theirs["blk.3.ffn_down.weight"]
        assert np.array_equal(down.to_float32(), dequantize(t.data, t.tensor_type))
        q = c.weight("blocks.3.attn.W_Q").to_float32()
        t = theirs["blk.3.attn_q.weight"]
        pairs = dequantize(t.data, t.tensor_type).reshape(9, 32, 2, 576)
        assert np.array_equal(q.reshape(9, 2, 32, 576), pairs.swapaxes(1, 2))
