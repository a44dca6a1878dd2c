"""docs/models.md holds the tables that tests/models_table.py writes, and the record they come from is of today."""

from __future__ import annotations

import json

import models_table
from pellucid.checkpoint.families import FAMILIES
from pellucid.formats import FORMATS

RECORD = json.loads(models_table.RECORD.read_text(encoding="utf-8"))


def test_the_page_is_what_the_command_writes() -> None:
    assert models_table.PAGE.read_text(encoding="utf-8") == models_table.page(RECORD), "python tests/models_table.py"


def test_the_record_covers_every_family_and_format() -> None:
    """A new family or format, or one that is gone: python tests/models_table.py --run."""
    assert set(RECORD["families"]) == {family.name for family in FAMILIES}
    assert set(RECORD["formats"]) == set(FORMATS)
    models = {p.parent.name for p in models_table.TESTS.glob("golden/*/*/config.json")}
    told = {model for checks in RECORD["families"].values() for model in checks.get("reference", [])}
    assert told == models
