"""`pellucid bench`: what it counts and how it adds up, never how long things take."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Cli
from devices.models import RandomModel, spec
from pellucid.bench import measure, peaks
from pellucid.bench.cells import Case, Cell, Settings
from pellucid.bench.peaks import PeakMeter, Peaks
from pellucid.bench.profile import label
from pellucid.bench.session import Session
from pellucid.bench.work import PlanWork, Rows, Work
from pellucid.config import EngineConfig
from pellucid.devices.cpu import CpuDevice
from pellucid.models.spec import ExpertsSpec

SHORT = Settings(prompts=(40,), depths=(0, 50), streams=(1, 3), threads=(1,), generate=4, repeat=2)
MODEL = RandomModel(spec(windows=(16, 0), tied=True), "q4_0")


@pytest.fixture(autouse=True)
def small_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "BURST", 1e-4)
    monkeypatch.setattr(PeakMeter.__init__, "__kwdefaults__", {"nbytes": 1 << 20})


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return MODEL.device()


def weight_bytes(*, head: bool) -> int:
    return sum(w.data.nbytes for w in MODEL.weights() if len(w.shape) == 2 and (head or not w.name.startswith("embed")))


def parameters(*, head: bool) -> int:
    return sum(
        w.shape[0] * w.shape[1]
        for w in MODEL.weights()
        if len(w.shape) == 2 and (head or not w.name.startswith("embed"))
    )


def test_demand_of_one_row_is_the_weights_and_the_keys_it_sees(device: CpuDevice) -> None:
    work = PlanWork(device).demand(Rows(((99, 1),), 1))
    per_layer = 2 * 2 * 32 * 2  # K and V, two heads of 32 values, two bytes
    assert work.nbytes == weight_bytes(head=True) + per_layer * (16 + 100)
    assert work.ops == 2 * parameters(head=True)


def test_demand_of_experts_is_that_of_the_chosen_ones() -> None:
    model = RandomModel(spec(windows=(0,), d_ff=64, experts=ExpertsSpec(8, 2, normalized=True)), "q8_0")
    work = PlanWork(model.device())
    each = 3 * 64 * 256 * 34 // 32  # gate, up and down of one expert
    others = sum(w.data.nbytes for w in model.weights() if "W_" in w.name and ".experts." not in w.name)
    others -= next(w.data.nbytes for w in model.weights() if w.name == "embed.W_E")
    kv = 2 * 2 * 32 * 2
    one = work.demand(Rows(((0, 1),), 1))
    assert one.nbytes == others + 2 * each + kv
    assert one.ops == 2 * (model.spec.active_parameters() - 201 * 256 - 3 * 256)
    many = work.demand(Rows(((0, 100),), 1))
    assert many.nbytes == pytest.approx(others + 8 * each + 100 * kv)


def test_demand_of_a_prompt(device: CpuDevice) -> None:
    work = PlanWork(device).demand(Rows(((0, 40),), 0))
    assert work.ops == 2 * parameters(head=False) * 40
    assert work.nbytes == weight_bytes(head=False) + 2 * 2 * 32 * 2 * (40 + 40)


@pytest.mark.parametrize(("start", "rows"), [(0, 1), (0, 40), (7, 20), (30, 1), (200, 3)])
def test_products_of_attention_are_those_of_every_row_and_key(device: CpuDevice, start: int, rows: int) -> None:
    work = PlanWork(device)
    plain = Rows(((start, rows),), 0)
    for record in device.lowered.records:
        if record.kind == "attention":
            window = record.window or 10**9
            pairs = sum(min(p + 1, window) for p in range(start, start + rows))
            keys = {k for p in range(start, start + rows) for k in range(max(0, p + 1 - window), p + 1)}
            assert work.traffic(record, plain).ops == 4 * 4 * 32 * pairs
            demand = work.traffic(record, plain).nbytes - rows * sum(
                device.lowered.row_bytes[v.name] for v in (*record.needs(), *record.writes())
            )
            assert demand == 2 * 2 * 32 * 2 * len(keys)


def test_share_is_the_median_rate_over_the_roofline_at_the_median_peak() -> None:
    cell = Cell(Case("decode", 1, "f16", tokens=10, streams=2), Work(1e9, 1e9), [1.0, 2.0, 4.0])
    cell.peaks = [Peaks(1e9, 8e9), Peaks(4e9, 1e9), Peaks(2e9, 4e9)]
    assert cell.rates == [20.0, 10.0, 5.0]
    assert (cell.rate, cell.spread) == (10.0, 0.75)
    assert cell.peak == Peaks(2e9, 4e9)
    assert cell.roofline == 20 / 0.5
    assert cell.share == 0.25
    assert cell.work.bound(cell.peak) == "memory"
    assert Work(1e9, 8e9).bound(cell.peak) == "int8"


def test_every_case_is_measured_over_the_rows_it_names(device: CpuDevice) -> None:
    cells: list[Cell] = []
    measure.measure(device, 1024, SHORT, cells, profile=True, say=lambda text: None)
    assert [c.case for c in cells] == SHORT.cases(1, "f16")
    work = PlanWork(device)
    assert cells[0].work == work.demand(Rows(((0, 40),), 1))
    for cell in cells[1:]:
        start = max(1, cell.case.depth)
        assert len(cell.seconds) == len(cell.peaks) == 2
        # The first token of each stream comes with its prompt, and is computed in the first step that is timed.
        steps = [
            work.demand(Rows(((start + i, 1),) * cell.case.streams, cell.case.streams)) for i in range(cell.case.tokens)
        ]
        assert cell.work == sum(steps, Work())
    for cell in cells:
        profile = cell.profile
        assert profile is not None
        assert profile.rows == cell.total
        assert sum(line.calls for line in profile.ops.values()) == profile.steps * len(device.lowered.records)
        assert sum(line.calls for line in profile.kinds().values()) == sum(x.calls for x in profile.layers.values())
        assert set(profile.layers) == {"", "0", "1"}
        assert profile.before + profile.run + profile.wait + profile.after < 1.0001 * profile.seconds
        assert 0 < profile.accounted < 1.0001


def test_a_prompt_is_fresh_each_time_and_a_depth_is_computed_once(device: CpuDevice) -> None:
    session = Session(device, device.config)
    assert [span.rows.count for i in range(2) for span in session.prefill([i] * 33)] == [33, 33]
    before = session._engine.stats.step_rows
    for _ in range(3):
        spans = session.decode([list(range(40)), list(range(1, 41))], 3)
        assert [span.rows for span in spans] == [Rows(((40 + i, 1), (40 + i, 1)), 2) for i in range(3)]
    # Two prompts of 40, which are found again but for the 8 rows that fill no page: twice each time, then three steps.
    assert session._engine.stats.step_rows - before == 2 * 32 + 3 * 2 * (8 + 8 + 3)
    assert not session._engine.busy
    session._engine.scheduler.check()


def test_names_of_ops(device: CpuDevice) -> None:
    names = {label(r) for r in device.lowered.records}
    assert {"attn.W_Q W_K W_V", "mlp.W_gate W_in", "attn.W_O", "embed.W_E", "attn.hook_z", "hook_embed"} <= names


def test_peaks_are_of_all_threads() -> None:
    with PeakMeter(2) as meter:
        got = meter.measure(1)
    assert got.bandwidth > 0 and got.int8 > 0 and np.isfinite(got.int8)


def test_what_does_not_fit_is_told(device: CpuDevice) -> None:
    from pellucid.errors import MemoryPlanError, RequestError

    with pytest.raises(RequestError, match="takes 1041 tokens and the model's context is 1024"):
        measure.config_for(Settings(prompts=(1040,)), device, 1024, 1, "f16")
    with pytest.raises(MemoryPlanError, match="--depths or --streams"):
        measure.config_for(Settings(depths=(1 << 19,), streams=(4096,)), device, 1 << 20, 1, "f16")
    got = measure.config_for(Settings(prompts=(), streams=()), device, 1024, 1, "q8_0")
    assert isinstance(got, EngineConfig) and got.ctx == 16
    got = measure.config_for(Settings(prompts=(), streams=(), ctx=1000), device, 1024, 1, "f16")
    assert got.ctx == 1000 and got.kv_pages == 63


def test_json_of_a_real_model(cli: Cli, smollm2_path: Path) -> None:
    args = ("--prompts", "20", "--streams", "2", "--depths", "17", "--generate", "3", "--repeat", "2", "--warmup", "0")
    got = cli("bench", str(smollm2_path), *args, "--threads", "1,2", "--kv", "f16,q8_0", "--profile", "--json")
    assert (got.code, got.err) == (0, "")
    result = json.loads(got.out)
    assert result["interrupted"] is False
    cells = result["cells"]
    assert [(c["kind"], c["threads"], c["kv"]) for c in cells] == [
        (kind, threads, kv) for threads in (1, 2) for kv in ("f16", "q8_0") for kind in ("prefill", "decode")
    ]
    for cell in cells:
        rate, peak, work = cell["tokens_per_second"], cell["peaks"], cell["work"]
        assert rate["low"] <= rate["median"] <= rate["high"] and len(rate["values"]) == cell["repeat"] == 2
        least = max(work["bytes"] / peak["bytes_per_second"], work["ops"] / peak["int8_ops_per_second"])
        assert cell["roofline"]["tokens_per_second"] == pytest.approx(cell["tokens"] * cell["streams"] / least)
        assert cell["share"] == pytest.approx(rate["median"] / cell["roofline"]["tokens_per_second"])
        assert cell["profile"]["accounted"] > 0.5
        assert len(cell["profile"]["layers"]) == 31
    decode = {c["kv"]: c["work"] for c in cells if c["kind"] == "decode"}
    assert decode["q8_0"]["ops"] == decode["f16"]["ops"] and decode["q8_0"]["bytes"] < decode["f16"]["bytes"]
    # Three steps, each of which reads every weight, the head (the tied table) included.
    assert 0.97 < decode["f16"]["bytes"] / (3 * smollm2_path.stat().st_size) < 1.01  # less the tokenizer


def test_table_and_interruption(cli: Cli, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("--prompts", "16", "--generate", "2", "--repeat", "1", "--profile")
    got = cli("bench", str(smollm2_path), *args)
    assert got.code == 0
    lines = got.out.splitlines()
    assert lines[0].split()[:3] == ["tokens", "depth", "streams"]
    assert [line.split()[0] for line in lines[1:4]] == ["prefill", "decode", "decode"]
    assert "accounted for: " in got.out and "mlp.W_gate W_in" in got.out

    real = Session.decode

    def stop(self: Session, prompts: list[list[int]], steps: int) -> object:
        if len(prompts) == 16:
            raise KeyboardInterrupt
        return real(self, prompts, steps)

    monkeypatch.setattr(Session, "decode", stop)
    got = cli("bench", str(smollm2_path), *args, "--json")
    assert got.code == 130
    result = json.loads(got.out)
    assert result["interrupted"] is True
    assert [c["kind"] for c in result["cells"]] == ["prefill", "decode"]


def test_the_environment_sets_what_other_commands_take_from_it(
    cli: Cli, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("bench", str(smollm2_path), "--prompts", "16", "--streams", "0", "--repeat", "1", "--json")
    monkeypatch.setenv("PELLUCID_THREADS", "2")
    monkeypatch.setenv("PELLUCID_KV", "q8_0")
    monkeypatch.setenv("PELLUCID_CTX", "128")
    settings = json.loads(cli(*args).out)["settings"]
    assert (settings["threads"], settings["kv"], settings["ctx"]) == ([2], ["q8_0"], 128)
    settings = json.loads(cli(*args, "--threads", "1", "--kv", "f16", "--ctx", "64").out)["settings"]
    assert (settings["threads"], settings["kv"], settings["ctx"]) == ([1], ["f16"], 64)
    monkeypatch.setenv("PELLUCID_THREADS", "many")
    got = cli(*args)
    assert got.code == 2 and "'many' is not a whole number" in got.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--prompts", "12,x"), "--prompts 12,x: 'x' is not a whole number"),
        (("--threads", "0"), "--threads 0: 0 is out of range; give 1 to 256"),
        (("--kv", "f8"), "kv='f8' is not a KV-cache format; choose f16 or q8_0"),
        (("--ctx", "500"), "--ctx 500 is out of range; give 513"),
        (("--ctx", "9000"), "to 8192, the model's context"),
        (("--depths", "9000"), "takes 9131 tokens and the model's context is 8192"),
    ],
)
def test_what_cannot_be_measured(cli: Cli, smollm2_path: Path, args: tuple[str, ...], message: str) -> None:
    got = cli("bench", str(smollm2_path), *args)
    assert got.code == 2
    assert message in got.err
