"""Figures as DataFrames: of a loop over rounds, and of a folder, line by line as in the CSV file."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from mien.errors import MissingDependencyError, NotFoundError
from simulation import frame_of
from simulation.engines.engine import run_task
from simulation.runs.collected import collect
from simulation.runs.export import csv_text
from tests.simulation.engines.test_engine import COHORT, FORMS, PART, TINY
from tests.simulation.pages.synthetic_sweep import write_sweep_folder


def test_a_loop_over_rounds_has_a_line_for_each_figure() -> None:
    run = run_task(replace(FORMS["fedavg"], rounds=2), PART, 8, TINY.theta, COHORT, TINY.runtime())
    frame = run.to_frame()
    assert list(frame.columns) == ["round", "metric", "value"]
    table = frame.pivot(index="round", columns="metric", values="value")
    assert list(table.index) == [1, 2]
    assert list(table["clients"]) == [3.0, 3.0]
    assert list(table["loss_after"]) == [record.loss_after for record in run.records]
    assert "staleness" not in table


def test_a_folder_gives_what_its_csv_file_holds(tmp_path: Path) -> None:
    write_sweep_folder(tmp_path)
    frame = frame_of(tmp_path)
    read = pandas.read_csv(io.StringIO(csv_text(collect(tmp_path))), keep_default_na=False, na_values={"round": [""]})
    assert list(frame.columns) == list(read.columns)
    for name in ("run", "seed", "metric", "value"):
        assert list(frame[name]) == list(read[name])
    assert list(frame["round"].fillna(0)) == list(read["round"].fillna(0))
    # What the guide's chapter shows: means over seeds of what was measured at the end.
    ends = frame[frame["round"].isna() & (frame["metric"] == "after.eer")]
    assert ends.groupby("run")["value"].count().to_dict() == {"published": 3, "private": 3, "control": 3}


def test_without_pandas_and_without_records_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="holds no records"):
        frame_of(tmp_path)
    write_sweep_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        frame_of(tmp_path)
