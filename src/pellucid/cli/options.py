"""Options that several commands share, so that they read and behave alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.sampling.params import SamplingParams

DEFAULT_MODEL = "smollm2"
DEFAULT_MAX_SEQS = 64

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        envvar="PELLUCID_MODEL",
        help="Name, org/repo[:QUANT], .gguf file or folder; pulled on first use",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        envvar="PELLUCID_TOKENIZER",
        help="Vocabulary instead of the model's own: tokenizer.json, tekken.json, folder, .gguf or org/repo",
    ),
]
Threads = Annotated[
    int | None, typer.Option(envvar="PELLUCID_THREADS", help="Threads; default: all cores this process may use", min=1)
]
Pin = Annotated[
    bool,
    typer.Option(
        "--pin",
        envvar="PELLUCID_PIN",
        help="Keep each thread on a core of its own; for a machine that does nothing else",
    ),
]
Ctx = Annotated[
    int | None,
    typer.Option(envvar="PELLUCID_CTX", help="Longest sequence in tokens; default: the model's, at most 4096", min=16),
]
KV = Annotated[str, typer.Option(envvar="PELLUCID_KV", help="Format of the KV cache: f16 or q8_0")]
KVPages = Annotated[
    int | None,
    typer.Option(
        "--kv-pages",
        envvar="PELLUCID_KV_PAGES",
        help="Pages of 16 tokens in the KV cache; default: four sequences of full length, as far as memory allows",
        min=2,
    ),
]
System = Annotated[str | None, typer.Option(help="System message for the model")]
MaxTokens = Annotated[
    int | None, typer.Option(help="Longest answer in tokens; default: 512, or what the context leaves", min=1)
]
Temperature = Annotated[float, typer.Option(help="0 always takes the likeliest token; higher is more varied")]
TopK = Annotated[int, typer.Option(help="Keep the K likeliest tokens; 0: all")]
TopP = Annotated[float, typer.Option(help="Keep the likeliest tokens that together have probability P")]
MinP = Annotated[float, typer.Option(help="Drop tokens less likely than P times the likeliest")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1: make tokens that have occurred less likely")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same answer; default: drawn (see --stats)")]
Stop = Annotated[list[str] | None, typer.Option(help="End the answer before this text; may be repeated")]
Url = Annotated[str, typer.Option(envvar="PELLUCID_URL", help="Address of the server")]
ApiKey = Annotated[
    str | None, typer.Option(envvar="PELLUCID_API_KEY", help="Key of the server; better in the variable")
]
DEFAULT_URL = "http://127.0.0.1:8000"
Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout")]


def load(
    model: str,
    threads: int | None,
    ctx: int | None,
    kv: str,
    *,
    prefix_cache: bool = True,
    tokenizer: str | None = None,
    kv_pages: int | None = None,
    max_seqs: int = DEFAULT_MAX_SEQS,
    seed: int | None = None,
) -> LLM:
    """The model that the options ask for."""
    from pellucid.llm import LLM

    return LLM(
        model,
        tokenizer=tokenizer,
        threads=threads,
        ctx=ctx,
        kv=kv,
        kv_pages=kv_pages,
        max_seqs=max_seqs,
        prefix_cache=prefix_cache,
        seed=seed,
        progress=True,
    )


def sampling(
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    seed: int | None,
    stop: list[str] | None,
    logprobs: int | None = None,
) -> SamplingParams:
    """The sampling that the options ask for; the length is settled when the prompt is known."""
    from pellucid.sampling.params import SamplingParams

    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
        logprobs=logprobs,
        max_tokens=None,
    )
