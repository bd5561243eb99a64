"""The FedFR study at its toy scale: who plays which part, and one row of each kind."""

from __future__ import annotations

import json

import numpy as np
import pytest

from simulation.papers.fedfr import measure, study
from simulation.papers.fedfr.figures import template_figures
from simulation.papers.fedfr.split import Split
from simulation.runs.experiment import Job

STUDY = study(quick=True, faces=None)
FULL, QUICK = (dict(study(quick=quick, faces=None).rows[0].settings) for quick in (False, True))
ROWS = {row.name: row for row in STUDY.rows}


def test_the_whole_study_has_every_row_of_the_paper() -> None:
    table_1, table_2, table_3, figure_3, figure_4 = STUDY.tables
    assert [row.name for row in table_1.rows] == ["pretrained", "fedavg", "hn", "contrastive", "fedfr", "pooled"]
    assert [row.name for row in table_2.rows] == ["fine_tune", "kd", "branch_cosface", "branch_matched", "fedfr"]
    assert [row.name for row in table_3.rows] == ["theta_g", "theta_l", "fedfr"]
    assert len(figure_3.rows) == 4
    assert {row.name.split("_")[0] for row in figure_4.rows} == {"fedface", "fedfr", "pooled"}
    assert table_1.rows[4].paper == ("77.60", "85.21", "73.60", "81.27", "88.32", "95.46", "95.17", "97.94")
    json.dumps({row.name: row.settings for row in STUDY.rows}, allow_nan=False)
    # Everybody of the full scale fits the thousand synthetic people.
    people = FULL["clients"] * FULL["max_ids"] + FULL["public"]
    assert people + FULL["generic"] + FULL["validation"] <= 1000


def test_nobody_plays_two_parts() -> None:
    split = Split.draw(None, QUICK, seed=1)
    people = [name for client in split.clients.values() for name in client.people]
    assert len(people) == len(set(people)) == 9
    assert not set(people) & set(split.generic)
    images = [client.crops for client in split.clients.values()]
    parts = [np.concatenate(images), split.test_crops, split.public.crops, split.bench.labelled(split.generic)[0]]
    digests = [{crop.tobytes() for crop in part} for part in parts]
    assert len(set().union(*digests)) == sum(map(len, digests))
    for client, numbers in split.places().items():
        assert len(split.clients[client].people) == len(numbers) == 3
        assert np.isin(split.test_labels, list(numbers)).sum() > 0


def test_a_client_with_fewer_identities_has_the_first_of_its_own() -> None:
    whole, some = (Split.draw(None, {**QUICK, "ids": ids}, seed=1) for ids in (3, 2))
    for name in whole.clients:
        assert some.clients[name].people == whole.clients[name].people[:2]
    assert some.generic == whole.generic


@pytest.mark.parametrize("name", ["fedfr", "fedface_1"])
def test_one_row_of_each_kind_gives_its_figures(name: str) -> None:
    figures = measure(Job(name, 0, ROWS[name].settings))
    for metric in ("generic_eer", "template_eer", "personal_tar_1e-1", "personal_pr_1e-1", "personal_rank1"):
        assert 0 <= figures[metric] <= 1
    json.dumps(dict(figures), allow_nan=False)
    assert (figures["images"] > 0) == (name == "fedfr")


def test_templates_are_means_of_three_pictures_and_half_of_all_people_are_enrolled() -> None:
    """Three people of seven pictures: two templates each, the seventh picture in none; the last one is no mate's."""
    directions = np.repeat(np.eye(3), 7, axis=0)
    labels = np.repeat(np.arange(3), 7)
    noise = np.random.default_rng(0).normal(0, 0.05, directions.shape)
    noise[6] = [-9, 9, 0]  # no template's
    found = template_figures((directions + noise).astype(np.float32), labels)
    assert (found["template_mated"], found["template_non_mated"]) == (3, 12)
    assert found["template_eer"] == 0
    assert found["template_tar_1e-1"] == 1
    assert "template_tar_1e-2" not in found  # twelve comparisons do not tell
    assert "template_tpir_1e-1" not in found  # two probes of nobody enrolled do not either
    many = np.repeat(np.eye(40), 6, axis=0).astype(np.float32)
    far = template_figures(many, np.repeat(np.arange(40), 6))
    assert far["template_tpir_1e-1"] == 1
    mixed = many.copy()
    mixed[3:6] = many[-1]  # the first one's second template looks like somebody who is not enrolled
    assert template_figures(mixed, np.repeat(np.arange(40), 6))["template_tpir_1e-1"] == 19 / 20


def test_tuning_looks_at_no_test() -> None:
    tests, tuning = (Split.draw(None, {**QUICK, "tuning": flag}, seed=1) for flag in (False, True))
    assert not set(tests.generic) & set(tuning.generic)
    seen = [{crop.tobytes() for crop in crops} for crops in (tests.test_crops, tuning.test_crops)]
    trained = {crop.tobytes() for client in tuning.clients.values() for crop in client.crops}
    assert len(seen[1]) == 9 * QUICK["validation_images"]
    assert not seen[0] & seen[1]
    assert not trained & (seen[0] | seen[1])
