"""A run's steps beside its rounds: on which device it trains, and how long it says that it will take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mien.errors import ConfigError, MissingDependencyError
from simulation.faces.models import read_model
from simulation.faces.sources import counts_of
from simulation.runs.records import RunFolder
from simulation.runs.run import dry_run, run_experiment, seconds_left
from simulation.runs.spec import load, make_plan, parse
from tests.simulation.runs.test_experiment import SMALL, quiet


def test_the_first_round_tells_nothing_of_the_others() -> None:
    """36 s of features that are computed once, then rounds of 1 s: 18 minutes were told where 29 s were left."""
    assert seconds_left([0.0, 37.0], 29) is None
    assert seconds_left([0.0, 37.0, 38.0], 28) == 28.0
    assert seconds_left([0.0, 37.0, 38.0, 41.0], 27) == 54.0
    assert seconds_left([0.0, 37.0], 0) == 0.0


def test_rounds_that_grow_slower_are_told_by_the_last_ones() -> None:
    quick = [float(second) for second in range(50)]
    slow = [quick[-1] + 10.0 * number for number in range(1, 21)]
    assert seconds_left([*quick, *slow], 3) == 30.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there_is_refused_by_a_dry_run_as_by_a_start(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="no CUDA"):
        dry_run(parse(SMALL), tmp_path, on="cuda")
    with pytest.raises(MissingDependencyError, match="no CUDA"):
        run_experiment(parse(SMALL), tmp_path / "out", tmp_path, tell=quiet, on="cuda")
    assert not (tmp_path / "out" / "records.jsonl").exists()


def test_the_evaluation_says_on_what_it_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIEN_SIM_DEVICE", "cuda")  # what is named comes before it
    told: list[str] = []
    found = run_experiment(parse(SMALL), tmp_path / "out", tmp_path, tell=told.append, on="cpu")
    assert found["run"]["engine"]["device"] == "cpu"
    rounds = [line for line in told if line.startswith("round ")]
    assert "left" not in rounds[0]
    assert rounds[1].endswith(" s left")


@pytest.mark.parametrize(("most", "is_told"), [(3, True), (64, False), (1, False)])
def test_a_mean_by_images_that_is_none_is_told(most: int, is_told: bool, tmp_path: Path) -> None:
    """Clients of more images than the largest weight count alike, as if nobody had asked for their numbers."""
    spec = parse(SMALL)
    task = replace(spec.task, privacy=replace(spec.task.privacy, max_weight=most))
    told: list[str] = []
    found = run_experiment(replace(spec, task=task), tmp_path / "out", tmp_path, tell=told.append)
    said = [line for line in told if f"hold more images than privacy.max_weight ({most})" in line]
    assert [line.startswith("warning: round 1: ") for line in said] == [True] * is_told
    assert len(found.get("warnings", [])) == is_told


SILOS = """
name = "silos"
[[faces]]
kind = "shipped"
[model]
source = "new"
backbone = "mobilefacenet_folded"
dim = 64
[partition]
scheme = "equal"
clients = 3
identities = 9
min_images = 3
train_images = 3
test = 5
validators = 12
[task]
method = "pfm_fv"
rounds = 2
trainable = ["embedding.*"]
[task.cohort]
size = 3
min_reports = 3
[task.validators]
size = 3
min_reports = 3
[task.local]
lr = 0.01
steps = 1
batch_size = 4
flip = false
[task.privacy]
min_cohort = 3
secure_aggregation = "off"
reveals = ["local_models"]
[task.options]
candidates = 2
mixing = 0.5
[evaluation]
replicates = 100
"""
"""The paper's three silos, and three validators of four people each."""


def test_validators_of_the_partition_judge_every_round(tmp_path: Path) -> None:
    spec = parse(SILOS)
    plan = make_plan(spec, lambda source: counts_of(source, tmp_path))
    judges = {each.identity for each in plan.partition.validators}
    others = {each.identity for held in (*plan.partition.clients.values(), plan.partition.test) for each in held}
    assert len(judges) == 12
    assert not judges & others
    assert dry_run(spec, tmp_path)["partition"]["validator_identities"] == 12
    found = run_experiment(spec, tmp_path / "judged", tmp_path, tell=quiet)
    assert found["partition"]["validator_identities"] == 12
    assert len(RunFolder(tmp_path / "judged").records()) == 2
    unjudged = SILOS.replace("candidates = 2\nmixing = 0.5", 'validation = "off"').replace("validators = 12\n", "")
    unjudged = unjudged.replace("[task.validators]\nsize = 3\nmin_reports = 3\n", "")
    run_experiment(parse(unjudged), tmp_path / "not", tmp_path, tell=quiet)
    thetas = [read_model(tmp_path / name / "model").theta for name in ("judged", "not")]
    assert (thetas[0] != thetas[1]).any()


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("validators = 12\n", "", "partition.validators is 0; each of the 3 validators"),
        ("validators = 12", "validators = 11", "needs four people or more"),
        ("min_images = 3\ntrain_images = 3", "min_images = 1", "partition.min_images is 1; validators compare"),
        ("candidates = 2", 'validation = "off"', "nobody judges in this task"),
        ("validators = 12", "validators = -1", "partition.validators is -1"),
        ('reveals = ["local_models"]\n', "", "weightings of one round's updates"),
    ],
    ids=["none", "few", "one picture", "off", "negative", "three silos hide nobody"],
)
def test_validators_that_cannot_judge_are_refused_before_a_start(
    before: str, after: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        dry_run(parse(SILOS.replace(before, after)), tmp_path)


ADAPTATION = Path(__file__).resolve().parents[3] / "docs" / "examples" / "adaptation.toml"


def test_the_example_of_adaptation_clusters_whom_nobody_labelled(tmp_path: Path) -> None:
    """Four of its clients number their faces themselves, by a distance of the public people, and the model moves."""
    told: list[str] = []
    spec = load(ADAPTATION)
    found = run_experiment(
        replace(spec, task=replace(spec.task, rounds=1)), tmp_path / "out", tmp_path, tell=told.append
    )
    assert found["before"]["eer"] != found["after"]["eer"]
    assert found["clusters"]["clients"] == 4
    assert found["clusters"]["precision"] > found["clusters"]["recall"] > 0
    assert [line for line in told if line.startswith("clusters of 4 clients")]
    assert "warnings" not in found
    assert not [line for line in told if line.startswith("warning")]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("labelled = false", "labelled = true", "all are labelled: nobody clusters faces"),
        ('domain = "caucasian"', 'domain = "caucasian"\nlabelled = false', "none is labelled"),
    ],
)
def test_an_adaptation_without_a_source_or_without_targets_is_told(
    old: str, new: str, said: str, tmp_path: Path
) -> None:
    text = ADAPTATION.read_text(encoding="utf-8").replace(old, new).replace("distance = 0.0", "distance = 0.9")
    spec = parse(text.replace("purity = 0.95\n", "").replace("public = 6", "public = 0"))
    (warning,) = dry_run(spec, tmp_path)["warnings"]
    assert said in warning
    assert dry_run(load(ADAPTATION), tmp_path)["warnings"] == []
