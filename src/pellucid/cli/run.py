"""`pellucid run`: one prompt, one answer, streamed.

Law: stdout carries the answer and nothing else; whatever else there is to say goes to stderr.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.cli import options
from pellucid.cli.inputs import read_argument, visible
from pellucid.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.results import Chunk, RequestOutput, TokenLogprobs


def run(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - or nothing reads standard input")] = None,
    model: options.Model = options.DEFAULT_MODEL,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = 0.7,
    top_k: options.TopK = 0,
    top_p: options.TopP = 0.9,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    system: options.System = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template")] = False,
    logprobs: Annotated[
        int | None, typer.Option(help="Show each token's logprob and the K likeliest (0 to 20) on stderr, or in --json")
    ] = None,
    threads: options.Threads = None,
    ctx: options.Ctx = None,
    kv: options.KV = "f16",
    tokenizer: options.Tokenizer = None,
    as_json: options.Json = False,
    stats: Annotated[bool, typer.Option("--stats", help="Counts, times and seed on stderr")] = False,
) -> None:
    """Answer one prompt, streamed to stdout.

    Instruct models get the prompt through their chat template; models without one continue it as raw text.
    """
    if raw and system is not None:
        raise ConfigError("--system needs the chat template, which --raw leaves out; give one of the two")
    params = options.sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop,
        logprobs=logprobs,
    )
    text = read_argument(prompt, 'pellucid run "What is gravity?"', chomp=True)
    started = time.perf_counter()
    with options.load(model, threads, ctx, kv, tokenizer=tokenizer) as llm:
        loaded = time.perf_counter()
        ids = _tokens(llm, text, system, raw)
        limit = max_tokens if max_tokens is not None else llm.room(len(ids))
        first: float | None = None
        result: RequestOutput | None = None
        try:
            with closing(llm.stream(ids, replace(params, max_tokens=limit))) as stream:
                for chunk in stream:
                    first = time.perf_counter() if first is None else first
                    result = chunk.request
                    if not as_json:
                        write(chunk)
        except KeyboardInterrupt:
            if first is not None and sys.stdout.isatty():
                print(flush=True)  # the shell's prompt begins on a line of its own
            raise
        ended = time.perf_counter()
    if result is None:
        return
    answer = result.outputs[0]
    if as_json:
        print(json.dumps(_as_dict(result, text, model), ensure_ascii=False))
    else:
        if not answer.text.endswith("\n"):
            print(flush=True)
        if answer.logprobs is not None:
            print(_logprob_table(answer.token_ids, answer.logprobs), file=sys.stderr)
    if answer.finish_reason == "error":
        raise RequestError(f"the answer broke off: {result.error}")
    if answer.finish_reason == "length" and max_tokens is None:
        print(f"note: cut after {len(answer.token_ids)} tokens; --max-tokens and --ctx allow more", file=sys.stderr)
    if stats:
        first = ended if first is None else first
        print(stats_line(result, first - loaded, ended - first, load=loaded - started), file=sys.stderr)


def write(chunk: Chunk) -> None:
    """Print a chunk's text at once. On a terminal, control characters that could steer it are made visible."""
    if chunk.text:
        sys.stdout.write(visible(chunk.text) if sys.stdout.isatty() else chunk.text)
        sys.stdout.flush()


def stats_line(result: RequestOutput, to_first: float, decoding: float, *, load: float | None = None) -> str:
    """One line about an answer: counts, times in seconds, rate, seed."""
    answer = result.outputs[0]
    count, prompt = len(answer.token_ids), len(result.prompt_token_ids)
    parts = [f"{load:.2f} s to load"] if load is not None else []
    cached = f" ({result.num_cached_tokens} cached)" if result.num_cached_tokens else ""
    parts += [f"{prompt} prompt tokens{cached}", f"{to_first:.2f} s to first token", f"{count} generated"]
    if count > 1 and decoding > 0:
        parts.append(f"{(count - 1) / decoding:.1f} tok/s")
    parts += [f"ended by {_ending(result)}", f"seed {result.seed}"]
    return " · ".join(parts)


def _ending(result: RequestOutput) -> str:
    answer = result.outputs[0]
    return f"stop {answer.stop_reason!r}" if answer.stop_reason is not None else answer.finish_reason or "Ctrl-C"


def _tokens(llm: LLM, text: str, system: str | None, raw: bool) -> list[int]:
    if raw:
        llm.check_text(text)
        return llm.tokenize(text)
    if llm.template.source is None:
        if system is not None:
            raise ConfigError(f"{llm.name} has no chat template, so --system cannot be given to it")
        print(f"note: {llm.name} has no chat template; the prompt is continued as raw text", file=sys.stderr)
        llm.check_text(text)
        return llm.tokenize(text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return llm.tokenize_chat([*messages, {"role": "user", "content": text}])


def _as_dict(result: RequestOutput, prompt: str, model: str) -> dict[str, object]:
    answer = result.outputs[0]
    out: dict[str, object] = {
        "model": model,
        "prompt": prompt,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "seed": result.seed,
        "usage": {
            "prompt_tokens": len(result.prompt_token_ids),
            "cached_tokens": result.num_cached_tokens,
            "completion_tokens": len(answer.token_ids),
        },
        "prompt_token_ids": result.prompt_token_ids,
        "token_ids": answer.token_ids,
    }
    if answer.logprobs is not None:
        out["cumulative_logprob"] = answer.cumulative_logprob
        out["logprobs"] = [
            [{"id": id, "token": lp.decoded_token, "logprob": lp.logprob, "rank": lp.rank} for id, lp in entry.items()]
            for entry in answer.logprobs
        ]
    return out


def _logprob_table(ids: list[int], logprobs: list[TokenLogprobs]) -> str:
    lines: list[str] = []
    for token, entry in zip(ids, logprobs, strict=True):
        chosen = entry[token]
        others = "  ".join(f"{lp.decoded_token!r} {lp.logprob:.3f}" for lp in entry.values() if lp.rank is not None)
        lines.append(f"{token:>7} {chosen.decoded_token!r:<16} {chosen.logprob:>8.3f}   {others}".rstrip())
    return "\n".join(lines)
