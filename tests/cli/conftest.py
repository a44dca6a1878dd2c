"""Commands in this process, on a model that says what it is told to."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

import pellucid.cli
from pellucid.cli import options
from pellucid.llm import LLM
from toymodel import toy_llm


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli("run", "hello", stdin="...")` runs a command; nothing of it is a terminal."""

    def call(*args: str, stdin: str | bytes = "") -> Outcome:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            pellucid.cli.main(list(args))
        out, err = capsys.readouterr()
        assert isinstance(exit.value.code, int)
        return Outcome(exit.value.code, out, err)

    return call


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Commands load the toy model; call the fixture to change its options."""

    def use(**settings: object) -> None:
        def load(
            model: str,
            threads: int | None,
            ctx: int | None,
            kv: str,
            *,
            prefix_cache: bool = True,
            tokenizer: str | None = None,
            **others: object,
        ) -> LLM:
            given = {**others} if ctx is None else {**others, "ctx": ctx}
            return toy_llm(**({"kv": kv, "prefix_cache": prefix_cache} | given | settings))  # type: ignore[arg-type]

        monkeypatch.setattr(options, "load", load)

    use()
    return use
