"""`pellucid serve`: the OpenAI API over HTTP.

Law: stdout stays empty; the banner and errors go to stderr. Every option has its PELLUCID_ variable.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid import __version__
from pellucid.cli import options
from pellucid.cli.options import DEFAULT_MODEL

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.pii.find import Finder
    from pellucid.server.keys import Lent


def serve(
    model: Annotated[
        str,
        typer.Argument(
            envvar="PELLUCID_MODEL", help="Name, org/repo[:QUANT], .gguf file or folder; pulled on first use"
        ),
    ] = DEFAULT_MODEL,
    host: Annotated[
        str, typer.Option(envvar="PELLUCID_HOST", help="Address to listen on; others than loopback need a key and TLS")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="PELLUCID_PORT", help="Port to listen on; 0: any that is free", min=0, max=65535)
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="PELLUCID_API_KEY",
            help="Key that clients must send; better in the variable, where `ps` does not show it",
            show_envvar=True,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="PELLUCID_API_KEY_FILE",
            help="File of keys, each with scopes and limits; `pellucid keys new` makes it, SIGHUP has it read again",
        ),
    ] = None,
    ssl_certfile: Annotated[
        Path | None,
        typer.Option(
            envvar="PELLUCID_SSL_CERTFILE", help="Chain of certificates in PEM: speak TLS; SIGHUP has it read again"
        ),
    ] = None,
    ssl_keyfile: Annotated[
        Path | None,
        typer.Option(
            envvar="PELLUCID_SSL_KEYFILE", help="Key of the certificate in PEM, mode 600; default: in the same file"
        ),
    ] = None,
    behind_tls_proxy: Annotated[
        bool,
        typer.Option(
            "--behind-tls-proxy",
            envvar="PELLUCID_BEHIND_TLS_PROXY",
            help="Allow plain HTTP beyond loopback: only a proxy that speaks TLS reaches the address",
        ),
    ] = False,
    served_model_name: Annotated[
        str | None, typer.Option(envvar="PELLUCID_SERVED_MODEL_NAME", help="Name that clients use; default: MODEL")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(envvar="PELLUCID_ALLOWED_HOST", help="Name a proxy may send as Host; may be repeated"),
    ] = None,
    private_stream: Annotated[
        bool,
        typer.Option(
            "--private-stream",
            envvar="PELLUCID_PRIVATE_STREAM",
            help="Send every stream in packets of one size, ten a second, that tell nothing of its tokens",
        ),
    ] = False,
    strict_requests: Annotated[
        bool,
        typer.Option(
            "--strict-requests",
            envvar="PELLUCID_STRICT_REQUESTS",
            help="Refuse requests with fields that nobody knows, instead of warning of them in the answer",
        ),
    ] = False,
    pii: Annotated[
        str | None,
        typer.Option(
            envvar="PELLUCID_PII",
            help="Hide personal data from the model: all, or kinds such as email,phone,card; needs pellucid[pii]",
        ),
    ] = None,
    pii_region: Annotated[
        str,
        typer.Option(envvar="PELLUCID_PII_REGION", help="Of phone numbers without a country's code, such as US or DE"),
    ] = "US",
    audit_log: Annotated[
        Path | None,
        typer.Option(
            envvar="PELLUCID_AUDIT_LOG",
            help="File in which every request is written down, chained by digests, without texts; mode 600",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", envvar="PELLUCID_STRICT", help="Do not start if `pellucid audit` finds a High fault"),
    ] = False,
    tokenizer: options.Tokenizer = None,
    threads: Annotated[
        int | None,
        typer.Option(envvar="PELLUCID_THREADS", help="Threads; default: all cores this process may use", min=1),
    ] = None,
    pin: options.Pin = False,
    ctx: Annotated[
        int | None,
        typer.Option(
            "--ctx",
            "--max-model-len",
            envvar="PELLUCID_CTX",
            help="Longest sequence in tokens; default: the model's, at most 4096",
            min=16,
        ),
    ] = None,
    kv: Annotated[
        str, typer.Option("--kv", "--kv-cache-dtype", envvar="PELLUCID_KV", help="Format of the KV cache: f16 or q8_0")
    ] = "f16",
    kv_pages: Annotated[
        int | None,
        typer.Option(
            "--kv-pages",
            "--num-gpu-blocks-override",
            envvar="PELLUCID_KV_PAGES",
            help="Pages of 16 tokens in the KV cache; default: four sequences of full length, as far as memory allows",
            min=2,
        ),
    ] = None,
    max_seqs: Annotated[
        int,
        typer.Option(
            "--max-seqs", "--max-num-seqs", envvar="PELLUCID_MAX_SEQS", help="Answers that run together", min=1
        ),
    ] = 64,
    max_queue: Annotated[
        int, typer.Option(envvar="PELLUCID_MAX_QUEUE", help="Answers that may wait; more are refused with 429", min=0)
    ] = 256,
    token_budget: Annotated[
        int,
        typer.Option(
            "--token-budget", "--max-num-batched-tokens", envvar="PELLUCID_TOKEN_BUDGET", help="Rows of one step", min=1
        ),
    ] = 512,
    max_itl_ms: Annotated[
        int | None,
        typer.Option(
            "--max-itl-ms",
            envvar="PELLUCID_MAX_ITL_MS",
            help="Milliseconds between two tokens of an answer: long prompts go in pieces that fit; default: no bound",
            min=1,
        ),
    ] = None,
    prefix_cache: Annotated[
        bool,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            envvar="PELLUCID_PREFIX_CACHE",
            help="Keep the pages of finished prompts for those that begin alike",
        ),
    ] = True,
    seed: Annotated[
        int | None, typer.Option(envvar="PELLUCID_SEED", help="Seed of requests that bring none; default: drawn")
    ] = None,
    logprobs_mode: Annotated[
        str,
        typer.Option(
            envvar="PELLUCID_LOGPROBS_MODE",
            help="What logprobs describe, unless a request says: raw_logprobs (the model) or processed_logprobs",
        ),
    ] = "raw_logprobs",
    deadline: Annotated[
        float,
        typer.Option(envvar="PELLUCID_DEADLINE", help="Seconds that one request may take; 0: no limit", min=0),
    ] = 300.0,
    exit_on_stall: Annotated[
        float | None,
        typer.Option(
            envvar="PELLUCID_EXIT_ON_STALL",
            help="Seconds without a step, while there is work, after which the process ends; default: never",
            min=1,
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(envvar="PELLUCID_GRACE", help="Seconds that running requests have left after Ctrl-C", min=0),
    ] = 30.0,
) -> None:
    """Serve the OpenAI API over HTTP, on this machine only unless --host says otherwise."""
    from pellucid.server.limits import Limits
    from pellucid.server.serve import serve as serve_forever

    notes: list[str] = []
    tls = ssl_certfile is not None
    finder: Finder | None = None
    if pii is not None:
        from pellucid.pii.find import Finder
        from pellucid.pii.kinds import NAMES

        finder = Finder(NAMES if pii == "all" else pii.replace(" ", "").split(","), pii_region)
        notes.append(f"  hidden from the model, as far as it is found: {', '.join(finder.names)}")

    def load() -> LLM:
        from pellucid.cli import verify
        from pellucid.llm import LLM

        llm = LLM(
            model,
            tokenizer=tokenizer,
            threads=threads,
            pin=pin,
            ctx=ctx,
            kv=kv,
            kv_pages=kv_pages,
            max_seqs=max_seqs,
            max_queue=max_queue,
            token_budget=token_budget,
            max_itl_ms=max_itl_ms,
            prefix_cache=prefix_cache,
            seed=seed,
            logprobs_mode=logprobs_mode,
        )
        notes.extend(memory_lines(llm))
        if (result := verify.of(llm)) is not None:
            notes.append("  " + verify.line(result))
        return llm

    def check(host: str, port: int, keys: Lent | None) -> None:
        from pellucid.cli.audit import refuse_high

        refuse_high(address(host, port, tls), keys, ssl_certfile)

    def ready(llm: LLM, host: str, port: int) -> None:
        keyed = api_key is not None or api_key_file is not None
        lines = [banner(llm, served_model_name or model, host, port, keyed, tls), *notes]
        print("\n".join(lines), file=sys.stderr, flush=True)

    serve_forever(
        load,
        host,
        port,
        name=served_model_name or model,
        api_key=api_key,
        api_key_file=api_key_file,
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
        behind_tls_proxy=behind_tls_proxy,
        allowed_hosts=allowed_host or (),
        private_stream=private_stream,
        strict_requests=strict_requests,
        pii=finder,
        audit_log=audit_log,
        limits=Limits(deadline=deadline, grace=grace, exit_on_stall=exit_on_stall),
        check=check if strict else None,
        ready=ready,
    )


def address(host: str, port: int, tls: bool = False) -> str:
    """A URL by which this machine reaches the server."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http{'s' * tls}://{shown}:{port}"


def banner(llm: LLM, name: str, host: str, port: int, keyed: bool, tls: bool) -> str:
    """What an operator wants to know at the start: model, address, room, and how to ask something."""
    config, pool = llm.config, llm.engine.pool
    url = address(host, port, tls)
    key = ' -H "Authorization: Bearer $PELLUCID_API_KEY"' if keyed else ""
    body = '{"messages": [{"role": "user", "content": "What is a transformer?"}], "max_tokens": 99, "stream": true}'
    lines = [
        f"pellucid {__version__} serves {name} at {url}/v1",
        f"  context {llm.engine.context} tokens · {config.threads} threads · up to {config.max_seqs} answers together",
        f"  KV cache: {pool.page_count} pages of {pool.page_size} tokens, {config.kv}",
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\",
        f"    -d '{body}'",
        "  Ctrl-C lets running answers finish; a second one ends at once",
    ]
    if not tls and not _loopback(host):
        lines.append(f"  plain HTTP beyond loopback: see to it that only the proxy with TLS reaches {host} port {port}")
    return "\n".join(lines)


def memory_lines(llm: LLM) -> list[str]:
    """What the plan says each part of memory takes beside what the loaded device has, a line each."""
    from pellucid.devices.ledger import ledger_of, resident, unloaded
    from pellucid.models.decoder import decoder_graph
    from pellucid.models.store import size_text

    if llm.checkpoint is None:
        return []
    ledger = ledger_of(unloaded(llm.checkpoint, decoder_graph(llm.spec), llm.config))
    planned, actual = ledger.lines(), llm.device.memory()
    rows = [
        f"    {part:<8} {size_text(planned[part]):>9} planned  {size_text(nbytes):>9} now"
        for part, nbytes in actual.items()
    ]
    whole = f"    {'process':<8} {size_text(ledger.total - ledger.program):>9} planned, "
    return ["  memory", *rows, whole + f"beside the program; {size_text(resident())} resident now"]


def _loopback(host: str) -> bool:
    from pellucid.server.auth import is_loopback

    return is_loopback(host)
