"""`pellucid plan`: what it counts is what a loaded device has, and what does not fit is refused with what would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pellucid.devices.ledger as ledger_module
from cli.conftest import Cli
from pellucid.checkpoint import open_checkpoint
from pellucid.cli.serve import memory_lines
from pellucid.config import EngineConfig
from pellucid.devices.cpu import CpuDevice
from pellucid.devices.ledger import ledger_of, unloaded
from pellucid.errors import MemoryPlanError
from pellucid.llm import LLM
from pellucid.models.decoder import decoder_graph

FAMILIES = Path(__file__).parents[1] / "golden" / "families"


@pytest.mark.parametrize("family", ["mixtral", "gpt-oss", "qwen3-moe", "gemma2", "gpt2", "phi3"])
@pytest.mark.parametrize("kv_pages", [None, 99])
def test_plan_is_what_the_device_has(family: str, kv_pages: int | None) -> None:
    with open_checkpoint(FAMILIES / family) as checkpoint:
        graph = decoder_graph(checkpoint.spec)
        config = EngineConfig(threads=2, kv_pages=kv_pages, max_seqs=3)
        planned = ledger_of(unloaded(checkpoint, graph, config))
        actual = CpuDevice.load(checkpoint, graph, config).memory()
    lines = planned.lines()
    assert {part: lines[part] for part in ("weights", "kv", "scratch")} == {
        part: actual[part] for part in ("weights", "kv", "scratch")
    }
    assert sum(planned.weights.values()) == actual["weights"]
    assert planned.kv_per_page * (planned.config.kv_pages or 0) == actual["kv"]


def test_a_mixture_of_experts_tells_what_a_token_meets(cli: Cli) -> None:
    mixed, dense = (str(FAMILIES / name) for name in ("qwen3-moe", "qwen3"))
    about = json.loads(cli("plan", mixed, "--json").out)
    assert 0 < about["active_parameters"] < about["parameters"]
    assert "a token meets" in cli("plan", mixed).out
    assert "a token meets" not in cli("plan", dense).out


def test_json(cli: Cli, smollm2_path: Path) -> None:
    got = cli("plan", str(smollm2_path), "--ctx", "1024", "--seqs", "3", "--json")
    assert got.code == 0
    about = json.loads(got.out)
    assert about["sequences"] == 3 and about["ctx"] == 1024 and about["kv_pages"] == 3 * 64
    assert about["total"] == sum(about["lines"].values())
    assert about["lines"]["kv"] == about["kv_per_token"] * 1024 * 3
    assert about["room"]["q8_0"]["2048"] > about["room"]["f16"]["2048"]


def test_cost_falls_with_streams(cli: Cli, smollm2_path: Path) -> None:
    got = cli("plan", str(smollm2_path), "--cost-per-hour", "2", "--json")
    cost = json.loads(got.out)["cost"]
    assert cost["per_hour"] == 2
    assert cost["64 streams"]["per_million_tokens"] < cost["one stream"]["per_million_tokens"]


def test_what_does_not_fit_names_what_does(cli: Cli, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "resident", lambda: 150 << 20)  # a fresh process's, not this long suite's
    model = str(smollm2_path)
    refused = cli("plan", model, "--ctx", "8192", "--seqs", "64", "--memory", "1")
    assert refused.code == 6 and "this would fit: " in refused.err
    suggestion = refused.err.strip().rsplit("this would fit: ", 1)[1].split()
    assert cli("plan", model, *suggestion, "--memory", "1").code == 0
    hopeless = cli("plan", model, "--memory", "0.05")
    assert hopeless.code == 6 and "smaller model" in hopeless.err


def test_buffers_of_huge_pages_are_whole_ones() -> None:
    mib = 1 << 20
    assert [ledger_module.padding(n) for n in (0, mib, 2 * mib - 1, 2 * mib, 2 * mib + 1, 5 * mib)] == [
        0, 0, 0, 0, 2 * mib - 1, mib,
    ]  # fmt: skip


def test_seqs_and_pages_contradict(cli: Cli, smollm2_path: Path) -> None:
    got = cli("plan", str(smollm2_path), "--seqs", "2", "--kv-pages", "600")
    assert got.code == 2 and "--kv-pages" in got.err


def test_loading_refuses_before_it_loads(monkeypatch: pytest.MonkeyPatch, smollm2_path: Path) -> None:
    monkeypatch.setattr(ledger_module, "available_memory", lambda: 200 << 20)

    def never(*args: object) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("pellucid.devices.loading.Loading.__init__", never)
    with pytest.raises(MemoryPlanError, match="this would fit: --kv f16 --ctx "):
        LLM(smollm2_path, ctx=8192, kv_pages=512)


def test_serve_tells_plan_and_fact_by_line(smollm2_path: Path) -> None:
    with LLM(smollm2_path, ctx=256, kv_pages=64, threads=1) as llm:
        llm.generate("Once", progress=False)
        lines = memory_lines(llm)
        actual = llm.device.memory()
    assert [line.split()[0] for line in lines[1:]] == [*actual, "process"]
    assert "KV" not in lines[0] and all("planned" in line for line in lines[1:-1])
