"""From an LLM to a Trace, a cache, or a run with hooks.

Law: the answer is served first, by the engine, as any other; what is looked into is the replay of its very tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from pellucid.devices.cpu import CpuDevice
from pellucid.errors import RequestError
from pellucid.probes.funnel import processed
from pellucid.probes.recorder import Recorder
from pellucid.probes.replay import Hook, Replay, budget_bytes
from pellucid.probes.trace import Level, Trace, cached, replayed
from pellucid.sampling.params import SamplingParams

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.results import RequestOutput

F32 = NDArray[np.float32]
FwdHook = Callable[[F32, str], F32 | None]
"""Called with (rows, *shape) of a value and its name; what it returns, if anything, takes the value's place."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=1, seed=0)


def replay_of(llm: LLM, ids: Sequence[int], budget: int | str | None = None) -> Replay:
    """A replay of exact ids. Raises RequestError: this device cannot replay."""
    if not isinstance(llm.device, CpuDevice):
        raise RequestError(f"{llm.name} runs on a device that cannot replay, so it cannot be looked into")
    return Replay(llm.device, ids, budget_bytes(budget))


def ids_of(llm: LLM, prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]) -> list[int]:
    """Token ids of a text, ids, or a conversation."""
    if isinstance(prompt, str):
        llm.check_text(prompt)
        return llm.tokenize(prompt)
    if prompt and isinstance(prompt[0], Mapping):
        return llm.tokenize_chat(cast("Sequence[Mapping[str, Any]]", prompt))
    return [int(cast("int", i)) for i in prompt]


def inspect(
    llm: LLM,
    prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
    params: SamplingParams | None = None,
    *,
    level: Level = "summary",
    budget: int | str | None = None,
    top_k: int = 20,
) -> Trace:
    """Answer a prompt and look into it. params: None takes the likeliest token, once; max_tokens=0 answers nothing."""
    if level not in get_args(Level):
        raise RequestError(f"level={level!r} is none; choose {', '.join(get_args(Level))}", param="level")
    if params is not None and params.n != 1:
        raise RequestError("a trace is of one answer; give n=1", param="n")
    ids = ids_of(llm, prompt)
    params = replace(params or GREEDY, logprobs=0, logprobs_mode="raw_logprobs")
    if params.max_tokens == 0:
        seed = params.seed if params.seed is not None else 0
        return trace_of(llm, ids, len(ids), params, seed, [], level=level, budget=budget, top_k=top_k)
    _, trace = _served(llm, ids, params, level, budget, top_k)
    return trace


def inspect_with_receipt(
    llm: LLM,
    prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
    params: SamplingParams,
    *,
    level: Level = "summary",
    budget: int | str | None = None,
) -> tuple[Trace, dict[str, Any] | None]:
    """As `inspect`, and the receipt of the answer; None where nothing was answered."""
    from pellucid.probes.receipt import receipt_of

    if params.max_tokens == 0:
        return inspect(llm, prompt, params, level=level, budget=budget), None
    params = replace(params, logprobs=0, logprobs_mode="raw_logprobs")
    result, trace = _served(llm, ids_of(llm, prompt), params, level, budget, 20)
    return trace, receipt_of(llm, result, params)


def _served(
    llm: LLM, ids: list[int], params: SamplingParams, level: Level, budget: int | str | None, top_k: int
) -> tuple[RequestOutput, Trace]:
    """Have the prompt answered, watch it, and look into it."""
    with Recorder(llm.engine.hub) as recorder:
        [result] = llm.generate([ids], params, progress=False)
    trace = trace_of_output(llm, result, params, level=level, budget=budget, top_k=top_k)
    trace.events, trace.dropped = recorder.events_of(result.request_id), recorder.dropped
    return result, trace


def trace_of_output(
    llm: LLM,
    result: RequestOutput,
    params: SamplingParams,
    *,
    index: int = 0,
    level: Level = "summary",
    budget: int | str | None = None,
    top_k: int = 20,
) -> Trace:
    """Look into an answer that was given; `params` are those that it was asked with."""
    answer = result.outputs[index]
    if result.error is not None:
        raise RequestError(f"the answer broke off: {result.error}")
    live: list[float | None] = [None] * len(answer.token_ids)
    raw = (params.logprobs_mode or llm.config.logprobs_mode) == "raw_logprobs"
    if answer.logprobs is not None and raw:
        live = [entry[token].logprob for token, entry in zip(answer.token_ids, answer.logprobs, strict=True)]
    ids = [*result.prompt_token_ids, *answer.token_ids]
    return trace_of(
        llm,
        ids,
        len(result.prompt_token_ids),
        params,
        result.seed,
        live,
        choice=index,
        level=level,
        budget=budget,
        top_k=top_k,
    )


def trace_of(
    llm: LLM,
    ids: list[int],
    prompt_len: int,
    params: SamplingParams,
    seed: int,
    live: list[float | None],
    *,
    choice: int = 0,
    level: Level = "summary",
    budget: int | str | None = None,
    top_k: int = 20,
) -> Trace:
    """Look into exact ids."""
    run = replay_of(llm, ids, budget)
    scores, norms, heads = replayed(run, level, top_k)
    ends = frozenset(params.stop_token_ids)
    return Trace(
        llm.name,
        ids,
        prompt_len,
        [piece_of(llm, i) for i in ids],
        llm.spell(params),
        seed,
        choice,
        tuple(sorted(ends if params.ignore_eos else ends | llm.tokenizer.stop_ids)),
        scores,
        live,
        norms,
        heads,
        replay=run,
        matcher=lambda: llm.matcher(params),
    )


def piece_of(llm: LLM, token: int) -> bytes:
    """What a token spells; nothing for the padding of the vocabulary."""
    return llm.tokenizer.token_bytes(token) if token < llm.tokenizer.vocab_size else b""


def run_with_cache(
    llm: LLM,
    prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
    names_filter: str | Sequence[str] | Callable[[str], bool] | None = None,
    *,
    positions: Sequence[int] | None = None,
    budget: int | str | None = None,
) -> tuple[F32, dict[str, F32]]:
    """(logits (tokens, vocab), values by name) of one forward. See LLM.run_with_cache."""
    run = replay_of(llm, ids_of(llm, prompt), budget)
    names = [n for n in run.anatomy.names if names_filter(n)] if callable(names_filter) else names_filter
    rows = None if positions is None else [p + len(run.tokens) if p < 0 else p for p in positions]
    if rows is not None and not all(0 <= p < len(run.tokens) for p in rows):
        raise RequestError(f"positions are 0 to {len(run.tokens) - 1}", param="positions")
    wanted = list(dict.fromkeys([*([names] if isinstance(names, str) else names or ["*"]), "logits"]))
    values = cached(run, wanted, rows)
    asked = set(run.anatomy.select(wanted[:-1])) if wanted[:-1] else {"logits"}
    return values["logits"], {name: value for name, value in values.items() if name in asked}


def run_with_hooks(
    llm: LLM,
    prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
    fwd_hooks: Sequence[tuple[str, FwdHook]],
    *,
    budget: int | str | None = None,
) -> F32:
    """Logits (tokens, vocab) of a fork whose values the hooks may change. See LLM.run_with_hooks."""
    run = replay_of(llm, ids_of(llm, prompt), budget)
    by_name: dict[str, list[FwdHook]] = {}
    for name, hook in fwd_hooks:
        by_name.setdefault(run.anatomy.real(name), []).append(hook)
    beside = [n for n in by_name if n in run.behind or n.endswith((".hook_attn_scores", ".hook_pattern"))]
    if beside:
        raise RequestError(
            f"{beside[0]} cannot be changed: hook values before the last norm, and hook_z in the place of patterns",
            param="fwd_hooks",
        )
    hooks: dict[str, Hook] = {name: _chain(name, found) for name, found in by_name.items()}
    out = np.empty((len(run.tokens), run.device.vocab_size), np.float32)
    if out.nbytes > run.spare:
        raise RequestError(f"logits of {len(out)} tokens take {out.nbytes >> 20} MiB; raise the budget", param="budget")
    last = run.anatomy.last
    name = last + ".patched" if last in hooks else last
    for part in run.run([name], hooks=hooks):
        first = int(part.positions[0])
        for at, logits in run.unembed(part.of(name)):
            out[first + at : first + at + len(logits)] = logits
    return out


def _chain(name: str, found: list[FwdHook]) -> Hook:
    def hook(x: F32, rows: NDArray[np.int32]) -> None:
        for one in found:
            new = one(x, name)
            if new is not None:
                x[:] = np.asarray(new, np.float32)

    return hook


def fill_outputs(
    llm: LLM,
    result: RequestOutput,
    params: SamplingParams,
    *,
    attentions: bool,
    hidden_states: bool,
    scores: bool,
    logits: bool,
    budget: int | str | None = None,
) -> None:
    """Put what Hugging Face's generate gives with return_dict_in_generate on each answer (one of a batch: no first axis
    is left out, it is 1): a tuple with an entry for each token drawn, the first of which covers the whole prompt.

    attentions: layer → (1, heads, queries, keys). hidden_states: n_layers + 1 of (1, queries, d_model), the last behind
    the final norm. logits: raw, (1, vocab). scores: after every stage before the draw.
    """
    for answer in result.outputs:
        prompt = len(result.prompt_token_ids)
        ids = [*result.prompt_token_ids, *answer.token_ids]
        if not answer.token_ids:
            continue
        run = replay_of(llm, ids[:-1], budget)  # the last token was drawn, and never computed
        count = len(run.anatomy.layers)
        final = "ln_final.hook_scaled"
        names: list[str] = []
        if attentions:
            names += [f"blocks.{i}.attn.hook_pattern" for i in range(count)]
        if hidden_states:
            names += [*run.anatomy.resid()[:-1], final]
        values = cached(run, names) if names else {}
        spans = [(0, prompt), *((i, i + 1) for i in range(prompt, len(ids) - 1))]
        if attentions:
            answer.attentions = tuple(
                tuple(values[f"blocks.{i}.attn.hook_pattern"][None, :, a:b, :b] for i in range(count)) for a, b in spans
            )
        if hidden_states:
            hidden = [*run.anatomy.resid()[:-1], final]
            answer.hidden_states = tuple(tuple(values[name][None, a:b] for name in hidden) for a, b in spans)
        if scores or logits:
            rows = cached(run, ["logits"], range(prompt - 1, len(ids) - 1))["logits"]
            ends = frozenset(params.stop_token_ids)
            ends = ends if params.ignore_eos else ends | llm.tokenizer.stop_ids
            if logits:
                answer.logits = tuple(row[None] for row in rows)
            if scores:
                matcher, params = llm.matcher(params), llm.spell(params)
                found: list[F32] = []
                for i, row in enumerate(rows):
                    if matcher is not None:
                        matcher.fill()
                    allowed = None if matcher is None else matcher.mask
                    key = {"seed": result.seed, "choice": answer.index}
                    found.append(processed(row, params, ids[: prompt + i], prompt, ends, allowed, **key)[None])
                    if matcher is not None and i + 1 < len(rows):
                        matcher.accept(answer.token_ids[i])
                answer.scores = tuple(found)
