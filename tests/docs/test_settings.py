"""The tables of settings in the operator's guide are the records' own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.home.config import LIMITS, CoordinatorConfig
from coordinator.home.reference import reference, to_markdown
from scripts.write_settings_tables import PAGE, written
from tests.programs import run_as_is

ROOT = Path(__file__).resolve().parents[2]


def test_the_tables_are_written_from_the_records() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run python -m scripts.write_settings_tables"


def test_a_row_says_default_limits_and_meaning() -> None:
    rows = {row.name: row for row in reference(CoordinatorConfig, LIMITS)}
    assert (rows["address"].default, rows["address"].limits) == ("required", None)
    assert (rows["drain_s"].default, rows["drain_s"].range) == ("20.0", "0 to 600")
    assert (rows["names"].default, rows["json_logs"].default, rows["listen"].default) == ("[]", "false", '""')
    assert all(row.meaning for row in rows.values())
    assert set(LIMITS) <= set(rows)


@pytest.mark.parametrize("program", ["mien-coordinator", "mien-registrar"])
def test_both_programs_print_it(program: str) -> None:
    def printed(*options: str) -> str:
        done = run_as_is(program, "config", "reference", *options)
        assert done.code == 0, done.err
        return done.out

    rows = json.loads(printed("--json"))["settings"]
    assert {"name", "default", "meaning"} <= set(rows[0])
    assert {row["name"] for row in rows} >= {"address", "drain_s", "json_logs"}
    assert printed("--markdown") in PAGE.read_text(encoding="utf-8")
    assert "drain_s" in printed()
    assert "`" not in printed()
    assert "](" not in printed()


def test_markdown_is_a_table() -> None:
    lines = to_markdown(reference(CoordinatorConfig, LIMITS)).splitlines()
    assert {line.replace("\\|", "").count("|") for line in lines} == {5}
