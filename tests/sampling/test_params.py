from __future__ import annotations

import math

import pytest

from pellucid.errors import RequestError
from pellucid.sampling.params import SAMPLERS, SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", True),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("top_n_sigma", math.nan),
        ("typical_p", 0),
        ("xtc_probability", -0.1),
        ("xtc_threshold", 1.1),
        ("dynatemp_range", -1),
        ("dynatemp_exponent", math.inf),
        ("repeat_last_n", -2),
        ("bad_words", "x"),
        ("bad_words", [""]),
        ("bad_words", [5]),
        ("bad_words", ["x" * 257]),
        ("logprobs_mode", "raw_logits"),
        ("samplers", 5),
        ("samplers", ["nonsense"]),
        ("samplers", ["top_k", 3]),
        ("samplers", ["top_k", "top_k"]),
        ("samplers", ["infill", "infill"]),
        ("dry_multiplier", -1),
        ("dry_base", 0.5),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", [""]),
        ("dry_sequence_breakers", "x"),
        ("dry_sequence_breakers", ["x" * 65]),
        ("dry_sequence_breakers", ["\ud800"]),
        ("dry_sequence_breakers", ["x"] * 17),
        ("samplers", "kz"),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("n", 0),
        ("n", 129),
        ("max_tokens", -1),
        ("min_tokens", 17),
        ("seed", 2**64),
        ("logprobs", 21),
        ("logprobs", True),
        ("prompt_logprobs", -1),
        ("stop", ("",)),
        ("stop", [1]),
        ("stop", ["x"] * 65),
        ("stop_token_ids", (-1,)),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [-1]),
        ("allowed_token_ids", ["1"]),
        ("allowed_token_ids", 5),
        ("allowed_token_ids", [0] * ((1 << 16) + 1)),
        ("logit_bias", {1: 101}),
        ("logit_bias", {-1: 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", dict.fromkeys(range(1025), 1)),
    ],
)
def test_what_cannot_be_served_names_its_field(name, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert "\n" not in caught.value.message


def test_forms_of_values():
    params = SamplingParams(stop="end", logit_bias={"5": 1, 6: -2.5}, stop_token_ids=[3], max_tokens=None)
    assert params.stop == ("end",)
    assert dict(params.logit_bias) == {5: 1.0, 6: -2.5}
    assert params.stop_token_ids == (3,)
    assert SamplingParams(stop=None).stop == ()
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams().penalized


def test_stages_go_by_llama_cpps_names_and_letters_too():
    names = ("penalties", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature")
    assert SamplingParams(samplers=["penalties", "top-k", "typ_p", "nucleus", "min-p", "xtc", "temp"]).samplers == names
    assert SamplingParams(samplers="ekypmxt").samplers == names
    usual = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]  # llama.cpp's
    assert set(SamplingParams(samplers=usual).samplers) == set(SAMPLERS)
    assert SamplingParams(samplers="edskypmxt").samplers == SamplingParams(samplers=usual).samplers
    assert SamplingParams(samplers=["infill", "top_k"]).samplers == ("top_k",)
    assert SamplingParams(samplers=None).samplers == SamplingParams().samplers
    off = SamplingParams(samplers=["top_k"], top_k=3, top_p=0.5, repetition_penalty=2)
    assert off.stages == ("top_k",)
    assert not off.penalized
    assert not SamplingParams(repetition_penalty=2, repeat_last_n=0).penalized


def test_penalties_stand_where_they_are_named():
    def order(*samplers, **more):
        params = SamplingParams(samplers=samplers, repetition_penalty=2, dry_multiplier=1, top_k=3, **more)
        return params.settled, params.stages

    assert order("dry", "penalties", "top_k") == (("dry", "penalties"), ("top_k",))
    assert order("dry", "top_k", "penalties") == (("dry",), ("top_k", "penalties"))
    assert order("top_k", "penalties", "dry", temperature=0) == (("penalties", "dry"), ("top_k",))
