"""The parity certificate of a model: where its twin lies, and how the outcome is said.

Law: nothing is fetched but what --tokenizer names; what cannot be compared is said, with the reason.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pellucid.errors import ModelFileError, PellucidError, UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid.llm import LLM
    from pellucid.models.tokens import TokenizerSource
    from pellucid.text.parity import Certificate, Difference, Reading

DIFFERS, NOTHING = 1, 3
"""Exit codes: the two differ; there was nothing to compare with, or it could not be read."""


def certificate(path: Path, given: Path | None) -> Certificate:
    """Compare a model's own vocabulary and template with those of the twin that is given, or else at hand."""
    from pellucid.checkpoint.open import open_checkpoint, open_tokenizer
    from pellucid.text.parity import Certificate, certify

    try:
        with open_checkpoint(path) as checkpoint:
            other = given or twin(path, checkpoint.metadata)
            if other is None:
                return _alone(path)
            ours, rows = _reading(path.name, checkpoint.tokenizer), checkpoint.spec.vocab
    except (UnsupportedModelError, ModelFileError) as error:
        return Certificate(path.name, _called(given), not_compared=(f"{path.name}: {error.message}",))
    try:
        return certify(ours, _reading(_called(other), open_tokenizer(other, rows)))
    except PellucidError as error:
        return Certificate(path.name, _called(other), not_compared=(f"{_called(other)}: {error.message}",))


def of(llm: LLM) -> Certificate | None:
    """The certificate of a loaded model, as it is served; None for one that was made of parts."""
    checkpoint = llm.checkpoint
    if checkpoint is None:
        return None
    if checkpoint.given is None and twin(checkpoint.path, checkpoint.metadata) is None:
        return _alone(checkpoint.path)  # known without reading anything again
    return certificate(checkpoint.path, checkpoint.given)


def _alone(path: Path) -> Certificate:
    from pellucid.text.parity import Certificate

    what = "a .gguf file" if path.is_dir() else "tokenizer.json"
    why = f"{what} is neither beside {path.name} nor brought; name one with --tokenizer"
    return Certificate(path.name, "", not_compared=(why,))


def twin(path: Path, metadata: dict[str, object]) -> Path | None:
    """The same vocabulary in the other vendor's files: beside the model, or in the store by the base that it names."""
    from pellucid.models import store
    from pellucid.models.sources import HubSource, parse

    if path.is_dir():
        return next(iter(sorted(path.glob("*.gguf"))), None)
    if any((path.parent / name).is_file() for name in ("tokenizer.json", "tekken.json")):
        return path.parent
    base = metadata.get("general.base_model.0.repo_url")
    repo = "/".join(base.rstrip("/").split("/")[-2:]) if isinstance(base, str) else ""
    try:
        source = parse(f"hf:{repo}") if repo else None
    except PellucidError:
        return None
    return store.find_tokenizer(source) if isinstance(source, HubSource) else None


def line(result: Certificate) -> str:
    """One line, for the start of a server."""
    if result.differences:
        first = result.differences[0]
        return f"warning: the tokenizer differs from {result.theirs}: {told(first)}"
    if result.compared:
        skipped = f"; not compared: {result.not_compared[0]}" if result.not_compared else ""
        return f"tokenizer equal to {result.theirs} on {counts(result)}{skipped}"
    return f"tokenizer not compared: {result.not_compared[0]}"


def counts(result: Certificate) -> str:
    """How much was compared."""
    renders = f" and {result.conversations} conversations" if result.conversations else ""
    return f"{result.pieces} pieces, {result.texts} texts{renders}"


def told(difference: Difference) -> str:
    """A difference on one line: what, where, and both pieces."""
    place = {"template": "character", "pieces": "id"}.get(difference.kind, "token")
    text = f" of {shortened(difference.text)}" if difference.text else ""
    return (
        f"{difference.kind}, {difference.where}: at {place} {difference.place}{text}: "
        f"{difference.ours} here, {difference.theirs} there"
    )


def shortened(text: str) -> str:
    """A text quoted, on one line, and not too long."""
    return ascii(text if len(text) <= 60 else text[:59] + "…")


def as_dict(result: Certificate) -> dict[str, Any]:
    """For --json."""
    return {"equal": result.equal if result.compared else None} | asdict(result)


def exit_code(result: Certificate) -> int:
    """0: equal."""
    return 0 if result.equal else DIFFERS if result.differences else NOTHING


def report(result: Certificate) -> str:
    """Some lines, for people."""
    lines = [f"{result.ours} against {result.theirs or 'nothing'}"]
    if result.compared:
        lines.append(f"  compared: {counts(result)}, each text read as text and as control tokens")
        lines.append("  equal" if result.equal else "  they differ:")
    lines += [f"  {told(difference)}" for difference in result.differences]
    lines += [f"  not compared: {what}" for what in result.not_compared]
    return "\n".join(lines)


def _reading(name: str, source: TokenizerSource) -> Reading:
    from pellucid.text.chat import ChatTemplate
    from pellucid.text.parity import Reading
    from pellucid.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_source(source)
    return Reading(name, tokenizer, ChatTemplate.from_source(source, tokenizer))


def _called(path: Path | None) -> str:
    if path is None:
        return ""
    return f"{path.name}/" if path.is_dir() else path.name
