"""The law on the real model: a request says the same bytes whatever stands beside it, by whatever path its tokens came.

Greedy answers of 128 tokens to 8 prompts, and the float32 of each token's logprob, on SmolLM2.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pellucid.config import EngineConfig
from pellucid.engine.engine import Engine
from pellucid.engine.events import FinishEvent, TokenEvent
from pellucid.engine.sequence import Sequence
from pellucid.sampling.params import SamplingParams

pytest.importorskip("pellucid.devices.cpu")

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea, there lived a girl who could talk to the gulls. Every morning she",
    "1, 1, 2, 3, 5, 8,",
    "Water boils at 100 degrees Celsius at sea level because",
    "Dear Sir or Madam,\n\nI am writing to complain about the train from Leeds to York that I took on Monday. " * 3,
    "Q: What is the difference between a crow and a raven?\nA:",
    "The quick brown fox jumps over the lazy dog. " * 12,
]
TOKENS = 128
CTX = 512
Answer = tuple[tuple[int, ...], tuple[float, ...]]


class Model:
    """SmolLM2 on the CPU device, loaded anew for each set of options that reaches the device."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.devices = {}
        self.prompts: list[list[int]] = []

    def engine(self, *, threads: int = 2, token_budget: int = 512, kv_pages: int = 256, **config) -> Engine:
        from pellucid.checkpoint.open import open_checkpoint
        from pellucid.devices.cpu import CpuDevice
        from pellucid.models.decoder import decoder_graph
        from pellucid.text.tokenizer import Tokenizer

        key = (threads, kv_pages)
        if key not in self.devices:
            options = EngineConfig(threads=threads, ctx=CTX, kv_pages=kv_pages, token_budget=512)
            checkpoint = open_checkpoint(self.path)
            self.devices[key] = CpuDevice.load(checkpoint, decoder_graph(checkpoint.spec), options)
            tokenizer = Tokenizer.from_source(checkpoint.tokenizer)
            self.prompts = [tokenizer.encode(text) for text in PROMPTS]
        return Engine(self.devices[key], config=EngineConfig(ctx=CTX, token_budget=token_budget, **config))

    def sequence(self, number: int, id: str | None = None) -> Sequence:
        params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=0)
        return Sequence(self.prompts[number], params, id=id or str(number))


def drain(engine: Engine, each_step=lambda: None) -> dict[str, Answer]:
    """Run to the end. Returns, by id, tokens and logprobs of the sequences that were not aborted."""
    tokens: dict[str, list[int]] = {}
    logprobs: dict[str, list[float]] = {}
    answers: dict[str, Answer] = {}
    while engine.busy:
        each_step()
        for event in engine.step():
            id = event.seq.id
            if isinstance(event, TokenEvent):
                tokens.setdefault(id, []).append(event.token)
                logprobs.setdefault(id, []).append(event.logprob)
            elif isinstance(event, FinishEvent) and event.reason != "abort":
                assert event.reason == "length", event.error
                answers[id] = tuple(tokens[id]), tuple(logprobs[id])
        engine.scheduler.check()
    assert engine.pool.used == 0
    return answers


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Model:
    return Model(smollm2_path)


@pytest.fixture(scope="module")
def alone(model: Model) -> list[Answer]:
    """Each prompt by itself, one after the other, nothing cached."""
    engine = model.engine(prefix_cache=False)
    answers = []
    for number in range(len(PROMPTS)):
        engine.add(model.sequence(number))
        answers.append(drain(engine)[str(number)])
    return answers


def same(answers: dict[str, Answer], alone: list[Answer]) -> None:
    for number, (tokens, logprobs) in enumerate(alone):
        got = answers[str(number)]
        differs = next((i for i in range(TOKENS) if (got[0][i], got[1][i]) != (tokens[i], logprobs[i])), None)
        assert differs is None, f"prompt {number} differs from token {differs} on"


def test_the_answers_are_worth_comparing(alone):
    assert all(len(tokens) == TOKENS for tokens, _ in alone)
    assert len({tokens for tokens, _ in alone}) == len(PROMPTS)


def test_in_a_batch_with_others_joining_and_leaving(model, alone):
    engine = model.engine(prefix_cache=False)
    rng = random.Random(1)
    for number in range(len(PROMPTS)):
        engine.add(model.sequence(number))
    guests: list[str] = []

    def each_step() -> None:
        if engine.stats.steps < 100 and rng.random() < 0.15:
            guests.append(f"guest {len(guests)}")
            engine.add(model.sequence(rng.randrange(len(PROMPTS)), guests[-1]))
        if guests and rng.random() < 0.15:
            engine.abort(rng.choice(guests))

    answers = drain(engine, each_step)
    assert len(guests) > 5
    same(answers, alone)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_in_chunks(model, alone, chunk):
    """Besides the decodes, a step has rows for one chunk of a prompt."""
    engine = model.engine(prefix_cache=False)
    for number in range(len(PROMPTS)):
        engine.add(model.sequence(number))
    longest = 0

    def watch(_, frame) -> None:
        nonlocal longest
        longest = max(longest, *(rows for _, _, rows in frame["rows"]))

    def each_step() -> None:
        engine.scheduler.budget = chunk + sum(len(seq.tokens) - seq.computed == 1 for seq in engine.scheduler.running)

    engine.hub.subscribe("schedule", watch)
    same(drain(engine, each_step), alone)
    assert longest == chunk


def test_with_a_warm_prefix_cache(model, alone):
    engine = model.engine()
    for _ in range(2):
        seqs = [model.sequence(number) for number in range(len(PROMPTS))]
        for seq in seqs:
            engine.add(seq)
        same(drain(engine), alone)
    assert sum(seq.cached_tokens for seq in seqs) > 100


def test_with_one_thread(model, alone):
    engine = model.engine(threads=1, prefix_cache=False)
    for number in range(len(PROMPTS)):
        engine.add(model.sequence(number))
    same(drain(engine), alone)


@pytest.mark.parametrize("cache", [False, True])
def test_after_preemption(model, alone, cache):
    engine = model.engine(kv_pages=40, prefix_cache=cache)
    seqs = [model.sequence(number) for number in range(len(PROMPTS))]
    for seq in seqs:
        engine.add(seq)
    same(drain(engine), alone)
    assert engine.stats.preemptions > 0
    assert max(seq.preemptions for seq in seqs) > 0
