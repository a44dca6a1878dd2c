"""Pellucid as it serves (its engine, batching and sampling), and the roofline of each measurement beside it."""

from __future__ import annotations

import numpy as np
import wire

from pellucid.bench.peaks import PeakMeter
from pellucid.bench.session import Session
from pellucid.bench.work import NOTHING, PlanWork
from pellucid.checkpoint import open_checkpoint
from pellucid.config import EngineConfig
from pellucid.devices.base import Batch
from pellucid.devices.cpu import CpuDevice
from pellucid.models.decoder import decoder_graph

INT8_TO_FLOAT = 4
"""int8 products in a vector for one of float32, in which attention is computed."""


class Pellucid:
    def __init__(self, model: str, threads: int, length: int, streams: int) -> None:
        with open_checkpoint(model) as checkpoint:
            pages = 2 * streams * -(-length // 16) + 64
            config = EngineConfig(threads=threads, ctx=length, kv_pages=pages, max_seqs=streams)
            self.device = CpuDevice.load(checkpoint, decoder_graph(checkpoint.spec), config)
        self.vocab = self.device.vocab_size
        self.session = Session(self.device, self.device.config)
        self.work = PlanWork(self.device)
        self.meter = PeakMeter(threads)

    def prefill(self, tokens: list[int]) -> dict[str, float]:
        return self._timed(lambda: self.session.prefill(tokens))

    def decode(self, prompts: list[list[int]], steps: int) -> dict[str, float]:
        return self._timed(lambda: self.session.decode(prompts, steps))

    def _timed(self, measured):
        peaks = self.meter.measure()
        spans = measured()
        least = sum((self.work.demand(span.rows) for span in spans), NOTHING).seconds(peaks)
        attending = sum(
            self.work.traffic(record, span.rows).ops
            for span in spans
            for record in self.work.lowered.records
            if record.kind == "attention"
        )
        return {
            "seconds": spans[-1].ended - spans[0].began,
            "least": least,
            "least_with_attention": least + attending / (peaks.int8 / INT8_TO_FLOAT),
        }

    def nll(self, tokens: list[int], first: int) -> float:
        rows = len(tokens) - 1
        pages = np.arange(-(-rows // self.device.page_size), dtype=np.int32)[None]
        place = np.arange(rows, dtype=np.int32)
        ends = np.array([0, rows], np.int32)
        logits = self.device.run(Batch(np.array(tokens[:-1], np.int32), place, ends, pages, place[first - 1 :]))
        return wire.nll_of(logits, tokens[first:])


if __name__ == "__main__":
    wire.serve(Pellucid)
