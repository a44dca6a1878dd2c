"""What each stage keeps, by hand, and what holds of every one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.probes.funnel import funnel
from pellucid.sampling import chain, cuts
from pellucid.sampling.params import SAMPLERS, SamplingParams
from pellucid.sampling.philox import Stage, bits53


def unedited(name, row):
    return row


def left(shares, *, bits=0, **params):
    """What the stages leave of tokens of these shares: ids, and their shares."""
    row = np.log(np.array(shares)).astype(np.float32)
    asked = SamplingParams(**params)
    *_, (_, _, c) = cuts.cuts(cuts.Candidates.of(row, asked), asked, lambda stage: bits, unedited)
    return c.ids.tolist(), (c.w / c.total).tolist()


FIVE = [0.4, 0.3, 0.2, 0.06, 0.04]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        # Deviation of the five logs is 0.926: one below log 0.4 is log 0.158, two are log 0.063.
        ({"top_n_sigma": 1.0}, [0, 1, 2]),
        ({"top_n_sigma": 2.0}, [0, 1, 2]),
        ({"top_n_sigma": 2.1}, [0, 1, 2, 3]),
        ({"top_n_sigma": 1.0, "temperature": 3.0}, [0, 1, 2]),
        # Entropy is 1.347, surprises are 0.92, 1.20, 1.61, 2.81, 3.22.
        ({"typical_p": 0.1}, [1]),
        ({"typical_p": 0.4}, [1, 2]),
        ({"typical_p": 0.6}, [0, 1, 2]),
        ({"typical_p": 0.95}, [0, 1, 2, 3]),
        ({"xtc_probability": 1.0}, [2, 3, 4]),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.25}, [1, 2, 3, 4]),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.35}, [0, 1, 2, 3, 4]),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.0}, [4]),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.51}, [0, 1, 2, 3, 4]),
        # The order says what a cut reads: half of what the temperature left, or half of what the model said.
        ({"top_p": 0.5, "temperature": 0.1}, [0]),
        ({"top_p": 0.5, "temperature": 0.1, "samplers": ["top_p", "temperature"]}, [0, 1]),
        ({"top_k": 2, "samplers": ["temperature"]}, [0, 1, 2, 3, 4]),
        ({"top_k": 2, "xtc_probability": 1.0, "samplers": ["xtc", "top_k"]}, [2, 3]),
    ],
)
def test_each_stage_keeps_what_it_says(params, kept):
    ids, shares = left(FIVE, **params)
    assert ids == kept
    if "temperature" not in params:
        assert np.allclose(shares, np.array(FIVE)[kept] / np.array(FIVE)[kept].sum(), atol=1e-6)


def test_xtc_acts_as_often_as_it_is_asked_to():
    acts = [bits53(3, 0, position, Stage.XTC) < 2**53 * 0.3 for position in range(4000)]
    assert 0.27 < np.mean(acts) < 0.33
    assert left(FIVE, xtc_probability=0.3, bits=int(0.29 * 2**53))[0] == [2, 3, 4]
    assert left(FIVE, xtc_probability=0.3, bits=int(0.31 * 2**53))[0] == [0, 1, 2, 3, 4]


def test_the_dynamic_temperature_follows_the_entropy():
    even = left([0.25] * 4, dynatemp_range=0.5)
    assert even[1] == [0.25] * 4

    def scale(shares, **params):
        asked = SamplingParams(**params)
        row = np.log(np.array(shares)).astype(np.float32)
        return float(cuts.temperature(cuts.Candidates.of(row, asked), asked, lambda stage: 0).scale)

    assert scale([0.25] * 4, dynatemp_range=0.5) == pytest.approx(1.5, abs=1e-5)
    assert scale([1 - 3e-9, 1e-9, 1e-9, 1e-9], dynatemp_range=0.5) == pytest.approx(0.5, abs=1e-5)
    assert scale(FIVE, dynatemp_range=0.5) == pytest.approx(0.5 + 1.3470 / np.log(5), abs=1e-3)
    assert scale(FIVE, dynatemp_range=0.5, dynatemp_exponent=2) == pytest.approx(
        0.5 + (1.3470 / np.log(5)) ** 2, abs=2e-3
    )
    assert scale(FIVE, dynatemp_range=5) > 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=40),
    st.permutations(SAMPLERS),
    st.fixed_dictionaries(
        {
            "temperature": st.floats(0.01, 50),
            "top_n_sigma": st.floats(0, 5),
            "top_k": st.integers(0, 50),
            "typical_p": st.floats(1e-6, 1),
            "top_p": st.floats(1e-6, 1),
            "min_p": st.floats(0, 1),
            "xtc_probability": st.floats(0, 1),
            "xtc_threshold": st.floats(0, 1),
            "dynatemp_range": st.floats(0, 2),
            "dynatemp_exponent": st.floats(0, 3),
        }
    ),
)
def test_every_stage_leaves_a_run_of_what_it_got(logits, samplers, values):
    row = np.array(logits, np.float32)
    params = SamplingParams(samplers=samplers, **values)
    candidates = cuts.Candidates.of(row, params)
    for name, before, after in cuts.cuts(candidates, params, lambda stage: bits53(7, 0, 3, stage), unedited):
        assert after.total > 0
        given = before.ids.tolist()
        if name == "temperature":
            assert sorted(after.ids.tolist()) == sorted(given)
        else:
            at = given.index(int(after.ids[0]))
            assert after.ids.tolist() == given[at : at + len(after.ids)]
        keys = [(-float(x), int(id)) for x, id in zip(after.x, after.ids, strict=True)]
        assert keys == sorted(keys)


def test_the_funnel_shows_the_stages_by_name_in_their_order():
    row = np.log(np.array(FIVE)).astype(np.float32)
    order = ["penalties", "top_n_sigma", "typical_p", "xtc", "temperature"]
    params = SamplingParams(
        top_n_sigma=2.1, typical_p=0.95, xtc_probability=1, temperature=2, dynatemp_range=1, samplers=order
    )
    key = {"seed": 5, "choice": 0, "tokens": [1], "prompt_len": 1, "end_ids": ()}
    chosen = chain.trace(row, params, **key).token
    found = funnel(row, params, chosen=chosen, **key)
    assert found.replays
    edits = [name for name in chain.EDITS if name != "dry"]
    assert [stage.name for stage in found.stages] == [*edits, *order[1:], "draw"]
    kept = {stage.name: stage.kept for stage in found.stages}
    assert (kept["top_n_sigma"], kept["typical_p"], kept["xtc"]) == (4, 4, 2)
    gone = next(stage for stage in found.stages if stage.name == "xtc")
    assert gone.mass_removed == pytest.approx(0.7 / 0.96, abs=1e-6)
    assert gone.cut[0] == 2
    assert {interval.token for interval in found.cdf} == {2, 3}
    assert {"no cuts", "fixed temperature", "usual order"} & {name for name, _ in found.counterfactuals}
