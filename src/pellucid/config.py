"""One frozen configuration of an engine, with the reason for each value that was resolved.

Law: a field here is a decision a person may want to make. What can be computed from the machine or the model is
resolved once, by `resolve`, and the reason is kept beside the value.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Literal

from pellucid.errors import ConfigError

KVFormatName = Literal["f16", "q8_0"]
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")
ISAS = ("scalar", "avx2", "avx2_vnni", "avx512", "amx")
_WHOLE = {
    "threads": True,
    "ctx": True,
    "kv_pages": True,
    "page_size": False,
    "max_seqs": False,
    "token_budget": False,
    "max_queue": False,
    "max_queue_tenant": False,
    "max_itl_ms": True,
    "seed": True,
}
"""Fields that are whole numbers, and whether None stands for a choice of `resolve`."""


@dataclass(frozen=True)
class EngineConfig:
    """What an engine is built with. None means: let `resolve` choose."""

    model: str = "smollm2"
    threads: int | None = None
    """Threads of the CPU pool; None: the cores this process may run on."""
    pin: bool = False
    """Keep each thread on a core of its own while a step runs: steadier and faster where no one else needs the cores,
    and much slower where someone does."""
    ctx: int | None = None
    """Longest sequence in tokens (prompt and answer); None: the model's own context, at most 4096."""
    kv: str = "f16"
    """Format of the KV cache."""
    kv_pages: int | None = None
    """Pages of the KV cache; None: room for four sequences of `ctx` tokens, as far as memory allows."""
    page_size: int = 16
    """Tokens in a page."""
    max_seqs: int = 64
    """Sequences that run together."""
    token_budget: int = 512
    """Rows in one step, over all sequences."""
    max_queue: int = 256
    """Sequences that may wait."""
    max_queue_tenant: int = 64
    """Of these, sequences of one tenant."""
    max_itl_ms: int | None = None
    """Milliseconds between two tokens of an answer that steps keep to by having fewer rows; None: no bound."""
    prefix_cache: bool = True
    """Keep the pages of finished sequences for prompts that begin alike."""
    seed: int | None = None
    """Seed of requests that bring none; None: drawn from the system and recorded on the request."""
    logprobs_mode: str = "raw_logprobs"
    """What the logprobs of requests that do not say describe: the model, or what was drawn from."""
    isa: str | None = None
    """Instruction set of the kernels; None: PELLUCID_ISA or the best this processor has."""
    reasons: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """(field, why) for each value that `resolve` chose."""

    def __post_init__(self) -> None:
        self._check_types()
        if self.kv not in ("f16", "q8_0"):
            raise ConfigError(f"kv={self.kv!r} is not a KV-cache format; choose f16 or q8_0", param="kv")
        if self.isa is not None and self.isa not in ISAS:
            raise ConfigError(f"isa={self.isa!r} is not known; choose one of {', '.join(ISAS)}", param="isa")
        if self.logprobs_mode not in LOGPROBS_MODES:
            raise ConfigError(
                f"logprobs_mode={self.logprobs_mode!r} is not known; choose {' or '.join(LOGPROBS_MODES)}",
                param="logprobs_mode",
            )
        limits = {
            "threads": (1, 256),
            "ctx": (16, 1 << 24),
            "kv_pages": (2, 1 << 28),
            "page_size": (16, 256),
            "max_seqs": (1, 4096),
            "token_budget": (1, 1 << 16),
            "max_queue": (0, 1 << 20),
            "max_queue_tenant": (0, 1 << 20),
            "max_itl_ms": (1, 1 << 20),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name}={value} is out of range; give {low} to {high}", param=name)
        if 256 % self.page_size:
            raise ConfigError(
                f"page_size={self.page_size} does not divide 256; choose 16, 32, 64, 128 or 256", param="page_size"
            )

    def _check_types(self) -> None:
        for name, optional in _WHOLE.items():
            value = getattr(self, name)
            if type(value) is not int and not (optional and value is None):
                raise ConfigError(f"{name}={value!r} is not a whole number", param=name)
        for name in ("model", "kv", "logprobs_mode", "isa"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "isa" and value is None):
                raise ConfigError(f"{name}={value!r} is not a string", param=name)
        for name in ("pin", "prefix_cache"):
            value = getattr(self, name)
            if type(value) is not bool:
                raise ConfigError(f"{name}={value!r} is not True or False", param=name)

    def resolve(self, *, model_context: int, bytes_per_page: int, free_memory: int | None = None) -> EngineConfig:
        """Return a copy in which every None has a value.

        Args:
            model_context: the longest sequence the model was made for, in tokens.
            bytes_per_page: memory of one page of the KV cache, all layers, in bytes.
            free_memory: bytes that may be used; None: ask the system.
        """
        reasons: list[tuple[str, str]] = []
        threads = self.threads
        if threads is None:
            threads = available_cores()
            reasons.append(("threads", f"{threads} cores are ours to run on"))
        ctx = self.ctx
        if ctx is None:
            ctx = min(model_context, 4096)
            reasons.append(("ctx", f"the model's context is {model_context}; 4096 unless --ctx asks for more"))
        elif ctx > model_context:
            raise ConfigError(
                f"ctx={ctx} is more than the model's context of {model_context} tokens; give {model_context} or less",
                param="ctx",
            )
        pages = self.kv_pages
        least = -(-ctx // self.page_size)
        if pages is None:
            memory = free_memory if free_memory is not None else available_memory()
            wanted = least * min(4, self.max_seqs)
            fits = memory // 2 // bytes_per_page
            pages = max(least, min(wanted, fits))
            why = "four sequences of full length" if pages == wanted else "half of the free memory"
            reasons.append(("kv_pages", why))
        if pages < least:
            raise ConfigError(
                f"kv_pages={pages} cannot hold one sequence of {ctx} tokens; it takes {least}, or a smaller --ctx",
                param="kv_pages",
            )
        return replace(self, threads=threads, ctx=ctx, kv_pages=pages, reasons=self.reasons + tuple(reasons))


def available_cores() -> int:
    """Cores that this process may run on: the affinity mask, bounded by the control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as f:  # noqa: PTH123
            quota, period = f.read().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return max(1, cores)


def available_memory() -> int:
    """Bytes of memory that can be had without swapping: MemAvailable, bounded by the control group's limit."""
    free = 8 << 30
    try:
        with open("/proc/meminfo", encoding="ascii") as f:  # noqa: PTH123
            for line in f:
                if line.startswith("MemAvailable:"):
                    free = int(line.split()[1]) * 1024
                    break
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as f:  # noqa: PTH123
            limit = f.read().strip()
        if limit != "max":
            free = min(free, int(limit))
    except (OSError, ValueError):
        pass
    return free
