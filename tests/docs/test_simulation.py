"""The programs of docs/simulation.md run as they stand, one after another, and do what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from simulation.runs.experiment import Job

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"


def test_the_programs_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(programs) == 3
    names: dict[str, Any] = {}
    for program in programs:
        exec(compile(program, str(PAGE), "exec"), names)
    choice, eer = capsys.readouterr().out.splitlines()
    assert choice.startswith("engine ")
    assert 0 <= float(eer) <= 1
    found = names["measure"](Job("fedavg", 0, {"method": "fedavg", "rounds": 1}))
    assert 0 <= found["eer"] <= 1
