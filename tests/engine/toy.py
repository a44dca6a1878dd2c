"""ToyDevice: a device whose logits depend on every token of a sequence, read back through the pages it was given.

Each row writes (token, position, state) into the slot of its page, where state chains over the state of the position
before, read through the page table, as K and V depend on all that came before. Logits mix everything that the page
table shows. A page that belongs to another, a stale prefix, a wrong position or a lost token changes them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pellucid.config import EngineConfig
from pellucid.devices.base import Batch
from pellucid.engine.engine import Engine
from pellucid.engine.events import FinishEvent, TokenEvent
from pellucid.engine.sequence import Sequence

VOCAB = 61
NAN_TOKEN = 59
"""A sequence whose last token is this one gets NaN."""
BOOM_TOKEN = 60
"""A step with this token raises."""
M = (1 << 61) - 1
COLUMN = np.arange(1, VOCAB + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
PLACE = np.cumprod(np.full(4096, 0xD1342543DE82EF95, np.uint64))
FIELD = np.array([1, 257, 65537], np.uint64)


def chained(state: int, token: int, position: int) -> int:
    return (state * 1_000_003 + token * 7_919 + position * 104_729 + 1) % M


def logits_of(history: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits of rows (token, position, state), one for each position."""
    if history[-1, 0] == NAN_TOKEN:
        return np.full(VOCAB, np.nan, np.float32)
    mixed = (history.astype(np.uint64) @ FIELD * PLACE[: len(history)]).sum()
    bits = (COLUMN * (mixed ^ (mixed >> np.uint64(29)))) >> np.uint64(50)
    return (bits.astype(np.float32) / np.float32(2048.0)) - np.float32(4.0)


class ToyDevice:
    vocab_size = VOCAB
    pool = None

    def __init__(self, *, context=256, page_size=16, page_count=64, max_rows=512):
        self.context, self.page_size, self.page_count, self.max_rows = context, page_size, page_count, max_rows
        self.store = np.full((page_count, page_size, 3), -7, np.int64)
        self.runs = 0
        self.rows_run = 0
        self.most_logit_rows = 0

    def memory(self) -> dict[str, int]:
        return {"weights": 0, "kv": 0, "scratch": 0}

    def run(self, batch: Batch) -> NDArray[np.float32]:
        self.runs += 1
        self.rows_run += len(batch.tokens)
        self.most_logit_rows = max(self.most_logit_rows, len(batch.logit_rows))
        self.check(batch)
        if BOOM_TOKEN in batch.tokens:
            raise RuntimeError("boom")
        size = self.page_size
        owner = np.repeat(np.arange(len(batch.seq_starts) - 1), np.diff(batch.seq_starts))
        for row, s in enumerate(owner):
            token, position = int(batch.tokens[row]), int(batch.positions[row])
            table = batch.page_tables[s]
            before = 0
            if position:
                before = int(self.store[table[(position - 1) // size], (position - 1) % size, 2])
            self.store[table[position // size], position % size] = token, position, chained(before, token, position)
        out = np.empty((len(batch.logit_rows), VOCAB), np.float32)
        for index, row in enumerate(batch.logit_rows):
            table, last = batch.page_tables[owner[row]], int(batch.positions[row])
            pages = table[: last // size + 1]
            out[index] = logits_of(self.store[pages].reshape(-1, 3)[: last + 1])
        return out

    def check(self, batch: Batch) -> None:
        rows, seqs = len(batch.tokens), len(batch.seq_starts) - 1
        assert 0 < rows <= self.max_rows
        assert batch.positions.shape == (rows,)
        assert batch.page_tables.shape[0] == seqs
        assert batch.page_tables.flags.c_contiguous
        assert batch.seq_starts[0] == 0
        assert batch.seq_starts[-1] == rows
        assert all(array.dtype == np.int32 for array in vars(batch).values())
        assert (np.diff(batch.logit_rows) > 0).all()
        assert len(batch.logit_rows) == 0 or 0 <= batch.logit_rows[0] <= batch.logit_rows[-1] < rows
        for s in range(seqs):
            own = batch.positions[batch.seq_starts[s] : batch.seq_starts[s + 1]]
            assert len(own) > 0
            assert (np.diff(own) == 1).all()
            pages = batch.page_tables[s]
            needed = -(-(int(own[-1]) + 1) // self.page_size)
            assert (pages[:needed] >= 0).all()
            assert (pages[:needed] < self.page_count).all()
            assert len(set(pages[:needed].tolist())) == needed


def engine(device: ToyDevice | None = None, **config) -> Engine:
    return Engine(device or ToyDevice(), config=EngineConfig(**config))


def drain(engine: Engine, outputs: dict[str, list[int]] | None = None, ends: dict[str, FinishEvent] | None = None):
    """Step until nothing is left, checking the pages after each. Returns (tokens by id, FinishEvent by id)."""
    outputs = {} if outputs is None else outputs
    ends = {} if ends is None else ends
    for _ in range(20_000):
        if not engine.busy:
            break
        step(engine, outputs, ends)
    assert not engine.busy
    return outputs, ends


def step(engine: Engine, outputs: dict[str, list[int]], ends: dict[str, FinishEvent]) -> None:
    for event in engine.step():
        assert event.seq.id not in ends, "an event after the end"
        if isinstance(event, TokenEvent):
            outputs.setdefault(event.seq.id, []).append(event.token)
        else:
            ends[event.seq.id] = event
            assert event.seq.pages == []
            assert outputs.get(event.seq.id, []) == event.seq.output_ids
    engine.scheduler.check()


def solo(prompt: list[int], params, *, seed=None, choice=0, stop_ids=frozenset()) -> tuple[list[int], str]:
    """What the sequence says when it is alone, on a fresh device with plenty of everything."""
    alone = engine(ToyDevice(page_count=256), prefix_cache=False)
    seq = Sequence(prompt, params, id="solo", seed=seed, choice=choice, stop_ids=stop_ids)
    alone.add(seq)
    outputs, ends = drain(alone)
    return outputs.get("solo", []), ends["solo"].reason
