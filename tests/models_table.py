"""What is tested of each family and each format, as the tables of docs/models.md.

    python tests/models_table.py --run     # run what is marked `covers`, record what passed, write
    python tests/models_table.py           # write the tables from what was recorded

Law: a cell is ticked only if tests with the marker `covers(CHECK, PARAMETER)` ran for it and all passed; the record is
models_table.json, and tests/docs/test_models_table.py holds it to the families and formats that there are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
RECORD = TESTS / "models_table.json"
PAGE = TESTS.parent / "docs" / "models.md"
BEGIN, END = "<!-- written by: python tests/models_table.py -->\n", "<!-- end of what is written -->\n"
FILES = (
    "graph/test_tiny_models.py",
    "graph/test_families.py",
    "devices/test_families.py",
    "checkpoint/test_gguf_families.py",
    "checkpoint/test_families.py",
    "api/test_family_models.py",
    "formats/test_weight_formats.py",
    "native/test_repack.py",
    "native/test_linear.py",
)
MODEL_CHECKS = {
    "reference": "log-probabilities of the reference path within 1e-4 of Hugging Face's",
    "greedy": "greedy ids equal Hugging Face's",
    "native": "the native plan equals the reference path",
    "bits": "bits equal in every instruction set, chunk and number of threads",
    "gguf": "the GGUF file opens to the same sizes and bits as the safetensors",
    "text": "text through `LLM`, alike streamed and whole",
}
"""Check → what it says; in the order of the columns."""
FORMAT_CHECKS = {
    "decode": "decodes to the bits of ggml's own decoder",
    "packed": "packed rows decode to the same bits",
    "products": "products within their bound, the same bits for every tile and number of rows",
}
OPENED = "opened"
"""Families whose files were opened in a format."""


class Recorder:
    """A pytest plugin: what the marked tests say."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str, str], bool] = {}
        """(check, subject, family or "") → whether all passed."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        marker = item.get_closest_marker("covers")
        if marker is not None and call.when == "call":
            check, parameter = marker.args
            given = item.callspec.params  # type: ignore[attr-defined]
            subject = getattr(given[parameter], "name", given[parameter])
            family = ""
            if check in MODEL_CHECKS or check == OPENED:
                family = given["spec"].family if "spec" in given else family_of(given["name"])
            key = (check, str(subject), family)
            self.seen[key] = self.seen.get(key, True) and report.outcome == "passed"
        return report

    def record(self) -> dict[str, Any]:
        """For the JSON file."""
        families: dict[str, dict[str, list[str]]] = {}
        formats: dict[str, list[str]] = {}
        for (check, subject, family), passed in sorted(self.seen.items()):
            if passed and family:
                families.setdefault(family, {}).setdefault(check, []).append(subject)
            elif passed:
                formats.setdefault(subject, []).append(check)
        return {"families": families, "formats": formats}


def family_of(model: str) -> str:
    """The family of one of the tiny models."""
    from pellucid.checkpoint.from_hf import read_config

    return next(read_config(p).family.name for p in TESTS.glob(f"golden/*/{model}") if (p / "config.json").is_file())


def tables(record: dict[str, Any]) -> str:
    """The Markdown that goes between the marks."""
    from pellucid.checkpoint.families import FAMILIES

    heads = ["family", "tiny models", "weights opened as", *MODEL_CHECKS]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for family in FAMILIES:
        checks = record["families"].get(family.name, {})
        models = sorted({model for check in MODEL_CHECKS for model in checks.get(check, [])})
        cells = [family.name, ", ".join(models), ", ".join(name.upper() for name in _ordered(checks.get(OPENED, [])))]
        for check in MODEL_CHECKS:
            passed = checks.get(check, [])
            cells.append("yes" if passed and passed == models else f"{len(passed)} of {len(models)}" if passed else "–")
        lines.append(_row(cells))
    lines += ["", *(f"- **{check}**: {what}." for check, what in MODEL_CHECKS.items()), ""]
    heads = ["format", *FORMAT_CHECKS]
    lines += [_row(heads), _row(["---"] * len(heads))]
    for name in _ordered(record["formats"]):
        lines.append(_row([name.upper(), *("yes" if c in record["formats"][name] else "–" for c in FORMAT_CHECKS)]))
    lines += ["", *(f"- **{check}**: {what}." for check, what in FORMAT_CHECKS.items())]
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _ordered(names: Any) -> list[str]:
    from pellucid.formats import FORMATS

    return sorted(names, key=list(FORMATS).index)


def page(record: dict[str, Any]) -> str:
    """docs/models.md with its tables written anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + tables(record) + END + after


def main() -> int:
    """Record if asked to, and write."""
    if "--run" in sys.argv[1:]:
        recorder = Recorder()
        arguments = ["-m", "covers", "-p", "no:cacheprovider", *(str(TESTS / name) for name in FILES)]
        pytest.main(arguments, plugins=[recorder])
        RECORD.write_text(json.dumps(recorder.record(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RECORD.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
