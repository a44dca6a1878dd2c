"""Exports are opened by those that they are made for; receipts made under load replay to the bit in a fresh process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

import traceevents
from pellucid import LLM, SamplingParams
from pellucid.errors import ModelFileError, RequestError
from pellucid.probes.export import load, members, perfetto, save
from pellucid.probes.receipt import check
from pellucid.probes.trace import Trace

PROMPT = "The capital of France is"
PARAMS = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=6, seed=11, ignore_eos=True, logit_bias={5: 1.5})


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(smollm2_path, threads=2, ctx=512, progress=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def trace(llm: LLM) -> Trace:
    return llm.inspect(PROMPT, PARAMS, level="heads")


def test_a_folder_is_read_by_others_and_by_us(trace: Trace, tmp_path: Path) -> None:
    where = save(trace, tmp_path / "run", names=["blocks.3.attn.hook_pattern", "hook_embed"])
    tensors = load_file(where / "activations.safetensors")
    assert tensors["blocks.3.attn.hook_pattern"].shape == (9, 11, 11)
    assert np.array_equal(tensors["hook_embed"], trace.activations("hook_embed")["hook_embed"])
    assert trace.norms is not None
    assert np.allclose(tensors["norms.mlp"], trace.norms.mlp)
    table = pq.read_table(where / "tokens.parquet").to_pylist()
    assert [row["id"] for row in table] == trace.ids
    assert table[7]["top_ids"][0] == trace.scores.top[6][0][0]
    events = [json.loads(line) for line in (where / "events.jsonl").read_text().splitlines()]
    assert [e["point"] for e in events if e["point"] != "schedule"] == ["admit", "finish"]
    assert sum(e["rows"] for e in events if e["point"] == "schedule") == 5 + 5
    again = load(where)
    assert (again.ids, again.seed, again.params, again.pieces) == (trace.ids, trace.seed, trace.params, trace.pieces)
    assert np.array_equal(again.scores.logprobs, trace.scores.logprobs) and again.delta == 0.0
    assert again.heads is not None and np.allclose(again.heads.values["self"], trace.head_metrics().values["self"])
    with pytest.raises(RequestError, match="loaded from a file"):
        again.why(-1)
    with pytest.raises(RequestError, match="there already"):
        save(trace, where)


def test_a_zip_holds_the_same(trace: Trace, tmp_path: Path) -> None:
    where = save(trace, tmp_path / "run.zip")
    assert set(zipfile.ZipFile(where).namelist()) == set(members(trace))
    assert load(where).ids == trace.ids


def test_the_timeline_keeps_every_rule_of_trace_events(trace: Trace, tmp_path: Path) -> None:
    events = traceevents.read(trace.to_perfetto(tmp_path / "t.json").read_text())
    slices = [e for e in events if e["ph"] == "X"]
    assert len([e for e in slices if e["tid"] == 1]) == 6 and {e["name"] for e in slices if e["tid"] == 2} == {
        "prefill",
        "decode",
    }
    assert len([e for e in events if e["ph"] == "s"]) == 6
    assert {e["ph"] for e in events} == {"M", "X", "s", "f", "C", "i"}
    assert {e["name"] for e in events if e["ph"] == "C"} == {"rows", "pages", "running", "waiting"}
    assert perfetto(trace)["traceEvents"] == events


def test_steps_that_end_within_a_nanosecond_stay_apart(trace: Trace) -> None:
    """Times are seconds in float64, slices whole nanoseconds: an end never passes the next beginning."""
    rng = np.random.default_rng(0)
    row = next(e for e in trace.events if e["point"] == "schedule")
    times = 3e5 + np.cumsum(rng.random(2000) * 1e-6)
    many = replace(trace, events=[{**row, "at": float(at)} for at in times])
    assert len(traceevents.read(json.dumps(perfetto(many)))) > 8000


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"ph": "Q"}, "no such phase"),
        ({"dur": 0}, "one"),
        ({"ts": "3"}, "one"),
        ({"dur": 15.0}, "overlap"),
        ({"tid": 9}, "without a name"),
        ({"ts": 1e12, "ph": "f", "id": 1, "cat": "rows"}, "in no slice"),
    ],
)
def test_the_reader_of_trace_events_is_strict(broken: dict, why: str) -> None:
    track = {"pid": 1, "tid": 1}
    good: list[dict] = [
        {"ph": "M", "name": "thread_name", **track, "args": {"name": "steps"}},
        {"ph": "X", "name": "one", "ts": 0, "dur": 10, **track},
        {"ph": "X", "name": "two", "ts": 10, "dur": 10, **track},
    ]
    assert traceevents.read(json.dumps({"traceEvents": good}))
    good[1] |= broken
    with pytest.raises(AssertionError, match=why):
        traceevents.read(json.dumps({"traceEvents": good}))


@pytest.mark.parametrize("view", ["surprisal", "norms", "heads", "lens", "attention"])
def test_plots_are_drawn(trace: Trace, tmp_path: Path, view: str) -> None:
    svg = trace.plot(view, tmp_path / "a.svg").read_text()
    assert svg.startswith("<?xml") and "</svg>" in svg
    if view == "heads":
        assert trace.plot(view, tmp_path / "a.png", metric="self").read_bytes()[:4] == b"\x89PNG"
        with pytest.raises(RequestError, match="none; choose"):
            trace.plot("flames", tmp_path / "b.svg")


@pytest.mark.parametrize("broken", ["", "{}", "no json", '{"pellucid_trace": 9}', '{"pellucid_trace": 1}'])
def test_what_is_no_trace_is_refused(broken: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(broken)
    for name in ("tokens.jsonl", "events.jsonl", "activations.safetensors"):
        (tmp_path / name).write_bytes(b"\xff" * 9)
    with pytest.raises(ModelFileError, match="trace"):
        load(tmp_path)
    with pytest.raises(ModelFileError):
        load(tmp_path / "nowhere")
    data = io.BytesIO(b"PK no zip")
    (tmp_path / "x.zip").write_bytes(data.getvalue())
    with pytest.raises(ModelFileError):
        load(tmp_path / "x.zip")


def test_a_receipt_made_among_16_neighbours_replays_in_a_fresh_process(
    llm: LLM, smollm2_path: Path, tmp_path: Path
) -> None:
    text = "Once upon a time there was a"
    asked = [
        SamplingParams(temperature=1.0, max_tokens=10 + i, seed=i, ignore_eos=True, logprobs=0, top_k=50)
        for i in range(17)
    ]
    results = llm.generate([text + " " * (i % 3) + "k" * i for i in range(17)], asked, progress=False)
    receipt = llm.receipt(results[8], asked[8])
    assert len(receipt["output_ids"]) == 18
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(receipt))

    def replay(path: Path) -> subprocess.CompletedProcess[str]:
        code = "from pellucid.cli import main; main()"
        args = [sys.executable, "-c", code, "replay", str(path), "--model", str(smollm2_path), "--threads", "1"]
        return subprocess.run(args, capture_output=True, text=True, timeout=120, env=os.environ, check=False)

    done = replay(path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "bit-identical: 18 tokens, each with the very logprob\n"

    receipt["logprobs"][4] = (float.fromhex(receipt["logprobs"][4]) * (1 + 1e-7)).hex()
    receipt["digests"]["template"] = "0" * 64
    path.write_text(json.dumps(receipt))
    done = replay(path)
    assert done.returncode == 1
    assert "differs at step 4 of 18" in done.stdout and "not as they were then: template" in done.stdout


def test_receipts_that_are_none_are_refused(llm: LLM) -> None:
    [result] = llm.generate(PROMPT, SamplingParams(max_tokens=2, logprobs=0))
    good = llm.receipt(result, SamplingParams(max_tokens=2, logprobs=0))
    assert check(llm, good).identical
    for broken in ({}, {"pellucid_receipt": 1}, good | {"logprobs": ["x"]}, good | {"params": {"magic": 1}}):
        with pytest.raises(RequestError, match="receipt"):
            check(llm, broken)
    [plain] = llm.generate(PROMPT, SamplingParams(max_tokens=2))
    with pytest.raises(RequestError, match="logprobs=0"):
        llm.receipt(plain, SamplingParams(max_tokens=2))


def test_the_commands_write_show_and_replay(
    llm: LLM, smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    from pellucid.cli import main

    def call(*args: str) -> str:
        with pytest.raises(SystemExit) as exit:
            main(list(args))
        out, err = capsys.readouterr()
        assert exit.value.code == 0, err
        return out

    where = str(tmp_path / "run")
    model = ("--model", str(smollm2_path))
    out = call("trace", PROMPT, "-o", where, "--max-tokens", "4", "--seed", "2", *model, "--plots", "norms")
    assert "receipt.json" in out and "the very bits that were served" in out
    assert (tmp_path / "run" / "norms.svg").exists()
    assert "surprise, token by token" in call("view", where)
    assert len(json.loads(call("view", where, "--json"))["tokens"]) >= 6
    assert "bit-identical" in call("replay", where)
    out = call("trace", PROMPT, "-o", f"{where}.zip", "--max-tokens", "1", *model, "--activations", "hook_embed")
    assert "tokens.parquet" in out and "activations.safetensors" in out
    assert "of prompt, 1 of answer" in call("view", f"{where}.zip")
