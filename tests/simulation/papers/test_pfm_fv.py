"""The PFM + FV study: rows of the paper, who plays which part, when the rate falls, and one row of each kind."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mien.errors import EmptyFolderError
from simulation.papers.light import open_light_workbench
from simulation.papers.pfm_fv import (
    DOMAINS,
    _drops,
    _parties,
    _split,
    _stages,
    _validation_faces,
    measure,
    study,
)
from simulation.runs.experiment import Job

STUDY = study(quick=True, faces=None)
FULL, QUICK = (dict(study(quick=quick, faces=None).rows[0].settings) for quick in (False, True))
ROWS = {row.name: row for row in STUDY.rows}


def test_the_whole_study_has_every_system_of_the_paper() -> None:
    intervals, unfinished, norms, twelve = STUDY.tables
    systems = [f"{system}_{k}" for k in ("low", "middle", "high") for system in ("fedavg", "pfm", "pfm_fv")]
    assert [row.name for row in intervals.rows] == ["pretrained", "pooled", *systems]
    assert [row.name for row in norms.rows] == ["pfm_low", "no_norm", "moving_norm", "pfm_fv_low", "fedavg_fv"]
    assert {row.settings["lr"] for row in unfinished.rows} == {FULL["lr"] / 100}
    assert [row.settings["task"]["cohort"]["size"] for row in twelve.rows] == [12] * 4
    json.dumps({row.name: row.settings for row in STUDY.rows}, allow_nan=False)
    # A domain of the thousand synthetic people has 333; every K divides the number of steps.
    assert sum(FULL[name] for name in ("people", "validators", "validation")) + FULL["test"] // 3 <= 333
    assert all(FULL["steps"] % interval == 0 for interval in FULL["intervals"])


def test_the_rate_falls_where_the_papers_does() -> None:
    assert _drops(26) == [10, 18, 24]
    assert _drops(1) == [1]
    assert _stages(26) == [10, 8, 6, 2]
    assert sum(_stages(4)) == 4


def test_nobody_plays_two_parts() -> None:
    bench = open_light_workbench(None, QUICK["max_people"])
    groups = _split(bench, QUICK, seed=1)
    assert list(groups) == list(DOMAINS)
    names = [name for group in groups.values() for people in group.values() for name in people]
    assert len(names) == len(set(names)) == 3 * (8 + 3 + 2 + 2)
    people = {domain: group["people"] for domain, group in groups.items()}
    twelve = _parties(people, 4)
    assert len(twelve) == 12
    assert sorted(name for held in twelve.values() for name in held) == sorted(
        name for held in people.values() for name in held
    )
    faces = _validation_faces(bench, groups["asian"]["validators"], seed=1)
    assert faces.mated.sum() * 2 == len(faces.mated) == 2 * 3 * 45
    assert np.bincount(faces.folds, weights=faces.mated).min() >= 13
    with pytest.raises(EmptyFolderError, match="african"):
        _split(bench, {**QUICK, "people": 80}, seed=1)


@pytest.mark.parametrize("name", ["pooled", "pfm_fv_low", "fedavg_high"])
def test_one_row_of_each_kind_gives_its_figures(name: str) -> None:
    figures = measure(Job(name, 0, ROWS[name].settings))
    assert 0 <= figures["eer"] <= 0.5
    assert figures["loss_last"] > 0
    json.dumps(dict(figures), allow_nan=False)
