"""The notebook is one, holds no output, and its cells run from the first to the last in a Python of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.by_path import EXAMPLES
from tests.helpers import ROOT

NOTEBOOK = EXAMPLES / "study.ipynb"
CHECK = """
assert len(table) == 2
assert (table["after.eer"] < table["before.eer"] - 0.02).all(), table
assert table["before.eer"].nunique() == 1  # the same test people
assert set(figures["metric"]) >= {"clients", "before.eer", "after.eer"}
"""


def cells() -> list[dict[str, Any]]:
    """Return the notebook's cells."""
    return list(json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"])


def test_no_output_is_committed() -> None:
    """Whoever ran it may have done so on faces of their own."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.slow
def test_its_cells_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    script = tmp_path / "cells.py"
    script.write_text("\n".join([*code, CHECK]), encoding="utf-8")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "task.options.shrinkage" in ran.stdout
