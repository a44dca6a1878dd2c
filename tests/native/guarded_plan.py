"""Run whole plans and the sampler with every array against a guard page; prints a digest of the logits.

Law: run it with PELLUCID_GUARD_PAGES set, under which the core's own memory (packed weights, embedding tables, pages of
K and V, the arena, partials of attention) ends at a guard page too. Plans have no row, page or arena byte more than
a step takes. What one instruction set computes is held against the others', to the bit.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from devices.models import RandomModel, spec
from kernelcases import ISAS, NAMES, Guarded, packed, weights
from pellucid import _core
from pellucid.devices.base import Batch
from pellucid.devices.cpu import CpuDevice
from pellucid.formats import FORMATS
from pellucid.models.spec import ExpertsSpec
from pellucid.sampling.params import SamplingParams
from pellucid.sampling.sampler import MAX_LOGPROBS, Sampler

STEPS = (((0, 1),), ((0, 19),), ((299, 1),), ((0, 1), (17, 1), (40, 1)), ((250, 13), (3, 20)))
"""(First position, rows) of each sequence of a step."""


def models(name: str) -> Iterator[RandomModel]:
    """Sizes that leave rests: of 16 rows, of 16 and 32 values, of the vocabulary."""
    block = FORMATS[name].block
    wide = max(block, 32) if block > 1 else 35
    odd = {"d_model": wide, "d_ff": 3 * wide, "vocab": 2 * wide + 9}
    yield RandomModel(spec(heads=3, kv_heads=1, d_head=18, windows=(0,), tied=True, qkv_bias=True, **odd), name)
    yield RandomModel(
        spec(heads=4, kv_heads=2, d_head=32, windows=(5, 0), qk_norm="head", post_norms=True, **odd), name
    )
    moe = ExpertsSpec(5, 3, normalized=False, d_shared=wide, shared_gated=True)
    yield RandomModel(spec(windows=(0,), experts=moe, sinks=True, mlp_bias=True, activation="clamped", **odd), name)


def guarded_step(device: CpuDevice, spans: tuple[tuple[int, int], ...]) -> Batch:
    """The step's arrays in guarded memory; sequences hold the last pages, the last one last."""
    ends = [0]
    places: list[int] = []
    for start, rows in spans:
        places += range(start, start + rows)
        ends.append(len(places))
    width = max((start + rows - 1) // device.page_size + 1 for start, rows in spans)
    tables = device.page_count - 1 - np.arange(len(spans) * width, dtype=np.int32)[::-1].reshape(len(spans), width)
    tokens = device.vocab_size - 1 - np.arange(len(places), dtype=np.int32) % device.vocab_size
    wanted = np.array([end - 1 for end in ends[1:]], np.int32)
    arrays = (tokens, np.array(places, np.int32), np.array(ends, np.int32), tables, wanted)
    device._logits = Guarded.copy(np.zeros((len(wanted), device.vocab_size), np.float32))
    return Batch(*map(Guarded.copy, arrays))


def run_plans(isa: str) -> list[np.ndarray]:
    """Logits of every model and step."""
    found: list[np.ndarray] = []
    for name in NAMES:
        for model in models(name):
            for kv in ("f16", "q8_0") if model.spec.d_head % 32 == 0 else ("f16",):
                for spans in STEPS:
                    rows = sum(n for _, n in spans)
                    pages = len(spans) * (max(start + n for start, n in spans) // 16 + 1)
                    for threads in (1, 2):
                        device = model.device(
                            isa=isa, kv=kv, threads=threads, token_budget=rows, ctx=320, kv_pages=max(20, pages)
                        )
                        found.append(device.run(guarded_step(device, spans)).copy())
    return found


def unpack_tables() -> None:
    """Every row of every format, from tables whose last row ends the memory."""
    for name in NAMES:
        cols = 2 * FORMATS[name].block if FORMATS[name].block > 1 else 7
        for rows in (1, 16, 33):
            matrix = packed(name, weights(name, rows, cols), cols)
            for row in range(rows):
                matrix.row(row)


ASKED = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=3, logprobs=5),
    SamplingParams(temperature=1.3, top_p=0.8, min_p=0.02, logprobs=20),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, logit_bias={0: 2.0}),
    SamplingParams(min_tokens=3, top_k=1),
)


def sample(vocab: int) -> None:
    """Draw and score over a vocabulary; the same as from memory that is not guarded."""
    sampler, count = Sampler(vocab), len(ASKED)
    plain = np.random.default_rng(vocab).standard_normal((count, vocab), np.float32) * 3
    plain[0, vocab // 2 :] = plain[0, 0]
    held = [vocab - 1] if vocab > 1 else []

    def states() -> list[_core.SampleState]:
        return [sampler.state(params, 7, 0, [0, vocab - 1], held) for params in ASKED]

    rows, positions = np.arange(count, dtype=np.int32)[::-1].copy(), np.full(count, 5, np.int64)
    want = sampler.pick(states(), plain, rows.tolist(), positions.tolist())
    for front in (False, True):
        out = [Guarded.copy(np.zeros(count, kind), front) for kind in (np.int32, np.int32, np.float32)]
        top = [Guarded.copy(np.zeros((count, MAX_LOGPROBS), kind), front) for kind in (np.int32, np.float32)]
        logits = Guarded.copy(plain, front)
        for pool in (None, _core.Pool(2)):
            out[0][:] = -1
            _core.sample_rows(
                states(), logits, Guarded.copy(rows, front), Guarded.copy(positions, front), *out, *top, pool
            )
            assert out[0].tolist() == want.tokens
        _core.score_rows(logits, Guarded.copy(np.full(count, vocab - 1, np.int32), front), 5, *out[1:], *top)


def main(isa: str) -> None:
    digest = hashlib.sha256()
    for logits in run_plans(isa):
        digest.update(logits)
    _core.read(Guarded.copy(np.zeros(4096 + 256, np.uint8)), isa)
    if isa == ISAS[0]:
        unpack_tables()
        for vocab in (1, 2, 15, 16, 17, 63, 100, 1023, 4097):
            sample(vocab)
    print(digest.hexdigest())


if __name__ == "__main__":
    main(sys.argv[1])
