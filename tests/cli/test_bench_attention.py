"""`pellucid bench --attention`: textbook attention is attention, the engine's agrees, and what is printed adds up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Cli
from pellucid.bench import attention, heads
from pellucid.bench.heads import HeadShape, Task
from pellucid.graph.reference import attend

SMALL = ("--shape", "4,2,32", "--lengths", "70,600", "--repeat", "1", "--threads", "2")


def task(side: heads.Side, out: Path, tokens: int = 70, kv: str = "f16") -> Task:
    return Task(side, 6, 2, 32, tokens, 1, kv, 1, str(out))


def test_the_textbook_is_the_reference(tmp_path: Path) -> None:
    t = task("textbook", tmp_path / "a.npy")
    q, k, v = heads.inputs(t)
    want = attend(q, k, v, scale=t.scale, window=0)
    np.testing.assert_allclose(heads.textbook(q, k, v, t.scale), want, atol=2e-6)


@pytest.mark.parametrize(("kv", "bound"), [("f16", 2e-3), ("q8_0", 0.03)])
def test_the_engine_agrees_over_several_steps(tmp_path: Path, kv: str, bound: float) -> None:
    for side in ("textbook", "paged"):
        seconds, peak = heads.run(task(side, tmp_path / f"{side}.npy", 700, kv))
        assert len(seconds) == 1 and seconds[0] > 0 and peak >= 0
    a, b = (np.load(tmp_path / f"{side}.npy") for side in ("textbook", "paged"))
    assert a.shape == b.shape == (700, 6 * 32)
    assert 0 < np.abs(a - b).max() < bound


def test_json_and_table(cli: Cli) -> None:
    got = cli("bench", "--attention", *SMALL, "--json")
    assert (got.code, got.err) == (0, "")
    result = json.loads(got.out)
    assert (result["shape"], result["threads"]) == ({"heads": 4, "kv_heads": 2, "d_head": 32}, 2)
    assert [row["tokens"] for row in result["rows"]] == [70, 600]
    for row in result["rows"]:
        ours, theirs = row["pellucid"], row["textbook"]
        assert row["speed_up"] == pytest.approx(theirs["seconds"] / ours["seconds"])
        assert row["memory_ratio"] == pytest.approx(theirs["peak_bytes"] / ours["peak_bytes"])
        assert row["max_difference"] < 2e-3
    # The scores alone, for each head.
    assert result["rows"][1]["textbook"]["peak_bytes"] > 4 * 600 * 600 * 4

    got = cli("bench", "--attention", *SMALL)
    lines = got.out.splitlines()
    assert lines[0].split()[0] == "N" and [line.split()[0] for line in lines[1:3]] == ["70", "600"]
    assert "4 heads, 2 KV heads of 32 values, 2 threads, kv f16" in lines[3]


def test_the_shape_is_the_models(cli: Cli, smollm2_path: Path) -> None:
    got = cli("bench", str(smollm2_path), "--attention", "--lengths", "64", "--repeat", "1", "--json")
    assert json.loads(got.out)["shape"] == {"heads": 9, "kv_heads": 3, "d_head": 64}


def test_what_does_not_fit_is_told_and_the_rest_is_measured(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "available_memory", lambda: 1 << 20)
    got = cli("bench", "--attention", *SMALL, "--json")
    rows = json.loads(got.out)["rows"]
    assert [row["textbook"] is None for row in rows] == [False, True]
    assert rows[1]["note"] == "its scores take 0.0 GB, more than is free" and rows[1]["pellucid"]["seconds"] > 0


def test_interruption_prints_what_was_measured(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[Task], attention.Run] = attention._run

    def stop(t: Task) -> attention.Run:
        if t.tokens == 600:
            raise KeyboardInterrupt
        return real(t)

    monkeypatch.setattr(attention, "_run", stop)
    got = cli("bench", "--attention", *SMALL, "--json")
    assert got.code == 130
    result = json.loads(got.out)
    assert result["interrupted"] is True and [row["tokens"] for row in result["rows"]] == [70]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--attention", "--shape", "9,3"), "--shape 9,3: give HEADS,KV_HEADS,D_HEAD, such as 9,3,64"),
        (("--attention", "--shape", "9,2,64"), "HEADS (at most 1024) must be a multiple of KV_HEADS"),
        (("--attention", "--shape", "4,2,32", "--kv", "f8"), "kv='f8' is not a KV-cache format"),
        (("--attention", "--shape", "4,2,30", "--kv", "q8_0", "--lengths", "9"), "heads of a multiple of 32 values"),
        (("--attention", "--threads", "1,2"), "--threads 1,2: give one number with --attention"),
        (("x", "--attention", "--shape", "4,2,32"), "give MODEL or --shape, not both"),
        (("--attention", "--prompts", "5"), "--prompts does not go with --attention"),
        (("--shape", "4,2,32"), "--shape goes with --attention"),
    ],
)
def test_what_cannot_be_measured(cli: Cli, args: tuple[str, ...], message: str) -> None:
    got = cli("bench", *args)
    assert got.code != 0 and got.out == ""
    assert message in got.err and got.err.count("\n") == 1


def test_shapes() -> None:
    assert attention.parse_shape("9,3,64") == HeadShape(9, 3, 64)
