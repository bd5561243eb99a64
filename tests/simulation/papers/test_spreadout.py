"""The spread-out study: rows that methods take, divisions that are disjoint, a rule that decides as it is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.errors import EmptyFolderError
from mien.evaluation import all_pairs
from mien.layout import Vector
from mien.methods import find_method
from mien.methods.base import Crops, Embeddings
from mien.records import from_mapping
from mien.specs import TaskSpec
from simulation.engines.engine import Cohort, PublicFaces, run_task
from simulation.engines.runtimes import OncePerRound
from simulation.faces.workbench import domain_of
from simulation.papers.spreadout import choice, study
from simulation.papers.spreadout.populations import POPULATIONS, Population, divide
from simulation.papers.spreadout.runs import separation, verification
from simulation.runs.experiment import Results
from tests.tiny import made_up_crops, tiny_adapted, tiny_cnn

STUDY = study(quick=True, faces=None)
TINY, ADAPTED = tiny_cnn(8), tiny_adapted(8)
REVEALING = {"exact", "fedgc_exact"}


def people_of(population: Population) -> list[str]:
    domains = {*population.public, *population.phones, *(d for test in population.tests.values() for d in test.domains)}
    return [f"{name}_{i:04}" for name in sorted(domains) for i in range(400)]


@pytest.mark.parametrize("row", [row for row in STUDY.rows if "task" in row.settings], ids=lambda row: row.name)
def test_every_row_is_a_task_that_its_method_takes(row: Any) -> None:
    task = from_mapping(TaskSpec, row.settings["task"])
    method = find_method(task.method)
    layout = method.contribution_layout(task, ADAPTED.part(), 8)
    assert bool(layout.revealed) == (row.name in REVEALING)
    assert ("moment" in layout.slices) == ("moment" in row.name or row.name == "fedgc_both")


@pytest.mark.parametrize("population", POPULATIONS.values(), ids=lambda population: population.title)
def test_nobody_is_in_two_groups_and_domains_are_kept(population: Population) -> None:
    people = people_of(population)
    drawn = divide(people, population.settings(), seed=1)
    groups = [drawn.public, drawn.phones, *drawn.tests.values()]
    assert len({name for group in groups for name in group}) == sum(map(len, groups))
    assert {domain_of(name) for name in drawn.phones} <= set(population.phones)
    assert {domain_of(name) for name in drawn.public}.isdisjoint(population.phones)
    assert len(drawn.phones) == population.num_phones
    assert divide(people, population.settings(), seed=1) == drawn != divide(people, population.settings(), seed=2)


def test_too_few_people_are_said() -> None:
    with pytest.raises(EmptyFolderError, match="caucasian: 60"):
        divide(
            [f"african_{i}" for i in range(500)] + ["caucasian_1"] * 100, POPULATIONS["synthetic"].settings(), seed=0
        )


def results(figures: dict[str, list[tuple[float, float]]]) -> Results:
    """Return made-up results: (EER on the phones' side, on the old side) of each row under seeds 0, 1, 2."""
    records = {
        (row, seed): {"metrics": {"test_eer": eer, "old_eer": old}}
        for row, values in figures.items()
        for seed, (eer, old) in enumerate(values)
    }
    return Results(STUDY, (0, 1, 2), records)


EXACT = [(0.10, 0.05), (0.11, 0.06), (0.12, 0.05)]


def shifted(eer: float, old: float) -> list[tuple[float, float]]:
    return [(e + eer, o + old) for e, o in EXACT]


def test_the_best_form_within_a_point_at_no_more_cost_is_chosen() -> None:
    found = results(
        {
            "exact": EXACT,
            "moment": shifted(0.009, 0.0),
            "public": shifted(0.004, 0.0),
            "softmax_moment": shifted(0.02, 0.0),
        }
    )
    judged = choice.judge(found, *choice.FORMS["FedFace"])
    chosen = choice.choose(judged)
    assert chosen is not None
    assert chosen.row == "public"
    assert [form.qualifies for form in judged] == [True, True, False]
    assert "| chosen |" in choice.markdown(found)
    assert "<table" in choice.page(found, "command")


def test_moments_are_chosen_only_where_nothing_else_qualifies() -> None:
    found = {"exact": EXACT, "moment": shifted(-0.02, 0.0), "public": shifted(0.004, 0.0)}
    judged = choice.judge(results(found), *choice.FORMS["FedFace"])
    chosen = choice.choose(judged)
    assert chosen is not None
    assert chosen.row == "public"
    assert "With moments, which a task has to name, M comes to -2.00" in choice.sentence("FedFace", judged)
    alone = choice.choose(choice.judge(results({**found, "public": shifted(0.02, 0.0)}), *choice.FORMS["FedFace"]))
    assert alone is not None
    assert alone.row == "moment"


def test_a_form_that_costs_the_old_population_is_not_chosen() -> None:
    judged = choice.judge(results({"exact": EXACT, "public": shifted(-0.03, 0.01)}), *choice.FORMS["FedFace"])
    assert choice.choose(judged) is None
    assert "no private form qualifies" in choice.sentence("FedFace", judged)
    assert "-3.00" in choice.sentence("FedFace", judged)


def test_a_cost_within_chance_is_none() -> None:
    noisy = [(0.10, 0.08), (0.11, 0.04), (0.12, 0.05)]  # +3, -2, 0 points
    judged = choice.judge(results({"exact": EXACT, "moment": noisy}), *choice.FORMS["FedFace"])
    assert judged[0].qualifies


def test_nothing_measured_is_said() -> None:
    assert choice.sentence("FedGC", choice.judge(results({"exact": EXACT}), *choice.FORMS["FedGC"])) == (
        "FedGC: not measured."
    )


def test_verification_has_counts_figures_and_intervals_of_made_up_scores() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, 16))
    labels = np.repeat(np.arange(40), 4)
    found = verification(all_pairs(centres[labels] + 0.8 * rng.normal(size=(160, 16)), labels, keep_subjects=True))
    assert (found["mated"], found["non_mated"]) == (40 * 6, 160 * 159 / 2 - 240)
    assert found["eer_low"] <= found["eer"] <= found["eer_high"]
    assert 0 < found["tar_1e-3"] < 1


def test_a_model_that_has_collapsed_is_a_coin_toss() -> None:
    assert verification(all_pairs(np.ones((8, 4)), np.repeat(np.arange(4), 2), keep_subjects=True))["eer"] == 0.5


def test_public_people_are_embedded_once_a_round() -> None:
    class Counting(TorchRuntime):
        calls: ClassVar[int] = 0

        def embed(self, theta: Vector, crops: Crops) -> Embeddings:
            Counting.calls += 1
            return super().embed(theta, crops)

    runtime = OncePerRound(Counting(TINY.spec, TINY.layout, backbone=TINY.backbone))
    theta, crops = TINY.theta, made_up_crops(2, seed=0)
    runtime.embed(theta, crops)
    runtime.embed(theta, crops)
    assert Counting.calls == 1
    runtime.embed(theta.copy(), crops)
    runtime.embed(theta, crops.copy())
    assert Counting.calls == 3


@pytest.mark.parametrize("method", ["fedface", "fedgc"])
@pytest.mark.parametrize("reveals", [(), ("class_embeddings",)])
def test_separation_is_that_of_the_embeddings_that_are_left(method: str, reveals: tuple[str, ...]) -> None:
    crops = {f"phone{i}": made_up_crops(4, seed=i) for i in range(3)}
    labels = {name: np.array([0, 0, 1, 1]) for name in crops} if method == "fedgc" else {}
    public = PublicFaces(made_up_crops(4, seed=9), np.array([0, 0, 1, 1]))
    row = next(row for row in STUDY.rows if row.name == ("fedgc_exact" if method == "fedgc" else "exact"))
    values = {**row.settings["task"], "trainable": [], "privacy": {"min_cohort": 3, "reveals": list(reveals)}}
    values["cohort"] = {"size": 3, "min_reports": 3}
    task = replace(from_mapping(TaskSpec, values), rounds=1)
    runtime = TINY.runtime()
    run = run_task(task, TINY.part(), 8, TINY.theta, Cohort(crops, public=public, labels=labels), runtime)
    found = separation(runtime, run)
    num = 6 if method == "fedgc" else 3
    assert 0 <= found["sep_pairs"] <= num * (num - 1) / 2
    assert -1 <= found["sep_mean"] <= found["sep_max"] <= 1 + 1e-6
    assert -1 <= found["drift"] <= 1 + 1e-6


def test_records_name_the_data_and_the_settings(tmp_path: Path) -> None:
    names = {STUDY.file_of(row, seed) for row in STUDY.rows for seed in (0, 1)}
    assert len(names) == 2 * len(STUDY.rows)
    other = replace(STUDY, data_sha256="0" * 64)
    assert names.isdisjoint({other.file_of(row, 0) for row in other.rows})
