"""A server under load: tokens a second, time to the first token, time between tokens, and what overload does.

    python benchmarks/serve MODEL                    HTTP against the engine without HTTP, in turns
    python benchmarks/serve MODEL --peer COMMAND     and another server: {model}, {port}, {streams}, {threads}
    python benchmarks/serve MODEL --against-static   continuous batching against one at a time and static batches
    python benchmarks/serve MODEL --agents           what the prefix cache saves agents that share instructions
    python benchmarks/serve MODEL --overload         ten times the requests that fit
    python benchmarks/serve MODEL --flat 10000       memory over many requests

Law: what is compared runs in turns in one process's life, medians are compared, and only ratios count.
The generator shares the machine with the server, so the ratio to the engine alone counts its cost against the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]


def against_engine(args: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """16 streams, 128 tokens in, 64 out: the server, the engine alone, and a peer, round by round."""
    import direct
    import load
    import report
    import servers
    from workload import Text

    from pellucid import LLM

    with ExitStack() as stack:
        llm = stack.enter_context(LLM(args.model, pin=args.pin, ctx=1024, max_seqs=args.streams, prefix_cache=False))
        port, _ = stack.enter_context(
            servers.pellucid(
                args.model, logs / "pellucid.log", "--ctx", "1024", "--max-seqs", str(args.streams), "--no-prefix-cache"
            )
        )
        ports = {"pellucid": port}
        if args.peer:
            ports["peer"] = servers.free_port()
            given = {"model": args.model, "port": ports["peer"], "streams": args.streams, "threads": llm.config.threads}
            command = args.peer.format(**given).split()
            stack.enter_context(servers.running(command, ports["peer"], logs / "peer.log"))
        text = Text(llm.tokenizer)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in ports}
        alone: list[float] = []
        for number in range(args.rounds + 1):
            prompts = text.prompts(args.requests, args.prompt, number)
            bodies = [load.body(prompt, args.tokens) for prompt in prompts]
            seconds = direct.closed(llm.worker, prompts, args.tokens, args.streams)
            figures = {
                name: report.summary(*asyncio.run(load.closed(port, bodies, args.streams)))
                for name, port in ports.items()
            }
            if number:  # the first round warms up
                alone.append(args.requests * args.tokens / seconds)
                for name, one in figures.items():
                    found[name].append(one)
                rates = "  ".join(f"{name} {one['tokens_per_second']:.1f}" for name, one in figures.items())
                print(f"round {number}: engine {alone[-1]:.1f}  {rates} tok/s", file=sys.stderr)
    engine = sorted(alone)[len(alone) // 2]
    result: dict[str, Any] = {"engine_tokens_per_second": round(engine, 1)}
    print(f"{'engine without HTTP':24} {engine:9.1f} tok/s")
    for name, rounds in found.items():
        result[name] = report.middle(rounds)
        ratios = sorted(one["tokens_per_second"] / rate for one, rate in zip(rounds, alone, strict=True))
        result[name]["of_engine"] = round(ratios[len(ratios) // 2], 3)
        print(report.line(name, result[name]), f"  {result[name]['of_engine']:.1%} of the engine")
    return result


def against_static(args: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Mixed lengths, all there from the start: continuous, one at a time, in static batches."""
    import load
    import report
    import servers
    from workload import Text, mixed

    async def batches(port: int, bodies: list[dict[str, Any]]) -> tuple[list[Any], float]:
        found: list[Any] = []
        began = time.perf_counter()
        for i in range(0, len(bodies), args.streams):
            part, _ = await load.closed(port, bodies[i : i + args.streams], args.streams)
            found += part
        return found, time.perf_counter() - began

    text = Text(tokenizer_of(args.model))
    options = ["--ctx", "1024", "--max-seqs", str(args.streams), "--no-prefix-cache"]
    found: dict[str, list[dict[str, Any]]] = {"continuous": [], "static batches": [], "one at a time": []}
    with servers.pellucid(args.model, logs / "pellucid.log", *options) as (port, _):
        for number in range(args.rounds):
            bodies = mixed(text, args.requests, number)
            found["continuous"].append(report.summary(*asyncio.run(load.closed(port, bodies, args.streams))))
            found["static batches"].append(report.summary(*asyncio.run(batches(port, bodies))))
            found["one at a time"].append(report.summary(*asyncio.run(load.closed(port, bodies, 1))))
    result = {name: report.middle(rounds) for name, rounds in found.items()}
    for name, figures in result.items():
        gain = result["continuous"]["tokens_per_second"] / figures["tokens_per_second"]
        print(report.line(name, figures), f"  continuous: {gain:.2f} ×")
    return result


def for_agents(args: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Agents of many calls each, with the prefix cache and without."""
    import load
    import report
    import servers
    from connection import Connection, Seen
    from workload import Agent, Text, agents

    async def run(port: int, all_agents: list[Agent]) -> tuple[list[Seen], float]:
        async def one(agent: Agent) -> list[Seen]:
            connection = await Connection.to("127.0.0.1", port)
            found = [await connection.ask(load.COMPLETIONS, call) for call in agent.calls(2048)]
            connection.close()
            return found

        began = time.perf_counter()
        found = await asyncio.gather(*map(one, all_agents))
        return [seen for part in found for seen in part], time.perf_counter() - began

    text = Text(tokenizer_of(args.model))
    options = {"cache": ("--prefix-cache",), "no cache": ("--no-prefix-cache",)}
    result: dict[str, Any] = {}
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in options}
    with ExitStack() as stack:
        ports = {
            name: stack.enter_context(
                servers.pellucid(args.model, logs / f"{name}.log", "--ctx", "2048", "--kv-pages", "2048", *option)
            )[0]
            for name, option in options.items()
        }
        for number in range(args.rounds):
            for name, port in ports.items():
                found, seconds = asyncio.run(run(port, agents(text, args.agents_count, args.calls, number)))
                rounds[name].append(report.summary(found, seconds))
                hit = sum(seen.usage["prompt_tokens_details"]["cached_tokens"] for seen in found if seen.usage)
                rounds[name][-1]["cached"] = hit / rounds[name][-1]["prompt_tokens"]
    for name in options:
        result[name] = report.middle(rounds[name])
        print(report.line(name, result[name]), f"  {result[name]['cached']:.1%} of prompt tokens from the cache")
    gain = result["no cache"]["seconds"] / result["cache"]["seconds"]
    print(f"with the prefix cache the agents are done {gain:.2f} × as soon")
    return result


def overload(args: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Ten times the requests a second that the server finishes when it is just full."""
    import load
    import report
    import servers
    from workload import Text

    text = Text(tokenizer_of(args.model))
    options = ["--ctx", "1024", "--max-seqs", str(args.streams), "--max-queue", str(args.queue), "--no-prefix-cache"]
    full: list[dict[str, Any]] = []
    over: list[dict[str, Any]] = []
    with servers.pellucid(args.model, logs / "pellucid.log", *options) as (port, process):
        before = process.memory_info().rss
        for number in range(args.rounds + 1):
            bodies = [load.body(prompt, args.tokens) for prompt in text.prompts(args.requests, args.prompt, number)]
            at_capacity = report.summary(*asyncio.run(load.closed(port, bodies, args.streams)))
            rate = args.factor * at_capacity["requests"] / at_capacity["seconds"]
            found, late = asyncio.run(load.poisson(port, bodies, rate, args.seconds, number))
            refused = [seen for seen in found if seen.status == 429]
            others = sorted({seen.status for seen in found} - {200, 429})
            if others or not refused:
                raise RuntimeError(f"{len(refused)} were refused with 429, and there were answers of status {others}")
            times = [seen.ended - seen.sent for seen in refused]
            figures = report.summary(found, args.seconds)
            figures |= {
                "rate": round(rate, 1),
                "refused": len(refused),
                "refused_ms": {"p50": report.percentile(times, 50), "p99": report.percentile(times, 99)},
                "late_ms": {"p50": report.percentile(late, 50), "p99": report.percentile(late, 99)},
            }
            if number:
                full.append(at_capacity)
                over.append(figures)
        grown = process.memory_info().rss - before
    result = {"at_capacity": report.middle(full), "overload": report.middle(over), "grown_mib": round(grown / 2**20, 1)}
    print(report.line("at capacity", result["at_capacity"]))
    print(report.line(f"overload × {args.factor}", result["overload"]))
    ratio = result["overload"]["itl_ms"]["p99"] / result["at_capacity"]["itl_ms"]["p99"]
    refused_ms, late_ms = result["overload"]["refused_ms"], result["overload"]["late_ms"]
    result["itl_p99_ratio"] = round(ratio, 3)
    print(
        f"inter-token p99 {ratio:.2f} × (due ≤ 1.5 ×); {result['overload']['refused']:.0f} refused in "
        f"{refused_ms['p50']:.1f} / {refused_ms['p99']:.1f} ms (due p99 ≤ 50 ms) at {result['overload']['rate']:.0f} "
        f"requests/s; the generator was {late_ms['p99']:.1f} ms late at p99; memory grew by {grown / 2**20:.1f} MiB"
    )
    return result


def flat(args: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Memory of the server over many short requests."""
    import load
    import servers
    from workload import Text

    text = Text(tokenizer_of(args.model))
    marks: list[tuple[int, float]] = []
    options = ["--ctx", "1024", "--max-seqs", str(args.streams)]
    with servers.pellucid(args.model, logs / "pellucid.log", *options) as (port, process):
        part = max(1, args.flat // 20)
        for number in range(20):
            bodies = [load.body(prompt, 8) for prompt in text.prompts(part, 32, number)]
            found, _ = asyncio.run(load.closed(port, bodies, args.streams))
            if any(seen.status != 200 or seen.fault for seen in found):
                raise RuntimeError("an answer failed")
            marks.append(((number + 1) * part, process.memory_info().rss / 2**20))
            print(f"{marks[-1][0]:7} requests: {marks[-1][1]:8.1f} MiB", file=sys.stderr)
    half = marks[len(marks) // 2]
    grown = marks[-1][1] - half[1]
    print(f"from request {half[0]} to {marks[-1][0]} memory grew by {grown:.1f} MiB, to {marks[-1][1]:.0f} MiB")
    return {"marks": marks, "grown_mib_second_half": round(grown, 2)}


def tokenizer_of(model: str) -> Any:
    """The model's tokenizer, without its weights."""
    from pellucid.checkpoint.open import open_checkpoint
    from pellucid.models.pull import resolve
    from pellucid.text.tokenizer import Tokenizer

    checkpoint = open_checkpoint(resolve(model))
    try:
        return Tokenizer.from_source(checkpoint.tokenizer)
    finally:
        checkpoint.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--pin", action="store_true", help="threads on cores of their own, with and without HTTP")
    parser.add_argument("--peer", help="command of another server of /v1/completions")
    parser.add_argument("--against-static", action="store_true")
    parser.add_argument("--agents", action="store_true")
    parser.add_argument("--overload", action="store_true")
    parser.add_argument("--flat", type=int, metavar="REQUESTS")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--requests", type=int, default=96, help="of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--agents-count", type=int, default=4)
    parser.add_argument("--calls", type=int, default=50, help="of one agent")
    parser.add_argument("--factor", type=float, default=10, help="of the load that fits, for --overload")
    parser.add_argument("--queue", type=int, default=16, help="requests that may wait, for --overload")
    parser.add_argument("--seconds", type=float, default=15, help="of overload, a round")
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    args = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="pellucid-serve-"))
    os.environ["PELLUCID_PIN"] = str(int(args.pin))
    modes = [
        (args.against_static, against_static),
        (args.agents, for_agents),
        (args.overload, overload),
        (args.flat, flat),
    ]
    run = next((mode for wanted, mode in modes if wanted), against_engine)
    result = run(args, logs)
    if args.out:
        named = {"mode": run.__name__, "model": Path(args.model).name, **result}
        args.out.write_text(json.dumps(named, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
