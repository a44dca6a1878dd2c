"""The commands that look inside, on the default model: what they print, plainly and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Cli
from pellucid import LLM
from pellucid.cli import draw, options
from pellucid.probes.wire import plain

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[tuple[str, str], LLM]]:
    """Models that the commands of this module have loaded."""
    loaded: dict[tuple[str, str], LLM] = {}
    yield loaded
    for llm in loaded.values():
        LLM.close(llm)


@pytest.fixture(autouse=True)
def one_model(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, shared: dict[tuple[str, str], LLM]) -> None:
    """Commands find their model loaded, and leave it so."""

    def load(model: str, threads: int | None, ctx: int | None, kv: str, **options: object) -> LLM:
        if (model, kv) not in shared:
            shared[model, kv] = llm = LLM(model, threads=2, ctx=256, kv=kv, progress=False)
            llm.close = lambda: None  # type: ignore[method-assign]
        return shared[model, kv]

    monkeypatch.setattr(options, "load", load)
    monkeypatch.setenv("PELLUCID_MODEL", str(smollm2_path))
    monkeypatch.setenv("COLUMNS", "100")


def as_json(cli: Cli, *args: str) -> dict:
    done = cli(*args, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_why_tells_the_whole_story(cli: Cli) -> None:
    done = cli("why", PROMPT, "--seed", "7")
    assert done.code == 0, done.err
    assert "▸ ' Paris'" in done.out and "rank 1 of 49,152" in done.out
    for stage in ("temperature", "top_p", "draw"):
        assert f"\n{stage}" in done.out
    assert "\nnothing to do: penalties, " in done.out and max(map(len, done.out.splitlines())) <= 100
    assert "(seed 7) falls on" in done.out and "written by" in done.out
    assert "|Δ logprob| 0, the very bits" in done.out
    found = as_json(cli, "why", PROMPT, "--seed", "7")
    assert found["replays"] and found["text"] == " Paris" and found["delta"] == 0
    assert sum(v for _, v in found["written_by"]) + found["remainder"] == pytest.approx(found["logit"])
    assert 20 < found["decided_at_layer"] <= 30


def test_why_of_a_prompt_token_says_that_it_was_given(cli: Cli) -> None:
    done = cli("why", PROMPT, "--pos", "3", "--max-tokens", "0")
    assert done.code == 0 and "▸ ' France'" in done.out
    assert "given, not drawn" in done.out and "falls on" not in done.out


def test_attn_draws_a_map_or_a_row(cli: Cli) -> None:
    whole = cli("attn", PROMPT, "--layer", "3", "--head", "2")
    assert whole.code == 0 and "layer 3, head 2 (of KV head 0), 5 tokens" in whole.out
    assert len([line for line in whole.out.splitlines() if line[:3].strip().isdigit()]) == 5
    row = cli("attn", PROMPT, "--layer", "3", "--pos", "-1")
    assert "looks at" in row.out
    found = as_json(cli, "attn", PROMPT, "--layer", "3", "--head", "2")
    assert [sum(r) for r in found["weights"]] == pytest.approx([1.0] * 5)
    brought = cli("attn", PROMPT, "--layer", "20", "--head", "3", "--pos", "-1", "--by-value")
    assert "takes ‖αv‖ from" in brought.out and brought.out.count("%") == 5
    wide = cli("attn", "word " * 60)
    assert "too wide here" in wide.out and "the rest" in wide.out


def test_lens_shows_every_layer_and_lists_names(cli: Cli) -> None:
    done = cli("lens", PROMPT)
    assert done.code == 0 and "\nembed" in done.out and "\n   30 " in done.out
    assert "likeliest from layer 30 of 30 on" in done.out
    found = as_json(cli, "lens", PROMPT, "--top", "2")
    assert len(found["layers"]) == 31 and found["layers"][-1]["top"][0]["text"] == " Paris"
    names = cli("lens", "--names").out.splitlines()
    assert {"hook_embed", "blocks.29.attn.hook_pattern", "blocks.5.hook_resid_pre", "logits"} <= set(names)


def test_heads_maps_a_metric(cli: Cli) -> None:
    done = cli("heads", "one two three one two three one two", "--sort", "induction", "--top", "3")
    assert done.code == 0 and "what followed the same token before" in done.out
    assert len(done.out.split("layer  head")[1].splitlines()) == 1 + 3
    found = as_json(cli, "heads", PROMPT)
    assert len(found["metrics"]["entropy"]) == 30 and len(found["metrics"]["entropy"][0]) == 9
    assert cli("heads", PROMPT, "--sort", "beauty").code == 2


def test_influence_names_what_mattered(cli: Cli) -> None:
    text = "Anna lives in Rome. Bob lives in Berlin. The weather is nice. The city where Bob lives is"
    found = as_json(cli, "influence", text)
    texts = [span["text"] for span in found["influence"]["spans"]]
    assert texts == [
        "Anna lives in Rome.",
        " Bob lives in Berlin.",
        " The weather is nice.",
        " The city where Bob lives is",
    ]
    changes = dict(zip(texts, found["influence"]["changes"], strict=True))
    assert found["text"] == " Berlin" and changes[" Bob lives in Berlin."] < -2
    assert abs(changes[" The weather is nice."]) < 1.5
    done = cli("influence", text)
    assert "what each sentence adds" in done.out and "rounding of the measurement" in done.out
    ground = cli("influence", "My code word is zebra. My code word is", "--grounding", "--max-tokens", "4")
    assert ground.code == 0 and "' zebra'" in ground.out


def test_embed_finds_neighbours(cli: Cli) -> None:
    found = as_json(cli, "embed", "Paris London queen", "--top", "3")
    near = {t["text"]: [n["text"] for n in t["near"]] for t in found["tokens"]}
    assert " Queen" in near[" queen"] and " Paris" in near[" London"]
    assert cli("embed", "Paris London queen").out.count("·") >= 3


def test_rope_needs_no_weights(cli: Cli, smollm2_path: Path) -> None:
    found = as_json(cli, "rope", "--model", str(smollm2_path), "--distance", "0", "--distance", "8")
    assert found["mean_cosine"][0] == pytest.approx(1.0)
    assert found["angles"][1][0] == pytest.approx(8.0, rel=1e-4)
    assert "pairs turn less than once" in cli("rope").out
    assert "0 to 29" in cli("rope", "--layer", "30").err


def test_compare_counts_flips(cli: Cli, smollm2_path: Path) -> None:
    path = str(smollm2_path)
    same = as_json(cli, "compare", path, path, PROMPT)
    assert not any(same["kl"]) and same["first_divergence"] is None
    other = cli("compare", path, path, PROMPT, "--second-kv", "q8_0", "--max-tokens", "3")
    assert other.code == 0 and "7 predictions: mean KL 0.0" in other.out


def test_errors_are_one_line(cli: Cli) -> None:
    for args in (("why", PROMPT, "--pos", "99"), ("attn", PROMPT, "--head", "9"), ("lens", PROMPT, "--budget", "1MB")):
        done = cli(*args)
        assert done.code != 0 and done.err.count("\n") == 1 and done.err.startswith("error: ")


def test_drawing_is_plain_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    draw.heat([[0.0, 0.5, 1.0]], ["row"], ["a", "b", "c"], 0.0, 1.0, "unit")
    out = capsys.readouterr().out
    assert "row   ++@@" in out and "\x1b" not in out
    assert draw.token("a\nb\x1b[31m", 30) == "'a␊b␛[31m'"
    assert draw.cells(draw.token("x" * 99, 10)) <= 12
    assert plain({"a": float("inf"), 1: b"x"}) == {"a": None, "1": "x"}


def test_colours_are_those_of_cividis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "coloured", lambda: True)
    assert draw.shade(0.0) == "\x1b[48;2;0;32;76m  \x1b[0m"
    assert draw.shade(1.0) == "\x1b[48;2;255;234;70m  \x1b[0m"
    assert draw.shade(float("nan")) == draw.shade(0.0)


def test_a_report_is_one_file_and_says_what_it_tells(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "out.html"
    done = cli("trace", PROMPT, "--html", str(place), "--max-tokens", "1", "--seed", "7")
    assert done.code == 0, done.err
    assert done.err == "writing the report of 6 tokens\n"
    assert f"{place} (" in done.out and "the prompt and the answer are in it" in done.out
    assert [p.name for p in tmp_path.iterdir()] == ["out.html"]  # and no folder
    for args, said in (
        (["--html", str(place)], "is there already; choose another place with --html"),
        (["--html", str(tmp_path / "no" / "x.html")], "there is no folder"),
        (["--html", str(tmp_path / "x.html"), "--html-budget", "huge"], "is no size"),
        (["--html", str(tmp_path / "x.html"), "--html-budget", "50KB", "--max-tokens", "0"], "raise its budget"),
    ):
        done = cli("trace", PROMPT, *args)
        assert done.code == 2 and said in done.err, done.err
    assert not (tmp_path / "x.html").exists()
