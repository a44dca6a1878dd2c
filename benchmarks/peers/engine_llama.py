"""llama.cpp, by llama-cpp-python, and its fork ik_llama.cpp, by ik-llama-cpp-python: their C API, greedy by NumPy.

Law: K and V are f16; the threads are the driver's. A context holds the streams of one measurement and no more, since a
larger one is slower. Tokens of a decoded prompt are dropped afterwards and the prompt is kept for the next repetition.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np
import wire

try:
    from llama_cpp import llama_cpp as lib
except ImportError:
    from ik_llama_cpp import _ctypes_api as lib

BATCH = 512


class Llama:
    def __init__(self, model: str, threads: int, length: int, streams: int, *, flash: bool, repack: bool) -> None:
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        for name in ("use_extra_bufts", "repack_tensors"):
            if hasattr(params, name):
                setattr(params, name, repack)
        params.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(model.encode(), params)
        if not self.model:
            raise RuntimeError(f"{model} cannot be loaded")
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.threads, self.length, self.flash = threads, length, flash
        self.context = None
        self.streams = 0
        self.prompts: list[list[int]] = []
        self.batch = lib.llama_batch_init(BATCH, 0, 1)
        array = np.ctypeslib.as_array
        self.token, self.pos = array(self.batch.token, (BATCH,)), array(self.batch.pos, (BATCH,))
        self.wants = array(self.batch.logits, (BATCH,))
        array(self.batch.n_seq_id, (BATCH,))[:] = 1

    def prefill(self, tokens: list[int]) -> dict[str, float]:
        self._open(1)
        began = time.perf_counter()
        self._compute(0, tokens)
        self._best(-1)
        return {"seconds": time.perf_counter() - began}

    def decode(self, prompts: list[list[int]], steps: int) -> dict[str, float]:
        self._open(len(prompts), prompts)
        if self.prompts != prompts:
            self._clear()
            for stream, prompt in enumerate(prompts):
                self._compute(stream, prompt[:-1])
            self.prompts = prompts
        tokens = [prompt[-1] for prompt in prompts]
        count = len(prompts)
        began = 0.0
        # One step more than asked for, and first: it takes the last token of the prompts, as a served prompt has done.
        for step in range(steps + 1):
            self.batch.n_tokens = count
            for row, prompt in enumerate(prompts):
                self.token[row] = tokens[row]
                self.pos[row] = len(prompt) - 1 + step
                self.batch.seq_id[row][0] = row
            self.wants[:count] = 1
            self._run()
            tokens = [self._best(row) for row in range(count)]
            if step == 0:
                began = time.perf_counter()
        seconds = time.perf_counter() - began
        self._truncate()
        return {"seconds": seconds}

    def nll(self, tokens: list[int], first: int) -> float:
        self._open(1)
        self._compute(0, tokens[:-1], every=True)
        rows = [self._logits(row) for row in range(first - 1, len(tokens) - 1)]
        return wire.nll_of(np.stack(rows), tokens[first:])

    def _open(self, streams: int, keep: list[list[int]] | None = None) -> None:
        """A context for so many streams, empty unless it holds the prompts to keep."""
        if self.context is None or streams != self.streams:
            if self.context is not None:
                lib.llama_free(self.context)
            params = lib.llama_context_default_params()
            params.n_ctx = -(-self.length // 256) * 256 * streams
            params.n_batch = params.n_ubatch = BATCH
            params.n_seq_max = streams
            params.n_threads = params.n_threads_batch = self.threads
            if hasattr(params, "flash_attn_type"):
                params.flash_attn_type = int(self.flash)
            else:
                params.flash_attn = self.flash
            if hasattr(params, "n_outputs_max"):
                params.n_outputs_max = BATCH
            self.context = lib.llama_init_from_model(self.model, params)
            if not self.context:
                raise RuntimeError("no context can be made")
            self.streams = streams
            self.prompts = []
        elif keep is None or self.prompts != keep:
            self._clear()

    def _clear(self) -> None:
        if hasattr(lib, "llama_get_memory"):
            lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        else:
            lib.llama_kv_cache_clear(self.context)
        self.prompts = []

    def _truncate(self) -> None:
        """Drop what was decoded; forget all where that cannot be done."""
        done = []
        for stream, prompt in enumerate(self.prompts):
            if hasattr(lib, "llama_get_memory"):
                done.append(lib.llama_memory_seq_rm(lib.llama_get_memory(self.context), stream, len(prompt) - 1, -1))
            else:
                remove = lib._lib.llama_kv_cache_seq_rm
                remove.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
                remove.restype = ctypes.c_bool
                done.append(remove(self.context, stream, len(prompt) - 1, -1))
        if not all(done):
            self._clear()

    def _compute(self, stream: int, tokens: list[int], *, every: bool = False) -> None:
        for start in range(0, len(tokens), BATCH):
            part = tokens[start : start + BATCH]
            count = self.batch.n_tokens = len(part)
            self.token[:count] = part
            self.pos[:count] = range(start, start + count)
            for row in range(count):
                self.batch.seq_id[row][0] = stream
            self.wants[:count] = every
            self.wants[count - 1] = 1
            self._run()

    def _run(self) -> None:
        code = lib.llama_decode(self.context, self.batch)
        if code:
            raise RuntimeError(f"llama_decode says {code}")

    def _logits(self, row: int) -> np.ndarray:
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(self.context, row), (self.vocab,))

    def _best(self, row: int) -> int:
        return int(self._logits(row).argmax())


if __name__ == "__main__":
    wire.serve(Llama)
