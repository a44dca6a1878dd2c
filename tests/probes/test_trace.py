"""The funnel, forks, influence and comparison on the default model and on tiny ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid import LLM, SamplingParams
from pellucid.errors import ContextLengthError, MemoryPlanError, RequestError
from pellucid.probes import fork
from pellucid.probes.funnel import funnel
from pellucid.probes.influence import spans_of
from pellucid.probes.inspect import replay_of
from pellucid.probes.receipt import check
from pellucid.probes.replay import budget_bytes
from pellucid.sampling.grammar import Grammar

PROMPT = "The capital of France is"
TINY = Path(__file__).parents[1] / "golden" / "tiny" / "llama"


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(smollm2_path, threads=2, ctx=512, progress=False) as llm:
        yield llm


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=4, seed=1),
        SamplingParams(temperature=1.3, max_tokens=6, seed=2, ignore_eos=True),
        SamplingParams(temperature=0.9, top_k=30, top_p=0.8, min_p=0.02, max_tokens=6, seed=3),
        SamplingParams(
            temperature=0.7,
            repetition_penalty=1.3,
            frequency_penalty=0.4,
            logit_bias={7042: -5.0},
            max_tokens=5,
            seed=4,
        ),
        SamplingParams(temperature=1.0, min_tokens=4, max_tokens=5, seed=5),
    ],
    ids=["greedy", "hot", "cuts", "penalties", "held"],
)
def test_the_funnel_replays_the_served_token_and_the_badge_is_zero(llm: LLM, params: SamplingParams) -> None:
    trace = llm.inspect(PROMPT, params)
    assert trace.delta == 0.0
    for pos in range(trace.prompt_len, len(trace.ids)):
        found = trace.why(pos)
        assert found.replays and found.token == trace.ids[pos]
        assert found.stages[-1].name == "draw" and found.stages[-1].kept == 1
        assert all(stage.kept <= before.kept for before, stage in zip(found.stages, found.stages[1:], strict=False))
        if params.greedy:
            assert found.random is None and not found.cdf
            continue
        own = next(i for i in found.cdf if i.token == found.token)
        assert found.random is not None and own.low <= found.random + 1e-9 and found.random <= own.high + 1e-9


def test_the_funnel_shows_what_a_grammar_took(llm: LLM) -> None:
    params = SamplingParams(temperature=0.8, max_tokens=8, seed=3, grammar=Grammar.choice([" London", " Rome"]))
    trace = llm.inspect(PROMPT, params)
    found = trace.why(trace.prompt_len)
    assert found.replays and trace.delta == 0
    stage = next(s for s in found.stages if s.name == "grammar")
    assert stage.changed and stage.kept < 20 and stage.mass_removed > 0.9
    assert dict(found.counterfactuals)["no grammar"] == llm.tokenize(" Paris")[0]
    assert trace.texts[trace.prompt_len :][0] in (" London", " Rome", " L", " R")
    [result] = llm.generate(PROMPT, params, output_scores=True)
    scores = result.outputs[0].scores
    assert scores is not None and np.isfinite(scores[0]).sum() < 20
    [result] = llm.generate(PROMPT, replace(params, logprobs=0))
    receipt = json.loads(json.dumps(llm.receipt(result, replace(params, logprobs=0))))
    assert check(llm, receipt).identical


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_funnel_masses_add_up(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    logits = (rng.standard_normal(50) * 3).astype(np.float32)
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.3, 1.0, 2.0])),
        top_k=data.draw(st.sampled_from([0, 1, 5, 60])),
        top_p=data.draw(st.sampled_from([1.0, 0.9, 0.3])),
        min_p=data.draw(st.sampled_from([0.0, 0.1])),
    )
    found = funnel(logits, params, seed=3, choice=0, tokens=[1, 2], prompt_len=2, end_ids=(), chosen=0, top=50)
    left = 1.0
    x = np.exp((logits.astype(np.float64) - logits.max()) / params.temperature)
    p = np.sort(x / x.sum())[::-1]
    for stage in found.stages[:-1]:
        left *= 1 - stage.mass_removed
        assert left == pytest.approx(p[: stage.kept].sum(), abs=1e-5)
    assert found.cdf[0].low == pytest.approx(0, abs=1e-12) and found.cdf[-1].high <= 1 + 1e-9
    inside = [i for i in found.cdf if found.random is not None and i.low <= found.random < i.high]
    assert not inside or inside[0].token == found.token


def test_the_lens_sees_paris_come_and_the_map_says_france(llm: LLM) -> None:
    trace = llm.inspect(PROMPT)
    assert trace.texts[-1] == " Paris"
    lens = trace.logit_lens(pos=-1)
    assert lens.ranks[-1, 0] == 1 and lens.ranks[0, 0] > 100
    assert 20 < lens.decided(lens.positions[0]) <= 30
    influence = trace.prompt_influence(-1, by="token")
    by_text = dict(zip((s.text for s in influence.spans), influence.changes, strict=True))
    assert by_text[" France"] < -2 and by_text[" capital"] < -2
    assert influence.noise < 0.1
    assert trace.norms is not None and trace.norms.resid.shape == (31, 6)


def test_norms_are_those_of_the_values(llm: LLM) -> None:
    trace = llm.inspect(PROMPT)
    _, cache = llm.run_with_cache(trace.ids, ["blocks.7.hook_mlp_out", "blocks.7.hook_attn_out", "hook_embed"])
    assert trace.norms is not None
    assert np.allclose(trace.norms.mlp[7], np.linalg.norm(cache["blocks.7.hook_mlp_out"], axis=1), rtol=1e-5)
    assert np.allclose(trace.norms.attn[7], np.linalg.norm(cache["blocks.7.hook_attn_out"], axis=1), rtol=1e-5)
    assert np.allclose(trace.norms.resid[0], np.linalg.norm(cache["hook_embed"], axis=1), rtol=1e-5)


def test_a_fork_changes_its_own_run_and_nothing_else(llm: LLM) -> None:
    ids = llm.tokenize(PROMPT)
    plain, cache = llm.run_with_cache(ids, "blocks.3.attn.hook_z")
    assert np.array_equal(llm.run_with_hooks(ids, [("blocks.3.attn.hook_z", lambda z, name: None)]), plain)
    ablated = llm.run_with_hooks(ids, [("blocks.3.attn.hook_z", lambda z, name: np.zeros_like(z))])
    assert np.abs(ablated - plain).max() > 0.1
    back = llm.run_with_hooks(ids, [("blocks.3.attn.hook_z", lambda z, name: cache["blocks.3.attn.hook_z"])])
    assert np.array_equal(back, plain)
    assert np.array_equal(llm.run_with_cache(ids, "hook_embed")[0], plain)


def test_scaling_heads_is_scaling_their_z(llm: LLM) -> None:
    ids = llm.tokenize(PROMPT)
    replay = replay_of(llm, ids)
    hooks = fork.together(
        fork.scale_heads(replay.anatomy, 4, [1, 5], 0.5), fork.scale_part(replay.anatomy, 9, "mlp", 0.0)
    )
    last = replay.anatomy.last
    (part,) = replay.run([last, "blocks.9.hook_mlp_out.patched", "blocks.4.attn.hook_z.patched"], hooks=hooks)
    _, cache = llm.run_with_cache(ids, "blocks.4.attn.hook_z")
    due = cache["blocks.4.attn.hook_z"].copy()
    due[:, [1, 5]] *= 0.5
    assert np.array_equal(part.of("blocks.4.attn.hook_z.patched"), due)
    assert not part.of("blocks.9.hook_mlp_out.patched").any()


def test_patching_an_activation_moves_the_answer(llm: LLM) -> None:
    """What stands at `Italy` late in the stream, put where `France` stood, makes Rome likelier."""
    france, italy = llm.tokenize(PROMPT), llm.tokenize("The capital of Italy is")
    name = "blocks.8.hook_resid_post"
    _, there = llm.run_with_cache(italy, name)
    rome, paris = llm.tokenize(" Rome")[0], llm.tokenize(" Paris")[0]
    plain, _ = llm.run_with_cache(france, "hook_embed")
    replay = replay_of(llm, france)
    hooks = fork.put(name, 3, there[name][3])
    (part,) = replay.run([replay.anatomy.last], hooks=hooks)
    (_, logits) = next(iter(replay.unembed(part.of(replay.anatomy.last))))
    assert logits[-1, rome] - logits[-1, paris] > plain[-1, rome] - plain[-1, paris] + 3


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0, max_tokens=8, seed=0),
        SamplingParams(temperature=1.1, top_p=0.9, repetition_penalty=1.2, max_tokens=8, seed=4),
    ],
    ids=["greedy", "drawn"],
)
def test_a_fork_that_changes_nothing_says_what_was_served(llm: LLM, params: SamplingParams) -> None:
    trace = llm.inspect(PROMPT, params)
    prompt = llm.inspect(PROMPT, SamplingParams(max_tokens=0))
    again = prompt.fork(room=8).generate(params, seed=trace.seed, end_ids=trace.end_ids)
    assert again == trace.output_ids


def test_a_forced_token_leads_elsewhere_and_a_lost_layer_to_nonsense(llm: LLM) -> None:
    trace = llm.inspect(PROMPT, SamplingParams(temperature=0, max_tokens=2))
    london = llm.tokenize(" London")[0]
    forked = trace.fork(force=(trace.prompt_len, london), room=4)
    params = SamplingParams(temperature=0, max_tokens=4, seed=0)
    forked.generate(params, seed=0)
    assert forked.tokens[: trace.prompt_len + 1] == [*trace.ids[: trace.prompt_len], london]
    assert len(forked.tokens) == trace.prompt_len + 5
    at = trace.prompt_len
    plain = trace.fork().logprob(at)
    assert plain == pytest.approx(trace.scores.logprobs[at - 1], abs=1e-6)
    assert trace.fork(mlp=[0]).logprob(at) < plain - 3
    assert trace.fork(mask=(3, 4)).logprob(at) < plain - 2  # France
    assert trace.fork(heads=[(3, 1)], factor=1.0).logprob(at) == plain
    assert trace.ids[at] != london and trace.why(at).replays
    with pytest.raises(ContextLengthError):
        trace.fork(room=4000)


def test_a_masked_span_is_a_text_nobody_looks_back_at(llm: LLM) -> None:
    ids = llm.tokenize("Red is a colour. The capital of France is")
    replay = replay_of(llm, ids)
    for _ in replay.run([]):
        pass
    pattern = []
    hooks = fork.mask_span(replay, 1, 4)
    for part in replay.run([replay.anatomy.last], hooks=hooks, start=4):
        pattern.append(part.of(replay.anatomy.last))
    # The masked tokens' own K and V no longer matter.
    other = replay_of(llm, [ids[0], *ids[7:4:-1], *ids[4:]])
    for _ in other.run([]):
        pass
    again = [
        p.of(other.anatomy.last) for p in other.run([other.anatomy.last], hooks=fork.mask_span(other, 1, 4), start=4)
    ]
    assert np.allclose(np.concatenate(pattern), np.concatenate(again))


def test_spans_cover_the_prompt_once() -> None:
    pieces = [b"One", b" two", b". ", b"Three", b" four!", b"\n\n", b"Five", b" \xf0\x9f", b"\x98\x80"]
    for by in ("section", "sentence", "word", "token"):
        spans = spans_of(pieces, by, 1, 9)
        assert [s.first for s in spans[1:]] == [s.end for s in spans[:-1]]
        assert (spans[0].first, spans[-1].end) == (1, 9)
    assert len(spans_of(pieces, "section", 0, 9)) == 2
    assert next(s.text for s in spans_of(pieces, "sentence", 0, 7)) == "One two. "
    with pytest.raises(RequestError, match="no way to cut"):
        spans_of(pieces, "page", 0, 2)


def test_grounding_tells_a_copied_answer_from_a_free_one(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    trace = llm.inspect("My code word is zebra. My code word is", params)
    grounding = trace.grounding()
    assert len(grounding.changes) == 8
    assert min(grounding.changes) < -1
    for first, end in grounding.free:
        assert trace.prompt_len <= first < end <= len(trace.ids)


def test_comparing_a_trace_with_itself_and_with_another_format(llm: LLM, smollm2_path: Path) -> None:
    trace = llm.inspect(PROMPT, SamplingParams(temperature=0, max_tokens=6))
    same = trace.compare(llm.inspect(trace.ids, SamplingParams(max_tokens=0)))
    assert same.first_divergence is None and not same.kl.any()
    with LLM(smollm2_path, threads=1, ctx=512, kv="q8_0", progress=False) as other:
        found = trace.compare(other.inspect(trace.ids, SamplingParams(max_tokens=0)))
    assert 0 < found.kl.max() < 0.5
    assert np.array_equal(found.logprobs[0], found.logprobs[0])


def test_a_chat_is_inspected_through_its_template(llm: LLM) -> None:
    trace = llm.inspect([{"role": "user", "content": "Say hi."}], SamplingParams(temperature=0, max_tokens=3))
    assert trace.prompt_len > 10 and trace.delta == 0.0


def test_errors_say_what_to_do(llm: LLM) -> None:
    trace = llm.inspect(PROMPT)
    for wrong, call in (
        ("layer 99", lambda: trace.attention(99, 0)),
        ("head 9 is not there", lambda: trace.attention(0, 9)),
        ("pos=50", lambda: trace.why(50)),
        ("nothing stands before", lambda: trace.why(0)),
        ("no value 'blocks.x'", lambda: llm.run_with_cache(PROMPT, "blocks.x")),
        ("more than the", lambda: llm.run_with_cache(PROMPT * 20, budget="64MB")),
        ("cannot be changed", lambda: llm.run_with_hooks(PROMPT, [("blocks.0.attn.hook_pattern", lambda x, n: x)])),
        ("level=", lambda: llm.inspect(PROMPT, level="deep")),  # type: ignore[arg-type]
        ("no size", lambda: llm.inspect(PROMPT, budget="lots")),
        ("choose attn or mlp", lambda: fork.scale_part(trace.source().anatomy, 0, "head")),
    ):
        with pytest.raises(RequestError, match=wrong):
            call()
    with pytest.raises(MemoryPlanError, match="raise --budget"):
        llm.inspect(PROMPT, budget="1MB")
    with pytest.raises(ContextLengthError):
        replay_of(llm, [1] * 600)


def test_budgets_are_read() -> None:
    assert budget_bytes("512MB") == 512 * 10**6
    assert budget_bytes("2GiB") == 2 << 30
    assert budget_bytes("1.5k") == 1500
    assert budget_bytes(None) == 512 << 20
    assert budget_bytes(77) == 77


def test_small_budgets_chunk_and_change_no_number(llm: LLM) -> None:
    ids = llm.tokenize("The rain in Spain stays mainly in the plain, they say. " * 24)
    large = llm.inspect(ids, SamplingParams(max_tokens=0), level="tokens")
    small = llm.inspect(ids, SamplingParams(max_tokens=0), level="tokens", budget="40MB")
    assert small.source().chunk < large.source().chunk
    assert np.array_equal(small.scores.logprobs, large.scores.logprobs)
    assert np.array_equal(small.attention(7, [2], -1), large.attention(7, [2], -1))


GROWTH = """
import sys
from pathlib import Path
from pellucid import LLM, SamplingParams

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

with LLM(sys.argv[1], threads=2, ctx=1100, max_seqs=1, progress=False) as llm:
    ids = llm.tokenize("The rain in Spain stays mainly in the plain, they say. " * 90)[:1024]
    llm.generate([ids[:16]], SamplingParams(max_tokens=1), progress=False)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    trace = llm.inspect(ids, SamplingParams(max_tokens=0), level="heads", budget=int(sys.argv[2]))
    trace.why(-1)
    trace.logit_lens(pos=-1)
    trace.attention(7, range(9), range(-64, 0))
    print(peak() - before)
"""


def test_looking_stays_within_its_budget(smollm2_path: Path) -> None:
    """The peak of a process of its own, which no other test has grown; benchmarks/lens.py does it with 4,096 tokens."""
    budget = 80 * 10**6
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(smollm2_path), str(budget)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= budget
