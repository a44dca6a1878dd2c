"""Receipts: all that an answer depends on, so that anybody with the model can have it again, to the bit.

Law: a receipt holds digests of everything outside it and the values of everything else; `check` runs it anew and says
"bit-identical", or the first step that differs and what is not the same as then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pellucid import __version__, _core
from pellucid.errors import RequestError
from pellucid.sampling.grammar import Grammar
from pellucid.sampling.params import SamplingParams

if TYPE_CHECKING:
    from pellucid.llm import LLM
    from pellucid.results import RequestOutput

SCHEMA = 1


def params_as_dict(params: SamplingParams) -> dict[str, Any]:
    """Plain values of what is not as it is by default."""
    plain = SamplingParams()
    out: dict[str, Any] = {}
    for field in fields(params):
        value = getattr(params, field.name)
        if value == getattr(plain, field.name) or not field.compare:  # what is found again from the others
            continue
        if isinstance(value, Grammar):
            value = {"kind": value.kind, "source": value.source}
        out[field.name] = dict(cast("Mapping[Any, Any]", value)) if isinstance(value, Mapping) else value
    return out


def params_of(values: Mapping[str, Any]) -> SamplingParams:
    """The parameters of such values. Raises RequestError: there is one that this version does not know."""
    known = {field.name for field in fields(SamplingParams)}
    unknown = set(values) - known
    if unknown:
        raise RequestError(f"the receipt has the parameter {min(unknown)!r}, which this version does not know")
    given = dict(values)
    if given.get("grammar") is not None:
        given["grammar"] = Grammar(**given["grammar"])
    return SamplingParams(**given)


def digests(llm: LLM) -> dict[str, str]:
    """SHA-256 of what decides an answer besides its request: model, tokenizer, template, kernels."""
    found = {"tokenizer": _tokenizer(llm), "template": _of(llm.template.source or "")}
    found["kernels"] = _file(Path(_core.__file__ or ""))
    if llm.checkpoint is not None:
        path = llm.checkpoint.path
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        found["model"] = _of("\n".join(_file(p) for p in files)) if path.is_dir() else _file(path)
    return found


def receipt_of(llm: LLM, result: RequestOutput, params: SamplingParams, index: int = 0) -> dict[str, Any]:
    """The receipt of one answer; `params` are those that it was asked with.

    Raises RequestError: the answer broke off, or has no logprobs (ask with logprobs=0).
    """
    answer = result.outputs[index]
    if answer.finish_reason in (None, "error", "abort"):
        raise RequestError("there is no receipt for an answer that broke off")
    if answer.logprobs is None:
        raise RequestError("a receipt needs the logprobs of the answer; ask with logprobs=0 or more", param="logprobs")
    return {
        "pellucid_receipt": SCHEMA,
        "version": __version__,
        "model": llm.name,
        "digests": digests(llm),
        "kv": llm.config.kv,
        "context": llm.device.context,
        "params": params_as_dict(replace(params, n=1, logprobs_mode=params.logprobs_mode or llm.config.logprobs_mode)),
        "seed": result.seed,
        "choice": index,
        "prompt_ids": result.prompt_token_ids,
        "output_ids": answer.token_ids,
        "logprobs": [
            entry[token].logprob.hex() for token, entry in zip(answer.token_ids, answer.logprobs, strict=True)
        ],
        "finish_reason": answer.finish_reason,
    }


@dataclass(frozen=True)
class Verdict:
    """What became of a receipt that was run anew."""

    steps: int
    """Tokens of the answer."""
    differs_at: int | None
    """The first step that is not the same; None: all are, to the bit."""
    then: tuple[int, float] | None
    """Token and logprob of the receipt at that step."""
    now: tuple[int, float] | None
    changed: tuple[str, ...]
    """What is not what it was: "model", "tokenizer", "template", "kernels", "kv", "context"."""

    @property
    def identical(self) -> bool:
        """Whether the answer is bit-identical."""
        return self.differs_at is None


def check(llm: LLM, receipt: Mapping[str, Any]) -> Verdict:
    """Run a receipt anew. Raises RequestError: it is none, or not of this version."""
    if receipt.get("pellucid_receipt") != SCHEMA:
        raise RequestError(f"this is no receipt of schema {SCHEMA}; `pellucid trace PROMPT -o FOLDER` writes one")
    try:
        ids, outputs = list(receipt["prompt_ids"]), list(receipt["output_ids"])
        logprobs = [float.fromhex(x) for x in receipt["logprobs"]]
        seed, choice = int(receipt["seed"]), int(receipt["choice"])
        stated = dict(receipt["digests"])
        params = params_of(
            {"logprobs_mode": "raw_logprobs", **receipt["params"], "n": choice + 1, "seed": seed, "logprobs": 0}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"the receipt is broken: {error!r}") from None
    changed = [name for name, digest in digests(llm).items() if stated.get(name, digest) != digest]
    changed += ["kv"] if receipt.get("kv") != llm.config.kv else []
    changed += ["context"] if receipt.get("context") != llm.device.context else []
    [result] = llm.generate([ids], params, progress=False)
    answer = result.outputs[choice]
    if result.error is not None:
        raise RequestError(f"the answer broke off: {result.error}")
    now = [(token, entry[token].logprob) for token, entry in zip(answer.token_ids, answer.logprobs or [], strict=True)]
    then = list(zip(outputs, logprobs, strict=True))
    for step in range(max(len(now), len(then))):
        a, b = (x[step] if step < len(x) else None for x in (then, now))
        if a != b:
            return Verdict(len(then), step, a, b, tuple(changed))
    return Verdict(len(then), None, None, None, tuple(changed))


def _of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tokenizer(llm: LLM) -> str:
    tokenizer = llm.tokenizer
    return _of("\0".join(tokenizer.token_text(i) for i in range(tokenizer.vocab_size)))
