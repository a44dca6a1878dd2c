"""SamplingParams: what a request may ask of sampling, with vLLM's names and meanings.

Law: a value that exists is a value that can be served. Everything is checked here, once; no later layer checks ranges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from pellucid.config import LOGPROBS_MODES
from pellucid.errors import RequestError
from pellucid.sampling.grammar import Grammar
from pellucid.sampling.words import Breaker

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM."""
MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOPS = 64
MAX_STOP_LENGTH = 1024
MAX_BIASES = 1024
MAX_ALLOWED = 1 << 16
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 256
MAX_BREAKERS = 16
MAX_BREAKER_LENGTH = 64
SAMPLERS = ("penalties", "dry", "temperature", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc")
"""The stages that `samplers` names, in the order that holds unless another is asked for."""
EDITORS = ("penalties", "dry")
"""Those of them that edit logits."""
IDLE = "infill"
"""A stage of llama.cpp's that may be named and does nothing here: no prompt is filled in."""
_SPELLINGS = {
    "typ_p": "typical_p",
    "typical": "typical_p",
    "typ": "typical_p",
    "nucleus": "top_p",
    "temp": "temperature",
}
"""llama.cpp's other names of stages."""
_LETTERS = dict(zip("edtskypmxi", (*SAMPLERS, IDLE), strict=True))
"""Its letters for them."""
BREAKERS = ("\n", ":", '"', "*")
"""llama.cpp's sequence breakers."""


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends. Raises RequestError that names the field."""

    temperature: float = 1.0
    """0 (below 1e-5) is greedy."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1: all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose share of the mass that top_k left is at least this."""
    min_p: float = 0.0
    """Keep tokens whose probability is at least this fraction of the most likely one's."""
    top_n_sigma: float = 0.0
    """Keep tokens at most so many standard deviations of all logits below the best one; 0 or less: all."""
    typical_p: float = 1.0
    """Keep tokens of about the expected surprise, the fewest that have this share of the mass; 1: all."""
    xtc_probability: float = 0.0
    """How often the likeliest tokens are excluded: all that have xtc_threshold, but the least likely of them."""
    xtc_threshold: float = 0.1
    """Above 0.5 no two tokens have it, and nothing is excluded."""
    dynatemp_range: float = 0.0
    """The temperature lies within this range of the given one, the higher the more uncertain the model is."""
    dynatemp_exponent: float = 1.0
    """Power of the entropy, as a share of the largest possible, that places it."""
    samplers: tuple[str, ...] = SAMPLERS
    """Stages in order; what is not named is not run, but for biases, bans and the draw. Or as llama.cpp spells them."""
    dry_multiplier: float = 0.0
    """What is taken, at least, from the logit of a token that goes on with a repeat; 0: the stage dry is off."""
    dry_base: float = 1.75
    """By what that grows for each token that the repeat is longer than dry_allowed_length."""
    dry_allowed_length: int = 2
    """Repeats that are shorter cost nothing."""
    dry_penalty_last_n: int = -1
    """Of prompt and answer, how many of the last tokens are searched for repeats; -1: all, 0: none."""
    dry_sequence_breakers: tuple[str, ...] = BREAKERS
    """No repeat reaches back over one of these."""
    breakers: tuple[Breaker, ...] | None = field(default=None, repr=False, compare=False)
    """These in tokens of the model, found by the one who has its vocabulary (LLM.spell); None: not yet."""
    repetition_penalty: float = 1.0
    """Over the tokens of prompt and answer: positive logits are divided by it, negative ones multiplied."""
    repeat_last_n: int = -1
    """Of prompt and answer, how many of the last tokens the penalties count; -1: all, 0: none."""
    presence_penalty: float = 0.0
    """Taken from the logit of each token of the answer."""
    frequency_penalty: float = 0.0
    """Taken from the logit of each token of the answer, once for each time it came."""
    logit_bias: Mapping[int, float] = field(default_factory=lambda: cast(dict[int, float], {}))
    """Added to logits, by token id."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these may be drawn; kept ascending, each once. None: all."""
    bad_words: tuple[str, ...] = ()
    """The token that would complete one of these in the answer is not drawn; as words, and within them."""
    bad_ids: tuple[tuple[int, ...], ...] | None = field(default=None, repr=False, compare=False)
    """These in tokens of the model, found by the one who has its vocabulary (LLM.spell); None: not yet."""
    seed: int | None = None
    """Seed of the request; None: the engine's, or one drawn and recorded."""
    n: int = 1
    """Answers wanted; the caller submits one sequence for each, with choice = 0..n-1."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; found by the detokenizer, not by the engine."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the answer, besides the model's own."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    """Go on after the model's own end tokens; stop_token_ids still end."""
    min_tokens: int = 0
    """No token that would end the answer is drawn before this many."""
    max_tokens: int | None = 16
    """Longest answer in tokens; None: to the end of the context; 0: compute the prompt only."""
    logprobs: int | None = None
    """Report the log-probability of each token drawn and of this many most likely ones (0 to 20)."""
    logprobs_mode: str | None = None
    """What these describe: raw_logprobs, the model itself; processed_logprobs, what was drawn from, after every stage;
    None: as the engine is configured."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt; always of the model itself."""
    skip_special_tokens: bool = True
    grammar: Grammar | None = None
    """The form that the answer must have; None: any."""

    def __post_init__(self) -> None:
        number("temperature", self.temperature, 0.0, 100.0)
        number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise RequestError("top_p=0 keeps no token; give a number above 0, up to 1", param="top_p")
        number("min_p", self.min_p, 0.0, 1.0)
        number("top_n_sigma", self.top_n_sigma, -1.0, 1000.0)
        number("typical_p", self.typical_p, 0.0, 1.0)
        if self.typical_p == 0.0:
            raise RequestError("typical_p=0 keeps no token; give a number above 0, up to 1", param="typical_p")
        number("xtc_probability", self.xtc_probability, 0.0, 1.0)
        number("xtc_threshold", self.xtc_threshold, 0.0, 1.0)
        number("dynatemp_range", self.dynatemp_range, 0.0, 100.0)
        number("dynatemp_exponent", self.dynatemp_exponent, 0.0, 100.0)
        number("dry_multiplier", self.dry_multiplier, 0.0, 100.0)
        number("dry_base", self.dry_base, 1.0, 100.0)
        whole("dry_allowed_length", self.dry_allowed_length, 0, 1 << 31)
        whole("dry_penalty_last_n", self.dry_penalty_last_n, -1, 1 << 31)
        number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        whole("top_k", self.top_k, -1, 1 << 31)
        whole("repeat_last_n", self.repeat_last_n, -1, 1 << 31)
        whole("n", self.n, 1, MAX_CHOICES)
        whole("min_tokens", self.min_tokens, 0, 1 << 31)
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 0, 1 << 31)
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}", param="min_tokens"
                )
        if self.seed is not None:
            whole("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None:
                whole(name, value, 0, MAX_LOGPROBS)
        if self.logprobs_mode is not None and self.logprobs_mode not in LOGPROBS_MODES:
            raise RequestError(
                f"logprobs_mode={self.logprobs_mode!r} is not known; give {' or '.join(LOGPROBS_MODES)}",
                param="logprobs_mode",
            )
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name}={getattr(self, name)!r} is not True or False", param=name)
        if self.grammar is not None and self.allowed_token_ids is not None:
            raise RequestError(
                "allowed_token_ids cannot be used with a grammar, which says what may come", param="allowed_token_ids"
            )
        if self.grammar is not None and (self.ignore_eos or self.min_tokens):
            name = "ignore_eos" if self.ignore_eos else "min_tokens"
            raise RequestError(f"{name} cannot be used with a grammar, which says where an answer ends", param=name)
        object.__setattr__(self, "samplers", stage_names(self.samplers))
        object.__setattr__(self, "dry_sequence_breakers", breaker_strings(self.dry_sequence_breakers))
        object.__setattr__(self, "bad_words", bad_strings(self.bad_words))
        object.__setattr__(self, "stop", stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", stop_ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", biases(self.logit_bias))
        object.__setattr__(self, "allowed_token_ids", allowed_ids(self.allowed_token_ids))

    @property
    def greedy(self) -> bool:
        """True if the most likely token is taken and no random number is used."""
        return self.temperature < GREEDY_BELOW

    @property
    def excludes(self) -> bool:
        """True if the stage xtc may act."""
        return self.xtc_probability > 0.0 and self.xtc_threshold <= 0.5

    @property
    def settled(self) -> tuple[str, ...]:
        """Those of `samplers` that edit logits before anything weighs or cuts; all that edit, if this is greedy."""
        if self.greedy:
            return tuple(name for name in self.samplers if name in EDITORS)
        return tuple(itertools.takewhile(EDITORS.__contains__, self.samplers))

    @property
    def stages(self) -> tuple[str, ...]:
        """Those of `samplers` that run after the settled ones and are on, in order."""
        on = {
            "penalties": self.penalized,
            "dry": self.dries,
            "temperature": True,
            "top_n_sigma": self.top_n_sigma > 0.0,
            "top_k": self.top_k > 0,
            "typical_p": self.typical_p < 1.0,
            "top_p": self.top_p < 1.0,
            "min_p": self.min_p > 0.0,
            "xtc": self.excludes,
        }
        return tuple(name for name in self.samplers if on[name] and name not in self.settled)

    @property
    def penalized(self) -> bool:
        """True if a penalty acts."""
        on = self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        return on and self.repeat_last_n != 0 and "penalties" in self.samplers

    @property
    def dries(self) -> bool:
        """True if the stage dry acts."""
        return self.dry_multiplier > 0.0 and self.dry_penalty_last_n != 0 and "dry" in self.samplers

    @property
    def remembers(self) -> bool:
        """True if a stage needs to know which tokens came before."""
        return self.penalized or self.dries or bool(self.bad_words)

    @property
    def unspelled(self) -> str | None:
        """Name a field whose strings are needed and not known in tokens yet; None: there is none."""
        if self.dries and self.dry_sequence_breakers and self.breakers is None:
            return "dry_sequence_breakers"
        return "bad_words" if self.bad_words and self.bad_ids is None else None


def number(name: str, value: Any, low: float, high: float) -> None:
    """Raise RequestError unless `value` is a finite number within [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"{name}={value!r} is not a number", param=name)
    if not low <= value <= high:
        raise RequestError(f"{name}={value} is out of range; give {low:g} to {high:g}", param=name)


def whole(name: str, value: Any, low: int, high: int) -> None:
    """Raise RequestError unless `value` is an integer within [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name}={value!r} is not a whole number", param=name)
    if not low <= value <= high:
        raise RequestError(f"{name}={value} is out of range; give {low} to {high}", param=name)


def _items(name: str, value: Any, wanted: str) -> tuple[Any, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | bytearray | Mapping):
        raise RequestError(f"{name}={value!r} is not {wanted}", param=name)
    return tuple(cast("Iterable[Any]", value))


def stage_names(value: Any) -> tuple[str, ...]:
    """Return names of stages by our spelling; llama.cpp's names and letters are taken, None is the usual order."""
    if value is None:
        return SAMPLERS
    known = ", ".join(SAMPLERS)
    names: list[str] = []
    for name in spelled_stages(value):
        stage = name[1]
        if stage not in (*SAMPLERS, IDLE):
            raise RequestError(
                f"samplers: there is no stage {str(name[0])[:64]!r}; these can be ordered: {known}", param="samplers"
            )
        if stage in names:
            raise RequestError(f"samplers names {stage} twice; name each stage once", param="samplers")
        names.append(stage)
    return tuple(name for name in names if name != IDLE)


def spelled_stages(value: Any) -> list[tuple[Any, str]]:
    """Return each item of `samplers` and, if it is a stage by any of its names, our name of it."""
    names = value if isinstance(value, str) else _items("samplers", value, "a list of names of stages")
    plain = [name.replace("-", "_") if isinstance(name, str) else "" for name in names]
    return [(name, _LETTERS.get(to, _SPELLINGS.get(to, to))) for name, to in zip(names, plain, strict=True)]


def breaker_strings(value: Any) -> tuple[str, ...]:
    """Return the sequence breakers, each once; None is none."""
    return _strings("dry_sequence_breakers", value, MAX_BREAKERS, MAX_BREAKER_LENGTH)


def bad_strings(value: Any) -> tuple[str, ...]:
    """Return the bad words, each once; None is none."""
    return _strings("bad_words", value, MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH)


def _strings(name: str, value: Any, most: int, longest: int) -> tuple[str, ...]:
    strings = () if value is None else _items(name, value, "a list of strings")
    if len(strings) > most:
        raise RequestError(f"{name} has {len(strings)} strings; at most {most} are served", param=name)
    for text in strings:
        if not isinstance(text, str) or not 0 < len(text) <= longest:
            raise RequestError(f"{name} must be strings of 1 to {longest} characters", param=name)
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise RequestError(f"{name}: the string {text!r} is not valid Unicode", param=name)
    return tuple(dict.fromkeys(strings))


def stop_strings(value: Any) -> tuple[str, ...]:
    """Return the stop strings as a tuple; a single string is one, None is none."""
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else _items("stop", value, "a string or a list of strings")
    if len(strings) > MAX_STOPS:
        raise RequestError(f"stop has {len(strings)} strings; at most {MAX_STOPS} are served", param="stop")
    for text in strings:
        if not isinstance(text, str) or not text:
            raise RequestError("stop must be strings that are not empty", param="stop")
        if len(text) > MAX_STOP_LENGTH:
            raise RequestError(f"a stop string is longer than {MAX_STOP_LENGTH} characters", param="stop")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise RequestError(f"the stop string {text!r} is not valid Unicode", param="stop")
    return strings


def stop_ids(value: Any) -> tuple[int, ...]:
    """Return the stop ids as a tuple; None is none."""
    ids = () if value is None else _items("stop_token_ids", value, "a list of token ids")
    if len(ids) > MAX_BIASES:
        raise RequestError(
            f"stop_token_ids has {len(ids)} ids; at most {MAX_BIASES} are served", param="stop_token_ids"
        )
    for id in ids:
        whole("stop_token_ids", id, 0, 1 << 31)
    return ids


def allowed_ids(value: Any) -> tuple[int, ...] | None:
    """Return the ids ascending, each once; None is all. An empty list would keep no token and is refused."""
    if value is None:
        return None
    name = "allowed_token_ids"
    ids = _items(name, value, "a list of token ids")
    if not 0 < len(ids) <= MAX_ALLOWED:
        raise RequestError(f"{name} has {len(ids)} ids; give 1 to {MAX_ALLOWED}, or leave it out", param=name)
    for id in ids:
        whole(name, id, 0, 1 << 31)
    return tuple(sorted(set(ids)))


def biases(value: Any) -> Mapping[int, float]:
    """Return a read-only map of token id to bias; ids may be decimal strings, as in JSON. None is empty."""
    if value is not None and not isinstance(value, Mapping):
        raise RequestError(f"logit_bias={value!r} is not a mapping of token ids to numbers", param="logit_bias")
    items: dict[Any, Any] = dict(cast("Mapping[Any, Any]", value or {}))
    if len(items) > MAX_BIASES:
        raise RequestError(f"logit_bias has {len(items)} entries; at most {MAX_BIASES} are served", param="logit_bias")
    result: dict[int, float] = {}
    for key, bias in items.items():
        id: Any = int(key[:12]) if isinstance(key, str) and key.isascii() and key.isdigit() else key
        whole("logit_bias", id, 0, 1 << 31)
        number("logit_bias", bias, -100.0, 100.0)
        result[id] = float(bias)
    return MappingProxyType(result)
