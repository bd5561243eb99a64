"""PFM and FV on real faces: parties of three sets, who plays which part, and the rendered study's code and settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mien.errors import EmptyFolderError, NotFoundError
from mien.methods.pfm_fv import PfmFvOptions, rate
from mien.records import from_mapping
from mien.specs import TaskSpec
from simulation.faces.models import mobilefacenet_with_adapter
from simulation.faces.workbench import open_workbench
from simulation.papers import pfm_fv, pfm_fv_real
from simulation.papers.fedfr_uda.faces import open_domains
from simulation.papers.pfm_fv import _halves, _parties, _split
from simulation.runs.experiment import Job
from simulation.runs.reproduced import EXPERIMENTS
from tests.mien.backbones._models import mobilefacenet_file

QUICK, FULL = (pfm_fv_real.study(quick=quick, faces=None) for quick in (True, False))
ROWS = {row.name: row.settings for row in QUICK.rows}
WHOLE = {row.name: row.settings for row in FULL.rows}
PEOPLE = {"celeba": 271, "lfw": 467, "bollywood": 32}
"""How many of each set have four pictures or more."""


def test_it_is_listed_and_every_set_has_enough_people_for_all_parts() -> None:
    assert "pfm_fv_real" in EXPERIMENTS
    settings = WHOLE["pfm_low"]
    for domain, num in PEOPLE.items():
        assert sum(settings[part][domain] for part in ("people", "validators", "test")) <= num
    assert settings["domains"] == list(PEOPLE)
    assert set(WHOLE) - set(ROWS) == {
        name for name in WHOLE if name.startswith("mobile_")
    }  # a file of others' is needed


@pytest.mark.parametrize("rows", [ROWS, WHOLE], ids=["quick", "whole"])
def test_rows_at_one_rate_have_no_reach_and_are_otherwise_the_same(rows: Mapping[str, Mapping[str, Any]]) -> None:
    one = [name for name in rows if name.startswith("one_")]
    assert len(one) == 6
    for name in one:
        assert {**rows[name], "reach": rows["pfm_low"]["reach"]} == rows[name.removeprefix("one_")], name
        assert rows[name]["reach"] is None


@pytest.mark.parametrize("name", ["fedavg_low", "pfm_low", "pfm_high"])
def test_reach_is_how_far_the_same_gradient_carries_a_backbone(name: str) -> None:
    task = from_mapping(TaskSpec, WHOLE[name]["task"])
    options = from_mapping(PfmFvOptions, task.options, where="options.")
    theta, momentum = 0.0, 0.0
    for number in range(1, task.rounds + 1):
        lr, start, velocity = rate(task, options, number), theta, 0.0
        for _ in range(task.local.steps):
            if name.startswith("pfm"):  # eq 3
                theta -= lr * (1 + options.beta * momentum / task.local.steps)
            else:
                velocity = options.beta * velocity + 1
                theta -= lr * velocity
        momentum = (start - theta) / lr  # eq 6
    assert pfm_fv.reach(task) == pytest.approx(-theta)


def test_the_middle_row_of_fedavg_keeps_its_rate_and_reaches_what_all_others_are_set_to() -> None:
    task = from_mapping(TaskSpec, WHOLE["fedavg_middle"]["task"])
    assert task.local.lr == WHOLE["fedavg_middle"]["lr"]
    assert pfm_fv.reach(task) == pytest.approx(WHOLE["fedavg_middle"]["reach"], rel=1e-4)
    assert len({settings["reach"] for name, settings in WHOLE.items() if not name.startswith("one_")}) == 1


def test_a_row_s_backbone_alone_is_trained_at_the_rate_that_its_reach_asks_for() -> None:
    longer = {name: pfm_fv_real.measure(Job(name, 0, ROWS[name])) for name in ("one_pfm_low", "pfm_low")}
    task = from_mapping(TaskSpec, ROWS["pfm_low"]["task"])
    scaled = task.local.lr * ROWS["pfm_low"]["reach"] / pfm_fv.reach(task)
    local = {**ROWS["one_pfm_low"]["task"]["local"], "lr": scaled, "private_lr": task.local.lr}
    by_hand = {**ROWS["one_pfm_low"], "task": {**ROWS["one_pfm_low"]["task"], "local": local}}
    assert pfm_fv_real.measure(Job("pfm_low", 0, by_hand)) == longer["pfm_low"]
    assert longer["pfm_low"] != longer["one_pfm_low"]


def _alike(settings: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in settings.items() if name not in ("condition", "lr", "head", "task")}
    if "method" in (task := settings.get("task", {})):
        free = {"margin", "scale"}
        options = {name: value for name, value in task["options"].items() if name not in free}
        found["task"] = {**task, "options": options, "local": {**task["local"], "lr": None}}
    return found


def test_methods_are_those_of_the_rendered_study() -> None:
    rendered = {row.name: row.settings for row in pfm_fv.study(quick=False, faces=None).rows}
    for name in ("fedavg_low", "pfm_middle", "fedavg_high", "no_norm", "moving_norm", "fedavg_fv", "twelve_pfm_fv"):
        assert _alike(WHOLE[name])["task"] == _alike(rendered[name])["task"], name
        assert WHOLE[name]["steps"] == rendered[name]["steps"]


@pytest.mark.parametrize("rows", [ROWS, WHOLE], ids=["quick", "whole"])
def test_every_row_takes_as_many_steps_with_the_central_head(rows: Mapping[str, Mapping[str, Any]]) -> None:
    for settings in (each for each in rows.values() if each["system"] == "federated"):
        task = from_mapping(TaskSpec, settings["task"])
        options = from_mapping(PfmFvOptions, task.options, where="options.")
        assert task.rounds * task.local.steps == settings["steps"]
        assert {name: getattr(options, name) for name in settings["head"]} == settings["head"]
        assert (task.local.lr, task.local.batch_size) == (settings["lr"], settings["batch"])


def test_nobody_plays_two_parts_and_a_set_has_its_own_number_of_people() -> None:
    bench = pfm_fv_real.workbench(Job("pfm_low", 0, ROWS["pfm_low"]))
    sizes = {"african": 7, "asian": 5, "caucasian": 3}
    settings = {**ROWS["pfm_low"], "people": sizes, "test": sizes, "validators": dict.fromkeys(sizes, 2)}
    groups = _split(bench, settings, seed=1)
    assert {domain: len(group["people"]) for domain, group in groups.items()} == sizes
    assert {domain: len(group["test"]) for domain, group in groups.items()} == sizes
    names = [name for group in groups.values() for people in group.values() for name in people]
    assert len(names) == len(set(names)) == 2 * 15 + 6
    twelve = _parties({domain: group["people"] for domain, group in groups.items()}, 2)
    assert {party: len(held) for party, held in twelve.items()} == {
        "african-0": 4,
        "african-1": 3,
        "asian-0": 3,
        "asian-1": 2,
        "caucasian-0": 2,
        "caucasian-1": 1,
    }


def test_all_pictures_are_in_the_condition_parties_validators_and_tests_alike() -> None:
    domains = ("african", "asian")
    clean, dark = (open_domains(None, domains, everybodys=condition) for condition in ("", "dark"))
    assert clean.people == dark.people
    seen = [bench.runtime.embed(bench.theta, bench.crops) for bench in (clean, dark)]
    assert ((seen[0] * seen[1]).sum(axis=1) < 0.999).all()
    assert clean.dataset_sha256 != dark.dataset_sha256


def test_swapped_folds_are_two_halves_of_those_who_judge_and_each_half_does_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ROWS["folds_pfm_fv"]
    bench = pfm_fv_real.workbench(Job("folds_pfm_fv", 0, settings))
    groups = _split(bench, settings, seed=0)
    ways = [_halves(groups, first) for first in (0, 1)]
    for domain, group in groups.items():
        assert {way[domain]["people"] for way in ways} == {group["people"]}
        assert ways[0][domain]["validators"] == ways[1][domain]["test"]
        assert ways[1][domain]["validators"] == ways[0][domain]["test"]
        assert not set(ways[0][domain]["validators"]) & set(ways[0][domain]["test"])
        assert sorted((*ways[0][domain]["validators"], *ways[0][domain]["test"])) == sorted(
            (*group["validators"], *group["test"])
        )
    found = {name: pfm_fv_real.measure(Job(name, 0, ROWS[name])) for name in ("folds_pfm", "folds_pfm_fv")}
    each = []
    for way in ways:
        monkeypatch.setattr(pfm_fv, "_split", lambda *_, way=way: way)
        each.append({name: pfm_fv_real.measure(Job(name, 0, {**ROWS[name], "fold_swap": False})) for name in found})
    for name, figures in found.items():
        for metric in ("eer", "eer_asian", "tar_1e-2", "loss_last"):
            assert figures[metric] == pytest.approx(np.mean([both[name][metric] for both in each])), (name, metric)
    assert each[0]["folds_pfm"]["loss_last"] == each[1]["folds_pfm"]["loss_last"]  # nobody validates: one model
    assert each[0]["folds_pfm_fv"]["loss_last"] != each[1]["folds_pfm_fv"]["loss_last"]


def test_a_search_over_weightings_is_of_the_models_after_so_many_rounds() -> None:
    settings = {**ROWS["grid_first"], "searched_after": 0.25}
    found = {
        after: pfm_fv_real.measure(Job("grid", 0, {**settings, "searched_after": after})) for after in (0.25, 0.75)
    }
    assert found[0.25] != found[0.75]
    assert pfm_fv_real.measure(Job("grid", 0, ROWS["grid_first"])) == found[0.25]  # a tenth of four rounds: one
    assert all(each["eer_lowest"] <= each["eer_images"] + 1e-9 for each in found.values())


def test_another_network_is_not_taken_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIEN_MOBILEFACENET", raising=False)
    mobilefacenet_with_adapter.cache_clear()
    job = Job("pfm_low", 0, {**ROWS["pfm_low"], "network": "mobilefacenet192"})
    with pytest.raises(NotFoundError, match="MIEN_MOBILEFACENET names no file"):
        pfm_fv_real.measure(job)


def test_another_network_has_features_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mobilefacenet_file()  # or there is nothing to test
    settings = {**ROWS["pretrained"], "network": "mobilefacenet192"}
    bench = pfm_fv_real.workbench(Job("pretrained", 0, settings))
    assert bench.dim == 192
    assert bench.part.size == 192 * 193
    whole = open_workbench(None, None, None, settings["condition"], "mobilefacenet192")
    some = whole.people[:3]
    np.testing.assert_array_equal(
        bench.runtime.embed(bench.theta, bench.labelled(some)[0]),
        whole.runtime.embed(whole.theta, whole.labelled(some)[0]),
    )
    found = {
        name: pfm_fv_real.measure(Job(name, 0, each)) for name, each in (("a", settings), ("b", ROWS["pretrained"]))
    }
    assert found["a"]["eer"] != found["b"]["eer"]
    assert found["a"]["mated"] == found["b"]["mated"]


def test_without_the_sets_a_whole_run_says_what_it_lacks() -> None:
    with pytest.raises(EmptyFolderError, match="named celeba_"):
        pfm_fv_real.measure(Job("fedavg_low", 0, WHOLE["fedavg_low"]))


def test_figures_of_the_sets_stand_beside_those_of_all_and_shares_begin_at_pictures() -> None:
    found = pfm_fv_real.measure(Job("pfm_low", 0, ROWS["pfm_low"]))
    bench = pfm_fv_real.workbench(Job("pfm_low", 0, ROWS["pfm_low"]))
    assert {name for name in found if name.startswith("eer_")} == {"eer_african", "eer_asian", "eer_caucasian"}
    groups = _split(bench, ROWS["pfm_low"], seed=0)
    images = {domain: len(bench.labelled(group["people"])[0]) for domain, group in groups.items()}
    for domain, num in images.items():
        assert found[f"share_{domain}-0"] == pytest.approx(num / sum(images.values()))
    start = pfm_fv_real.measure(Job("pretrained", 0, ROWS["pretrained"]))
    for domain, group in groups.items():
        assert start[f"eer_{domain}"] == bench.verification(bench.theta, group["test"])["eer"]
    everybody = sorted(name for group in groups.values() for name in group["test"])
    assert start["eer"] == bench.verification(bench.theta, everybody)["eer"]


@pytest.mark.parametrize("name", ["pooled", "solo", "pfm_fv", "moving_norm", "twelve_pfm_fv", "cosface_pfm_fv"])
def test_one_row_of_each_kind_gives_its_figures(name: str) -> None:
    found = pfm_fv_real.measure(Job(name, 0, ROWS[name]))
    assert 0 < found["eer"] < 0.6
    assert np.isfinite(found["loss_last"])
    json.dumps(dict(found), allow_nan=False)
