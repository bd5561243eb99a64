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
    _mislabelled,
    _parties,
    _split,
    _stages,
    _together,
    _unequal,
    _validation_faces,
    measure,
    study,
)
from simulation.runs.experiment import Job

STUDY = study(quick=True, faces=None)
FULL, QUICK = (dict(study(quick=quick, faces=None).rows[0].settings) for quick in (False, True))
ROWS = {row.name: row for row in STUDY.rows}


def test_the_whole_study_has_every_system_of_the_paper() -> None:
    intervals, unfinished, norms, twelve, cosface, unequal, wrong, search = STUDY.tables
    systems = [f"{system}_{k}" for k in ("low", "middle", "high") for system in ("fedavg", "pfm", "pfm_fv")]
    assert [row.name for row in intervals.rows] == ["pretrained", "pooled", *systems]
    assert [row.name for row in norms.rows] == ["pfm_low", "no_norm", "moving_norm", "pfm_fv_low", "fedavg_fv"]
    assert {row.settings["lr"] for row in unfinished.rows} == {FULL["lr"] / 100}
    assert [row.settings["task"]["cohort"]["size"] for row in twelve.rows] == [12] * 4
    assert {row.settings["head"]["loss"] for row in cosface.rows} == {"cosface"}
    assert {row.settings["task"]["options"]["loss"] for row in cosface.rows[1:]} == {"cosface"}
    assert {row.settings.get("wrong_labels") is None for row in unequal.rows} == {True}
    assert all(row.settings["wrong_labels"] == {"large": 0.3} for row in wrong.rows)
    assert {row.settings["system"] for row in search.rows} == {"grid"}
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


def test_unequal_parties_hold_what_they_name() -> None:
    whole = {row.name: row for row in study(quick=False, faces=None).rows}["wrong_pfm"].settings
    held = {party: sum(domains.values()) for party, domains in whole["parties"].items()}
    assert held == {"large": 300, "middle": 100, "small": 30}
    for domain in DOMAINS:  # and enough of each domain are left to judge
        trained = sum(domains.get(domain, 0) for domains in whole["parties"].values())
        assert trained + whole["validators"] + whole["test"] // 3 <= 333
    bench, settings = open_light_workbench(None, QUICK["max_people"]), ROWS["wrong_pfm"].settings
    groups = _split(bench, settings, seed=1)
    people = {domain: group["people"] for domain, group in groups.items()}
    parties = _unequal(people, settings)
    assert {party: len(names) for party, names in parties.items()} == {"large": 12, "middle": 6, "small": 3}
    everybody = [name for names in parties.values() for name in names]
    assert sorted(everybody) == sorted(name for names in people.values() for name in names)
    assert sum(name.startswith("asian_") for name in parties["middle"]) == 4


def test_wrong_labels_are_as_many_as_named_and_name_people_of_the_party() -> None:
    true = {"large": np.repeat(np.arange(12), 10), "small": np.repeat(np.arange(3), 10)}
    found = _mislabelled(true, {"large": 0.3}, seed=4)
    assert (found["large"] != true["large"]).sum() == 36
    assert set(found["large"]) <= set(range(12))
    assert found["small"] is true["small"]
    assert true["large"].tolist() == np.repeat(np.arange(12), 10).tolist()
    assert np.array_equal(_mislabelled(true, {"large": 0.3}, seed=4)["large"], found["large"])


def test_everybody_in_one_place_keeps_labels_apart() -> None:
    bench = open_light_workbench(None, QUICK["max_people"])
    names = bench.people[:5]
    crops, labels = bench.labelled(names)
    faces = _together(bench.cohort({"a": names[:2], "b": names[2:]}))
    assert np.array_equal(faces.labels, labels)
    assert np.array_equal(faces.crops, crops)


def test_a_search_finds_no_worse_than_any_single_weighting() -> None:
    figures = measure(Job("grid", 0, ROWS["wrong_grid"].settings))
    assert figures["score_lowest"] <= figures["score"]
    assert figures["score"] <= figures["score_validated"] + 0.02  # by images is between the grid's points
    assert figures["eer_lowest"] <= figures["eer_validated"]
    assert figures["score_lowest"] < figures["score_validated"]
    assert figures["eer_gain"] == figures["eer_images"] - figures["eer_lowest"]
    assert figures["norm_gain"] <= figures["eer_validated"] - figures["eer_lowest"]


def test_weights_begin_at_images_and_end_where_validators_moved_them() -> None:
    still, moved, even = (
        measure(Job(name, 0, ROWS[name].settings)) for name in ("wrong_pfm", "wrong_pfm_fv", "wrong_pfm_even")
    )
    assert still["share_large"] == still["early_large"] == pytest.approx(12 / 21)
    assert even["share_large"] == pytest.approx(1 / 3)
    assert still["drawn_won"] == 0 < moved["drawn_won"]
    assert moved["share_large"] != pytest.approx(12 / 21)
    assert sum(moved[f"share_{party}"] for party in ("large", "middle", "small")) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["pooled", "pfm_fv_low", "fedavg_high", "cosface_pooled"])
def test_one_row_of_each_kind_gives_its_figures(name: str) -> None:
    figures = measure(Job(name, 0, ROWS[name].settings))
    assert 0 <= figures["eer"] <= 0.5
    assert figures["loss_last"] > 0
    json.dumps(dict(figures), allow_nan=False)
