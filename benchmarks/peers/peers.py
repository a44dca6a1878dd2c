"""Pellucid against its peers: the same file, the same threads, the same token ids, A B A B.

    python benchmarks/peers/peers.py MODEL.gguf [--peers llama.cpp ik_llama.cpp openvino] [--isa avx2] [--threads 2]
        [--prompts 512 4096]
        [--streams 1 16] [--depths 4096] [--generate 128] [--repeat 5] [--chunks 4]

Law: each peer runs at its best setting, found by a trial of each; a cell counts only where the perplexity of that
setting is within 3 % of the float32 reference's (tests/golden/perplexity.json) on the same ids. Ratios are of medians
of repetitions that took turns. See README.md here.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import wire
from cells import best_of, number, percent, ratio_of, share_of, told_of
from environments import ENVIRONMENTS, python_of, say
from targets import target_of

import pellucid

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "tests" / "golden"
RESULTS = HERE.parent / "results"
RIGHT = 0.03
CHUNK, FIRST = 512, 256
TRIALS = 2
"""Repetitions of which the best says which setting is."""
Options = dict[str, object]


@dataclass(frozen=True)
class Variant:
    """A setting of a peer: the environment it runs in, and what its script is told."""

    environment: str
    options: Options


@dataclass(frozen=True)
class Peer:
    """An engine: its script, and the settings of which the best is taken."""

    script: str
    variants: dict[str, Variant]
    avx2: dict[str, Variant] = field(default_factory=dict)
    """Settings of a build for AVX2 alone, if there is one."""


def llama_variants(environment: str, build: str = "") -> dict[str, Variant]:
    """The settings of llama.cpp and its kin."""
    return {
        f"{build}{'flash' if flash else 'no flash'}, {'repacked' if repack else 'as stored'}": Variant(
            environment, {"flash": flash, "repack": repack}
        )
        for flash in (True, False)
        for repack in (True, False)
    }


def without_amx() -> dict[str, Variant]:
    """llama.cpp built without AMX, where the processor names AMX: whether the system allows its use is not known."""
    return llama_variants("llama.cpp-avx512", "no AMX, ") if "amx_int8" in _cpuinfo("flags").split() else {}


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(key))
    except (OSError, StopIteration):
        return ""


PEERS = {
    "llama.cpp": Peer(
        "engine_llama.py", llama_variants("llama.cpp") | without_amx(), avx2=llama_variants("llama.cpp-avx2", "AVX2, ")
    ),
    "ik_llama.cpp": Peer("engine_llama.py", llama_variants("ik_llama.cpp")),
    "openvino": Peer(
        "engine_openvino.py",
        {
            "default": Variant("openvino", {"precision": None, "kv": "f16"}),
            "f32": Variant("openvino", {"precision": "f32", "kv": "f16"}),
        },
    ),
}


@dataclass(frozen=True)
class Case:
    """One thing to measure."""

    prompt: int = 0
    """Tokens of a prompt to prefill; 0: decode."""
    streams: int = 1
    depth: int = 1
    steps: int = 0

    def __str__(self) -> str:
        if self.prompt:
            return f"prefill {self.prompt}"
        return (
            f"decode {self.steps}"
            + (f", {self.streams} streams" if self.streams > 1 else "")
            + (f", depth {self.depth}" if self.depth > 1 else "")
        )

    @property
    def tokens(self) -> int:
        """Tokens that are counted."""
        return self.prompt or self.streams * self.steps


class EngineError(Exception):
    """An engine that failed, or is gone."""


class Process:
    """An engine in a process of its own, with a model open."""

    def __init__(self, python: Path, script: str, options: Options, environ: dict[str, str] | None = None) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, HERE / script],
            env=os.environ | (environ or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._seed = 0
        try:
            self.vocab = int(self.ask("open", **options)["vocab"])
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, **values: object) -> dict[str, float]:
        """Ask and wait for the answer."""
        if self._process.stdin is None or self._process.stdout is None:
            raise EngineError("the process has no pipes")
        try:
            print(json.dumps({"what": what} | values), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait(10)
            raise EngineError(f"exit code {self._process.returncode}: {self._last_words()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise EngineError(str(answer["error"])[:300])
        return answer if isinstance(answer, dict) else {"value": answer}

    def _last_words(self) -> str:
        """The last line it wrote that speaks of an error, or the last at all."""
        self._log.seek(0)
        lines = [line.strip() for line in self._log.readlines() if line.strip()]
        told = [line for line in lines if re.search("assert|error|exception", line, re.IGNORECASE)]
        return (told or lines or [""])[-1][:200]

    def measure(self, case: Case, seed: int, vocab: int) -> dict[str, float]:
        """One repetition. Prompts that are prefilled differ by the seed; those of streams do not."""
        if case.prompt:
            return self.ask("prefill", tokens=wire.ids(seed, case.prompt, vocab))
        prompts = [wire.ids(10**6 + stream, case.depth, vocab) for stream in range(case.streams)]
        return self.ask("decode", prompts=prompts, steps=case.steps)

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@dataclass
class Reference:
    """Chunks of token ids and their perplexity in float32; none where the goldens lack the model."""

    chunks: list[list[int]] = field(default_factory=list)
    perplexity: float = math.nan

    @staticmethod
    def of(model: Path, count: int) -> Reference:
        """That of a file, known by its name."""
        golden = json.loads((GOLDEN / "perplexity.json").read_text(encoding="utf-8"))["models"]
        for name, entry in golden.items():
            if count and entry["file"] == model.name and "hf" in entry:
                nats = entry["hf"]["nll_of_chunks"][:count]
                chunks = np.load(GOLDEN / "perplexity_tokens.npz")[name][: len(nats)]
                return Reference(chunks.tolist(), perplexity(sum(nats), len(nats)))
        return Reference()

    def off(self, process: Process) -> float | None:
        """How far an engine's perplexity is from the reference's, as a share of it; None without a reference."""
        if not self.chunks:
            return None
        total = sum(process.ask("nll", tokens=chunk, first=FIRST)["value"] for chunk in self.chunks)
        return perplexity(total, len(self.chunks)) / self.perplexity - 1


def perplexity(nats: float, chunks: int) -> float:
    """Of the scored half of so many chunks."""
    return math.exp(nats / (chunks * (CHUNK - FIRST)))


@dataclass
class Trial:
    """One setting of a peer: its perplexity's distance, and a rate for each case it could run."""

    off: float | None = None
    rates: dict[Case, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """Case → why it could not be run."""

    @property
    def right(self) -> bool:
        """Whether its numbers are."""
        return self.off is not None and abs(self.off) <= RIGHT


class Comparison:
    """One model against the peers."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.cases = [Case(prompt=n) for n in args.prompts]
        self.cases += [Case(streams=n, steps=args.generate) for n in args.streams]
        self.cases += [Case(depth=n, steps=args.generate) for n in args.depths]
        length = max([CHUNK, *args.prompts, *args.depths, 1]) + 2 * args.generate + 64
        streams = max([1, *args.streams])
        self.common: Options = {
            "model": str(args.model), "threads": args.threads, "length": length, "streams": streams,
        }  # fmt: skip
        self.reference = Reference.of(args.model, args.chunks)
        self.seed = 0
        self.our_off: float | None = None
        self.load = os.getloadavg()[0]
        if self.load > 0.5:
            say(f"the load average is {self.load:.1f}: other programs run, and what waits by spinning suffers most")
        self.cells: list[dict[str, object]] = []
        self.trials: dict[str, dict[str, Trial]] = {}

    def run(self) -> None:
        """Measure all; what is measured stays in `cells`."""
        say(f"pellucid: opening {self.args.model.name}")
        isa = {"PELLUCID_ISA": self.args.isa} if self.args.isa else None
        self.ours = Process(Path(sys.executable), "engine_pellucid.py", self.common, isa)
        try:
            self.our_off = self.reference.off(self.ours)
            say(f"pellucid: perplexity {percent(self.our_off)}")
            for name in self.args.peers:
                self._peer(name)
        finally:
            self.ours.close()

    def _peer(self, name: str) -> None:
        variants = self._variants(name)
        trials = self.trials[name] = {v: self._trial(name, v) for v in variants}
        best: dict[str, list[Case]] = {}
        for case in self.cases:
            able = {v: t for v, t in trials.items() if case in t.rates}
            chosen = {v: t for v, t in able.items() if t.right} or able
            if chosen:
                best.setdefault(max(chosen, key=lambda v: chosen[v].rates[case]), []).append(case)
            else:
                self.cells.append({"case": str(case), "peer": name, "counts": False, "failed": _why(trials, str(case))})
        for variant, cases in best.items():
            for case in cases:
                try:
                    process = self._open(name, variant)
                    try:
                        self._cell(name, variant, trials[variant], process, case)
                    finally:
                        process.close()
                except EngineError as error:
                    say(f"{name} ({variant}), {case}: {error}")
                    self.cells.append(
                        {"case": str(case), "peer": name, "counts": False, "failed": {variant: str(error)}}
                    )

    def _variants(self, name: str) -> dict[str, Variant]:
        return PEERS[name].avx2 if self.args.isa == "avx2" else PEERS[name].variants

    def _open(self, name: str, variant: str) -> Process:
        chosen = self._variants(name)[variant]
        return Process(python_of(chosen.environment), PEERS[name].script, self.common | chosen.options)

    def _trial(self, name: str, variant: str) -> Trial:
        """Try a setting on every case; what crashes in one case is begun anew for the next."""
        trial = Trial()
        process: Process | None = None
        try:
            for case in [None, *self.cases]:
                try:
                    if process is None:
                        process = self._open(name, variant)
                    if case is None:
                        trial.off = self.reference.off(process)
                    else:
                        seconds = [
                            process.measure(case, self._next(), self.ours.vocab)["seconds"] for _ in range(TRIALS)
                        ]
                        trial.rates[case] = case.tokens / min(seconds)
                except EngineError as error:
                    trial.failed[str(case or "perplexity")] = str(error)
                    say(f"{name} ({variant}), {case or 'perplexity'}: {error}")
                    if process is None or case is None:
                        break
                    process.close()
                    process = None
        finally:
            if process is not None:
                process.close()
        if "perplexity" not in trial.failed:
            told = ", ".join(f"{case}: {rate:.1f}" for case, rate in trial.rates.items())
            say(f"{name} ({variant}): perplexity {percent(trial.off)}; {told}")
        return trial

    def _cell(self, name: str, variant: str, trial: Trial, peer: Process, case: Case) -> None:
        a: list[float] = []
        b: list[float] = []
        shares: list[float] = []
        with_attention: list[float] = []
        for turn in range(self.args.repeat + 1):
            seed = self._next()
            ours = self.ours.measure(case, seed, self.ours.vocab)
            theirs = peer.measure(case, seed, self.ours.vocab)
            if turn:  # the first is a warm-up
                a.append(case.tokens / ours["seconds"])
                b.append(case.tokens / theirs["seconds"])
                shares.append(ours["least"] / ours["seconds"])
                with_attention.append(ours["least_with_attention"] / ours["seconds"])
        cell: dict[str, object] = {
            "case": str(case),
            "peer": name,
            "variant": variant,
            "perplexity_off": trial.off,
            "counts": trial.right,
            "pellucid": median(a),
            "theirs": median(b),
            "ratio": median(a) / median(b),
            "share_of_roofline": median(shares),
            "share_with_attention": median(with_attention),
            "pellucid_values": a,
            "their_values": b,
        }
        self.cells.append(cell)
        say(f"{case}: {median(a):.1f} against {name}'s {median(b):.1f}, {median(a) / median(b):.2f} x ({variant})")

    def _next(self) -> int:
        self.seed += 1
        return self.seed

    def table(self) -> str:
        """Markdown: a row a case, a column a peer, targets beside what they are of."""
        peers = [name for name in self.args.peers if any(cell["peer"] == name for cell in self.cells)]
        heads = [
            "Pellucid, tok/s (share of roofline)",
            "ratio to the best",
            *(f"{name}, tok/s (ratio)" for name in peers),
        ]
        isa = f", {self.args.isa}" if self.args.isa else ""
        lines = [
            f"| {self.args.model.stem}, {self.args.threads} threads{isa} | {' | '.join(heads)} |",
            "|---" * (1 + len(heads)) + "|",
        ]
        for case in map(str, self.cases):
            row = {str(cell["peer"]): cell for cell in self.cells if cell["case"] == case}
            ours = [cell for cell in row.values() if "pellucid" in cell]
            if not ours:
                continue
            target = target_of(self.args.model.name, case, self.args.isa)
            rate = median(number(cell["pellucid"]) for cell in ours)
            best = best_of(list(row.values()))
            ratio = "no peer counts" if best is None else ratio_of(best, target)
            told = [f"{rate:.1f} ({share_of(ours, target)})", ratio, *(told_of(row.get(name)) for name in peers)]
            lines.append(f"| {case} | {' | '.join(told)} |")
        off = [f"Pellucid {percent(self.our_off)}"]
        for name, trials in self.trials.items():
            off += [
                f"{name} ({v}) {'fails' if 'perplexity' in t.failed else percent(t.off)}" for v, t in trials.items()
            ]
        chunks = len(self.reference.chunks)
        return "\n".join([*lines, "", f"Perplexity against float32, {chunks} chunks: {'; '.join(off)}."])

    def as_dict(self) -> dict[str, object]:
        """All of it, for JSON."""
        return {
            "date": time.strftime("%Y-%m-%d"),
            "model": self.args.model.name,
            "processor": _cpuinfo("model name") or platform.machine(),
            "pellucid": pellucid.__version__,
            "packages": {
                v.environment: ENVIRONMENTS[v.environment].made_of
                for name in self.args.peers
                for v in self._variants(name).values()
            },
            "settings": {k: v for k, v in vars(self.args).items() if k not in ("model", "out")},
            "perplexity": {
                "float32": self.reference.perplexity if self.reference.chunks else None,
                "pellucid_off": self.our_off,
            },
            "load_average": self.load,
            "trials": {
                name: {
                    v: {"perplexity_off": t.off, "failed": t.failed, "rates": {str(c): r for c, r in t.rates.items()}}
                    for v, t in trials.items()
                }
                for name, trials in self.trials.items()
            },
            "cells": self.cells,
        }


def _why(trials: dict[str, Trial], case: str) -> dict[str, str]:
    """Setting → what it failed of: the case itself, or the perplexity before it."""
    return {v: t.failed.get(case, t.failed.get("perplexity", "")) for v, t in trials.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a .gguf file")
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="default: all that can be compared")
    parser.add_argument("--isa", choices=["avx2"], help="Pellucid's kernels, against the peers' builds for the same")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompts", nargs="*", type=int, default=[512, 4096])
    parser.add_argument("--streams", nargs="*", type=int, default=[1, 16])
    parser.add_argument("--depths", nargs="*", type=int, default=[4096], help="contexts that one stream decodes at")
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--chunks", type=int, default=4, help="chunks of 512 ids for the perplexity")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/peers-MODEL.json")
    args = parser.parse_args()
    able = [name for name, peer in PEERS.items() if args.isa is None or peer.avx2]
    args.peers = able if args.peers is None else args.peers
    if unable := [name for name in args.peers if name not in able]:
        parser.error(f"{', '.join(unable)}: no build for {args.isa} alone; leave out, or compare without --isa")
    out = args.out or RESULTS / f"peers-{args.model.stem}{f'-{args.isa}' if args.isa else ''}.json"
    comparison = Comparison(args)
    try:
        comparison.run()
    except KeyboardInterrupt:
        say("interrupted; what follows is what was measured")
    finally:
        if comparison.cells:
            out.parent.mkdir(exist_ok=True)
            out.write_text(json.dumps(comparison.as_dict(), indent=1) + "\n", encoding="utf-8")
            print(comparison.table())
            say(f"all figures are in {out}")


if __name__ == "__main__":
    main()
