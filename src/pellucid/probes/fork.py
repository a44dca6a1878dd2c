"""Forks: what a run would be if some value were other than it is.

Law: a fork is a replay of its own; the served request is never touched. Each maker here gives hooks for Replay.run, and
several join by `together`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pellucid.errors import ContextLengthError, RequestError
from pellucid.probes.anatomy import Anatomy
from pellucid.probes.attention import attend
from pellucid.probes.lens import log_softmax
from pellucid.probes.replay import Hook, Replay
from pellucid.sampling import chain
from pellucid.sampling.params import SamplingParams

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Hooks = dict[str, Hook]


def scale_heads(anatomy: Anatomy, layer: int, heads: Sequence[int], factor: float = 0.0) -> Hooks:
    """Multiply what some heads of a layer give by a factor; 0 ablates them."""
    for head in heads:
        anatomy.head(layer, head)
    chosen = list(heads)

    def scale(z: F32, rows: I32) -> None:
        z[:, chosen] *= np.float32(factor)

    return {anatomy.head(layer).z: scale}


def scale_part(anatomy: Anatomy, layer: int, part: str, factor: float = 0.0) -> Hooks:
    """Multiply what the attention ("attn") or the MLP ("mlp") of a layer adds to the residual stream."""
    anatomy.head(layer)
    if part not in ("attn", "mlp"):
        raise RequestError(f"part={part!r} is none; choose attn or mlp", param="part")

    def scale(x: F32, rows: I32) -> None:
        x *= np.float32(factor)

    return {f"blocks.{layer}.hook_{part}_out": scale}


def put(name: str, position: int, values: F32) -> Hooks:
    """Put values in the place of a value's row: activation patching (Meng et al. 2022)."""

    def write(x: F32, rows: I32) -> None:
        at = np.flatnonzero(rows == position)
        if len(at):
            if x.shape[1:] != values.shape:
                raise RequestError(f"{name} has rows of shape {x.shape[1:]}, not {values.shape}", param="values")
            x[at[0]] = values

    return {name: write}


def mask_span(replay: Replay, first: int, end: int, *, nothing: bool = False) -> Hooks:
    """Have no later token see the keys of positions first to end, in any layer; tokens of the span see as ever.

    nothing: mask no key, and take the same path: what that changes is the rounding of this path.
    """
    if not 0 <= first < end <= len(replay.tokens):
        raise RequestError(f"tokens {first} to {end} are no span of {len(replay.tokens)} tokens", param="span")
    masked = np.zeros(len(replay.tokens), np.bool_)
    masked[first:end] = not nothing
    asked: dict[int, F32] = {}
    hooks: Hooks = {}
    for layer in replay.anatomy.layers:

        def keep(q: F32, rows: I32, at: int = layer.layer) -> None:
            asked[at] = q.copy()

        def recompute(z: F32, rows: I32, at: int = layer.layer) -> None:
            late = rows >= end
            q = asked.pop(at)
            if late.any():
                z[late] = attend(replay, replay.anatomy.layers[at], q[late], rows[late], masked)

        hooks[layer.q] = keep
        hooks[layer.z] = recompute
    return hooks


def together(*several: Mapping[str, Hook]) -> Hooks:
    """One set of hooks that does what all do, in order."""
    out: Hooks = {}
    for hooks in several:
        for name, hook in hooks.items():
            out[name] = _both(out[name], hook) if name in out else hook
    return out


def _both(first: Hook, second: Hook) -> Hook:
    def hook(x: F32, rows: I32) -> None:
        first(x, rows)
        second(x, rows)

    return hook


class Fork:
    """A run of some tokens in which something is other than it was. Made by Trace.fork."""

    def __init__(self, source: Replay, tokens: Sequence[int], prompt_len: int, room: int = 0) -> None:
        """Prepare; `room` tokens may be generated. Raises ContextLengthError: they do not fit."""
        self.length = len(tokens)
        if self.length + room > source.device.context:
            raise ContextLengthError(f"{self.length} tokens and {room} more do not fit the context", param="max_tokens")
        self.run = Replay(source.device, [*tokens, *[0] * room], source.budget)
        self.prompt_len = prompt_len
        self.hooks: Hooks = {}

    def change(self, *several: Mapping[str, Hook]) -> Fork:
        """Have the hooks run as well, after those that are there."""
        self.hooks = together(self.hooks, *several)
        return self

    @property
    def tokens(self) -> list[int]:
        """All tokens, those that were generated on the fork at the end."""
        return self.run.tokens[: self.length].tolist()

    def logits(self, pos: int, start: int = 0) -> F32:
        """Logits (vocab,) from which the token at `pos` would be drawn, computed from `start` on."""
        if not 0 < pos <= self.length:
            raise RequestError(f"pos={pos} has no token before it, or is behind the end", param="pos")
        last = self.run.anatomy.last
        shown = f"{last}.patched" if last in self.hooks else last
        parts = self.run.run([shown], [pos - 1], hooks=self.hooks, start=start, stop=pos)
        resid = np.concatenate([part.of(shown) for part in parts])
        return next(logits[0].copy() for _, logits in self.run.unembed(resid))

    def logprob(self, pos: int, token: int | None = None) -> float:
        """Logprob of the token at `pos`, or of another in its place."""
        chosen = int(self.run.tokens[pos]) if token is None else token
        return float(log_softmax(self.logits(pos))[chosen])

    def generate(self, params: SamplingParams, *, seed: int, choice: int = 0, end_ids: Iterable[int] = ()) -> list[int]:
        """Go on from the end, as the engine would, on the fork; returns the new tokens."""
        ends = frozenset(end_ids)
        first = self.length
        most = len(self.run.tokens)
        limit = most if params.max_tokens is None else min(most, first + params.max_tokens)
        done = 0
        while self.length < limit:
            logits = self.logits(self.length, done)
            done = self.length
            trace = chain.trace(
                logits,
                params,
                seed=seed,
                choice=choice,
                tokens=self.tokens,
                prompt_len=self.prompt_len,
                end_ids=ends,
            )
            self.run.tokens[self.length] = trace.token
            self.length += 1
            if trace.token in ends and self.length - self.prompt_len >= params.min_tokens:
                break
        return self.run.tokens[first : self.length].tolist()
