"""Clients' own models in a run: measured as FedFR's study measures them, on images that nobody trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.methods.personal import PersonalModel
from simulation.faces import sources
from simulation.faces.datasets import people_of
from simulation.faces.sources import counts_of, images_of_all
from simulation.pages.run_page import write_run
from simulation.runs.collected import collect
from simulation.runs.experiment import Job
from simulation.runs.grid import load_sweep, measure_run
from simulation.runs.personal import Enrolled, personal_figures
from simulation.runs.run import dry_run, run_experiment
from simulation.runs.spec import CentralSpec, RunSpec, make_plan, parse
from tests.simulation.runs.test_experiment import quiet
from tests.tiny import made_up_crops, tiny_cnn

SMALL = """
name = "own"
[[faces]]
kind = "shipped"
[model]
source = "new"
backbone = "mobilefacenet_folded"
dim = 64
[partition]
scheme = "equal"
clients = 3
identities = 6
min_images = 5
train_images = 3
probe_images = 2
public = 3
test = 5
[task]
method = "fedfr"
rounds = 1
trainable = ["embedding.*"]
[task.cohort]
size = 2
min_reports = 2
[task.local]
lr = 0.05
epochs = 1
flip = false
[task.privacy]
min_cohort = 2
secure_aggregation = "off"
[task.options]
public_classes = 3
[personal]
model = "branch"
[evaluation]
replicates = 100
targets = [0.2]
"""
"""Two of three clients take part in the only round; the third has no model of its own."""


@pytest.mark.parametrize("model", ["local", "branch", "fine_tune", "distil"])
def test_each_client_is_measured_with_the_model_that_it_uses(model: str, tmp_path: Path) -> None:
    told: list[str] = []
    spec = parse(SMALL.replace('"branch"', f'"{model}"'))
    found = run_experiment(spec, tmp_path / "out", tmp_path, tell=told.append)["personal"]
    assert (found["model"], found["clients"], found["own_models"]) == (model, 3, 2)
    assert set(found["figures"]) == {"rank1", "tar_0.2", "tar_0.2_min", "tpir_0.2", "tpr_0.2", "pr_0.2"}
    assert all(0 <= value <= 1 for value in found["figures"].values())
    assert any(line.startswith(f"clients' people, {model} models: TAR at FMR 20 %") for line in told)
    assert collect(tmp_path / "out")[0].figures["personal.rank1"] == found["figures"]["rank1"]
    page = write_run(tmp_path / "out").read_text()
    assert "1:1, TAR at FMR 20 %, the worst client" in page
    assert "1:N, rank 1" in page


def test_figures_are_means_over_clients_each_with_its_own_model() -> None:
    """The second client's model maps everything to one point, so that nobody is told apart there."""
    tiny = tiny_cnn()
    runtime = tiny.runtime()
    crops = [made_up_crops(4, seed=seed, spread=3) for seed in range(4)]
    clients = {
        name: Enrolled(np.concatenate([crops[i][:2], crops[i + 1][:2]]), np.array([i, i, i + 1, i + 1]))
        for name, i in (("a", 0), ("b", 2))
    }
    tests, labels = np.concatenate([each[2:] for each in crops]), np.repeat(np.arange(4), 2)
    same = PersonalModel(tiny.theta)
    dim = tiny.spec.input.dim
    flat = PersonalModel(tiny.theta, np.zeros((dim, dim), np.float32), np.ones(dim, np.float32))
    both, _ = personal_figures(runtime, clients, {"a": same, "b": same}, tests, labels, {"0.1": 0.1})
    one, _ = personal_figures(runtime, clients, {"a": same, "b": flat}, tests, labels, {"0.1": 0.1})
    alone, _ = personal_figures(runtime, {"a": clients["a"]}, {"a": same}, tests, labels, {"0.1": 0.1})
    assert both["tar_0.1"] == 1.0
    assert one["tar_0.1_min"] < one["tar_0.1"] < 1.0
    assert one["tar_0.1"] == pytest.approx((alone["tar_0.1"] + one["tar_0.1_min"]) / 2)


def without_faces(root: Path, held: str, *, every: bool = False, least: int | None = None) -> RunSpec:
    """Return the small experiment on a copy of the faces where what one client (all: `every`) `held` are no images.

    With `least` that many of each person are none. Copies have the shipped people's names, and are dealt as those are.
    """
    people = people_of(None)
    for name, pictures in people.items():
        (root / "faces" / name).mkdir(parents=True)
        for picture in pictures:
            (root / "faces" / name / picture.name).symlink_to(picture)
    spec = parse(SMALL.replace('kind = "shipped"', 'path = "faces"\nsynthetic = true').replace("branch", "global"))
    plan = make_plan(spec, lambda source: counts_of(source, root))
    images = images_of_all(spec.faces, root)
    for client in sorted(plan.partition.clients)[: None if every else 1]:
        for holding in getattr(plan.partition, held)[client]:
            for number in holding.images[:least]:
                picture = images[holding.identity][number]
                picture.unlink()
                picture.write_bytes(b"no image")
    return spec


def test_a_client_whose_probes_give_no_face_is_left_out_and_counted(tmp_path: Path) -> None:
    spec = without_faces(tmp_path, "probes")
    told: list[str] = []
    found = run_experiment(spec, tmp_path / "out", tmp_path, tell=told.append)
    personal = found["personal"]
    assert personal["left_out"] == {"rank1": 1, "tar_0.2": 1, "tpr_0.2": 1, "pr_0.2": 1, "tpir_0.2": 3}  # 4 strangers
    assert personal["figures"].keys() == {"rank1", "tar_0.2", "tar_0.2_min", "tpr_0.2", "pr_0.2"}
    assert any("3 of 3 clients lack images" in line for line in told)
    assert "without 1 whose images cannot measure it" in write_run(tmp_path / "out").read_text()


def test_where_no_probe_gives_a_face_nothing_is_measured_and_the_run_ends_well(tmp_path: Path) -> None:
    spec = without_faces(tmp_path, "probes", every=True)
    told: list[str] = []
    personal = run_experiment(spec, tmp_path / "out", tmp_path, tell=told.append)["personal"]
    assert personal["figures"] == {}
    assert set(personal["left_out"].values()) == {3}
    assert any("no TAR to be measured, no rank 1 to be measured" in line for line in told)


def test_an_image_without_a_face_counts_once_however_often_it_is_read(tmp_path: Path) -> None:
    """It is read before the rounds, in them, and where clients' people are measured."""
    spec = without_faces(tmp_path, "clients", least=1)
    pooled = replace(spec, system="pooled", central=CentralSpec(pretrain=spec.task.local, on="labelled"))
    found = run_experiment(pooled, tmp_path / "out", tmp_path, tell=quiet)
    assert sum(found["failures"].values()) == 2  # one of each of the client's two people
    assert found["personal"]["clients"] == 3


def test_probes_that_memory_cannot_hold_are_refused_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "KEEP_BYTES", 10**5)
    with pytest.raises(ConfigError, match=r"probes of all clients' people in memory: 12 images .* lower partition"):
        dry_run(parse(SMALL), tmp_path)


def test_what_one_probe_cannot_measure_is_left_out_of_its_figure_alone() -> None:
    """One image of a person has no mated pair, and no target above what one person's scores hold has a rank."""
    tiny = tiny_cnn()
    crops = made_up_crops(6, seed=1, spread=3)
    clients = {"a": Enrolled(crops[:2], np.zeros(2, np.int64))}
    found, left_out = personal_figures(
        tiny.runtime(), clients, {"a": PersonalModel(tiny.theta)}, crops[2:], np.array([0, 1, 1, 1]), {"0.9": 0.9}
    )
    assert left_out == {"tar_0.9": 1, "tpr_0.9": 1, "pr_0.9": 1}
    assert found.keys() == {"rank1", "tpir_0.9"}


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("probe_images = 2", "probe_images = 0", "set partition.probe_images"),
        ('method = "fedfr"', 'method = "fedavg"', "fedavg leaves them the global one"),
        ('"branch"', '"brunch"', "personal.model is 'brunch'"),
        ('model = "branch"', 'model = "branch"\nepochs = 0', "personal.epochs"),
        ('name = "own"', 'name = "own"\nsystem = "pooled"', "pooled leaves them the global one"),
        ("clients = 3\nidentities = 6", "clients = 1\nidentities = 1", "give the partition two or more"),
    ],
    ids=["no probes", "another method", "no such model", "no epochs", "one place", "one person"],
)
def test_what_cannot_be_measured_is_refused_before_a_start(before: str, after: str, says: str, tmp_path: Path) -> None:
    text = SMALL.replace(before, after)
    if "identities = 1" in after:
        text = text.replace('name = "own"', 'name = "own"\nsystem = "pretrained"').replace('"branch"', '"global"')
    with pytest.raises(ConfigError, match=says):
        dry_run(parse(text), tmp_path)


def test_the_pooled_model_is_measured_on_clients_people_too(tmp_path: Path) -> None:
    spec = parse(SMALL.replace('"branch"', '"global"').replace('name = "own"', 'name = "own"\nsystem = "pooled"'))
    found = run_experiment(spec, tmp_path / "out", tmp_path, tell=quiet)
    assert found["personal"]["own_models"] == 0
    assert "rank1" in found["personal"]["figures"]


def test_a_sweep_shows_what_its_runs_measured_of_own_models(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(SMALL)
    swept = load_sweep(tmp_path / "own.toml", (), 1)
    (row,), (table,) = swept.rows, swept.tables
    found = measure_run(Job(row.name, 0, row.settings), runs=tmp_path / "runs", root=tmp_path)
    shown = {column.metric for column in table.columns if column.metric.startswith("personal.")}
    assert shown == {"personal.tar_0.2", "personal.rank1"}
    assert shown <= found.keys()
