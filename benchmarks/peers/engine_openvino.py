"""OpenVINO GenAI: its continuous batching over the GGUF file, stepped as a server steps it.

Law: the precision of computing is OpenVINO's default unless the variant says f32; K and V are f16. Likelihoods are
those of its own echo of a prompt.
"""

from __future__ import annotations

import itertools
import time

import numpy as np
import openvino as ov
import openvino_genai as genai
import wire


class OpenVino:
    def __init__(self, model: str, threads: int, length: int, streams: int, *, precision: str | None, kv: str) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 512
        scheduler.max_num_seqs = max(1, streams)
        scheduler.num_kv_blocks = streams * (-(-length // 32) + 2) + 64
        scheduler.enable_prefix_caching = False
        options = {"INFERENCE_NUM_THREADS": threads, "KV_CACHE_PRECISION": kv}
        if precision is not None:
            options["INFERENCE_PRECISION_HINT"] = precision
        self.pipe = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", options)
        self.vocab = len(self.pipe.get_tokenizer().get_vocab())
        self.numbers = itertools.count()

    def prefill(self, tokens: list[int]) -> dict[str, float]:
        began = time.perf_counter()
        handle = self._add(tokens, 1)  # a request without its handle is dropped
        self._finish()
        if not handle.can_read():
            raise RuntimeError("the prompt was not computed")
        return {"seconds": time.perf_counter() - began}

    def decode(self, prompts: list[list[int]], steps: int) -> dict[str, float]:
        # Prompts that take several steps begin to decode while the others are computed: these run on a little longer.
        slack = sum(map(len, prompts)) // 512 + len(prompts) + 2
        handles = [self._add(prompt, steps + slack) for prompt in prompts]
        waiting = set(range(len(handles)))
        while waiting:
            self.pipe.step()
            waiting -= {i for i in waiting if handles[i].can_read()}
        began = time.perf_counter()
        for _ in range(steps):
            self.pipe.step()
        seconds = time.perf_counter() - began
        for handle in handles:
            handle.cancel()
        self._finish()
        return {"seconds": seconds}

    def nll(self, tokens: list[int], first: int) -> float:
        handle = self._add(tokens, 1, echo=True, logprobs=1)
        self._finish()
        (output,) = handle.read_all()
        logprobs = output.generated_log_probs
        if len(logprobs) < len(tokens):
            raise RuntimeError(f"{len(logprobs)} logprobs for {len(tokens)} tokens")
        return -float(np.sum(logprobs[first : len(tokens)]))

    def _add(self, tokens: list[int], most: int, **options: object) -> genai.GenerationHandle:
        config = genai.GenerationConfig()
        config.max_new_tokens = most
        config.ignore_eos = True
        config.do_sample = False
        for name, value in options.items():
            setattr(config, name, value)
        ids = ov.Tensor(np.array([tokens], np.int64))
        return self.pipe.add_request(next(self.numbers), ids, config)

    def _finish(self) -> None:
        while self.pipe.has_non_finished_requests():
            self.pipe.step()


if __name__ == "__main__":
    wire.serve(OpenVino)
