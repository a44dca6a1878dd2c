"""Pellucid against its peers: the same file, the same threads, the same token ids, A B A B.

    python benchmarks/peers/peers.py MODEL.gguf [--peers llama.cpp ik_llama.cpp openvino] [--threads 2] [--prompts 512]
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
import venv
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import wire

import pellucid

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "tests" / "golden"
RESULTS = HERE.parent / "results"
HOME = Path(os.environ.get("PELLUCID_PEERS") or Path.home() / ".cache" / "pellucid-peers")
RIGHT = 0.03
CHUNK, FIRST = 512, 256
TRIALS = 2
"""Repetitions of which the best says which setting is."""
Options = dict[str, object]


@dataclass(frozen=True)
class Peer:
    """An engine: its package, its script, and the settings of which the best is taken."""

    package: str
    script: str
    variants: dict[str, Options]

    @property
    def name(self) -> str:
        """The package without its version."""
        return self.package.partition("==")[0]


LLAMA_VARIANTS: dict[str, Options] = {
    f"{'flash' if flash else 'no flash'}, {'repacked' if repack else 'as stored'}": {"flash": flash, "repack": repack}
    for flash in (True, False)
    for repack in (True, False)
}
PEERS = {
    "llama.cpp": Peer("llama-cpp-python==0.3.36", "engine_llama.py", LLAMA_VARIANTS),
    "ik_llama.cpp": Peer("ik-llama-cpp-python==0.1.5", "engine_llama.py", LLAMA_VARIANTS),
    "openvino": Peer(
        "openvino-genai==2026.4.1.0",
        "engine_openvino.py",
        {"default": {"precision": None, "kv": "f16"}, "f32": {"precision": "f32", "kv": "f16"}},
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

    def __init__(self, python: Path, script: str, options: Options) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, HERE / script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
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


def python_of(name: str) -> Path:
    """The interpreter of a peer's own environment, which is made if it is not there."""
    folder, peer = HOME / name, PEERS[name]
    python = folder / "bin" / "python"
    made = folder / "made"
    if not made.exists() or made.read_text() != peer.package:
        say(f"{name}: installing {peer.package} into {folder}")
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "numpy", peer.package], check=True)
        made.write_text(peer.package)
    return python


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


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
        self.ours = Process(Path(sys.executable), "engine_pellucid.py", self.common)
        try:
            self.our_off = self.reference.off(self.ours)
            say(f"pellucid: perplexity {_percent(self.our_off)}")
            for name in self.args.peers:
                self._peer(name)
        finally:
            self.ours.close()

    def _peer(self, name: str) -> None:
        python, peer = python_of(name), PEERS[name]
        trials = self.trials[name] = {v: self._trial(name, python, v, o) for v, o in peer.variants.items()}
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
                    process = Process(python, peer.script, self.common | peer.variants[variant])
                    try:
                        self._cell(name, variant, trials[variant], process, case)
                    finally:
                        process.close()
                except EngineError as error:
                    say(f"{name} ({variant}), {case}: {error}")
                    self.cells.append(
                        {"case": str(case), "peer": name, "counts": False, "failed": {variant: str(error)}}
                    )

    def _trial(self, name: str, python: Path, variant: str, options: Options) -> Trial:
        """Try a setting on every case; what crashes in one case is begun anew for the next."""
        trial = Trial()
        process: Process | None = None
        try:
            for case in [None, *self.cases]:
                try:
                    if process is None:
                        process = Process(python, PEERS[name].script, self.common | options)
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
            say(f"{name} ({variant}): perplexity {_percent(trial.off)}; {told}")
        return trial

    def _cell(self, name: str, variant: str, trial: Trial, peer: Process, case: Case) -> None:
        a: list[float] = []
        b: list[float] = []
        shares: list[float] = []
        for number in range(self.args.repeat + 1):
            seed = self._next()
            ours = self.ours.measure(case, seed, self.ours.vocab)
            theirs = peer.measure(case, seed, self.ours.vocab)
            if number:  # the first is a warm-up
                a.append(case.tokens / ours["seconds"])
                b.append(case.tokens / theirs["seconds"])
                shares.append(ours["least"] / ours["seconds"])
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
            "pellucid_values": a,
            "their_values": b,
        }
        self.cells.append(cell)
        say(f"{case}: {median(a):.1f} against {name}'s {median(b):.1f}, {median(a) / median(b):.2f} x ({variant})")

    def _next(self) -> int:
        self.seed += 1
        return self.seed

    def table(self) -> str:
        """Markdown: a row a case, a column a peer."""
        peers = [name for name in self.args.peers if any(cell["peer"] == name for cell in self.cells)]
        lines = [
            f"| {self.args.model.stem}, {self.args.threads} threads | Pellucid, tok/s (share of roofline) | "
            + " | ".join(f"{name}, tok/s (ratio)" for name in peers)
            + " |",
            "|---" * (2 + len(peers)) + "|",
        ]
        for case in map(str, self.cases):
            row = {str(cell["peer"]): cell for cell in self.cells if cell["case"] == case}
            ours = [cell for cell in row.values() if "pellucid" in cell]
            if not ours:
                continue
            rate = median(_number(cell["pellucid"]) for cell in ours)
            share = median(_number(cell["share_of_roofline"]) for cell in ours)
            cells = [_told(row.get(name)) for name in peers]
            lines.append(f"| {case} | {rate:.1f} ({share:.0%}) | {' | '.join(cells)} |")
        off = [f"Pellucid {_percent(self.our_off)}"]
        for name, trials in self.trials.items():
            off += [
                f"{name} ({v}) {'fails' if 'perplexity' in t.failed else _percent(t.off)}" for v, t in trials.items()
            ]
        chunks = len(self.reference.chunks)
        return "\n".join([*lines, "", f"Perplexity against float32, {chunks} chunks: {'; '.join(off)}."])

    def as_dict(self) -> dict[str, object]:
        """All of it, for JSON."""
        return {
            "date": time.strftime("%Y-%m-%d"),
            "model": self.args.model.name,
            "processor": _processor(),
            "pellucid": pellucid.__version__,
            "packages": {name: PEERS[name].package for name in self.args.peers},
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


def _told(cell: dict[str, object] | None) -> str:
    if cell is None:
        return ""
    if "ratio" not in cell:
        return "fails"
    text = f"{_number(cell['theirs']):.1f} ({_number(cell['ratio']):.2f} ×)"
    if cell["counts"]:
        return text
    off = cell["perplexity_off"]
    return f"~~{text}~~ " + ("no reference" if off is None else f"perplexity {_number(off):+.0%}")


def _why(trials: dict[str, Trial], case: str) -> dict[str, str]:
    """Setting → what it failed of: the case itself, or the perplexity before it."""
    return {v: t.failed.get(case, t.failed.get("perplexity", "")) for v, t in trials.items()}


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _percent(off: float | None) -> str:
    return "without a reference" if off is None else f"{off:+.2%}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a .gguf file")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompts", nargs="*", type=int, default=[512])
    parser.add_argument("--streams", nargs="*", type=int, default=[1, 16])
    parser.add_argument("--depths", nargs="*", type=int, default=[4096], help="contexts that one stream decodes at")
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--chunks", type=int, default=4, help="chunks of 512 ids for the perplexity")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/peers-MODEL.json")
    args = parser.parse_args()
    out = args.out or RESULTS / f"peers-{args.model.stem}.json"
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
