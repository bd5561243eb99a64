"""The tables of settings in the operator's guide are the records' own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.home.config import LIMITS, CoordinatorConfig
from coordinator.home.reference import reference, to_markdown
from scripts.write_settings_tables import PAGE, written

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


@pytest.mark.parametrize("module", ["coordinator.commands.cli", "coordinator.commands.registrar_cli"])
def test_both_programs_print_it(module: str) -> None:
    def printed(*options: str) -> str:
        command = [sys.executable, "-m", module, "config", "reference", *options]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

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
