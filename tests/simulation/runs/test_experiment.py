"""Experiments from TOML: errors that name the field, dry runs at the papers' scale, runs that survive a kill."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulation.papers
from mien.errors import (
    AlreadyExistsError,
    BudgetExceededError,
    ConfigError,
    CorruptDataError,
    EmptyFolderError,
    MienError,
    NotFoundError,
)
from mien.layout import ParameterPart
from mien.methods import find_method
from mien.methods.base import ServerState
from mien.records import to_mapping
from simulation.engines.engine import Cohort, RoundRecord, Step
from simulation.engines.sums import epsilon_spent
from simulation.faces.models import read_model
from simulation.pages.run_page import run_page
from simulation.runs.records import Header, RunFolder, only_writer
from simulation.runs.run import model_of, run_experiment
from simulation.runs.spec import dry_plan, load, parse, with_changes
from tests.simulation.standing import killed_in_its_second_round

HERE = Path(simulation.papers.__file__).parent
SMALL = """
name = "small"
[[faces]]
kind = "shipped"
[model]
source = "new"
backbone = "mobilefacenet_folded"
dim = 128
[partition]
scheme = "one_identity"
clients = 3
test = 8
[task]
method = "fedavg"
rounds = 3
trainable = ["embedding.*"]
[task.cohort]
size = 3
min_reports = 3
[task.local]
lr = 0.01
[task.privacy]
min_cohort = 3
[task.options]
margin = 1.0
[evaluation]
every = 2
replicates = 100
"""


def quiet(_text: str) -> None:
    """Say nothing."""


@pytest.mark.parametrize("path", sorted((HERE / "fedface").glob("phones*.toml")), ids=lambda path: path.stem)
def test_a_dry_run_of_every_experiment_needs_no_data(path: Path, tmp_path: Path) -> None:
    spec = load(path)
    summary = dry_plan(spec, tmp_path).summary()
    assert summary["partition"]["clients"] == spec.partition.clients
    if spec.faces[0].images:
        assert summary["found"] == {"identities": spec.faces[0].identities, "images": spec.faces[0].images}


def test_a_dry_run_says_where_people_went(tmp_path: Path) -> None:
    spec = load(HERE / "fedface" / "phones_800.toml")
    spec = replace(spec, partition=replace(spec.partition, test=700))
    with pytest.raises(EmptyFolderError, match="1000 people have at least 4 images; 700 go to tests and 40 to public"):
        dry_plan(spec, tmp_path)


def test_a_task_is_named_as_its_experiment() -> None:
    assert load(HERE / "fedface" / "phones.toml").task.name == "fedface-phones"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("clients = 3", "client = 3"), "unknown field 'partition.client'; did you mean 'partition.clients'"),
        (('method = "fedavg"', 'method = "fedawg"'), "fedawg"),
        (("margin = 1.0", "marginn = 1.0"), "task.options.marginn"),
        (('kind = "shipped"', 'kind = "folder"'), "faces.path"),
        (("every = 2", "every = -2"), "evaluation.every"),
        (('backbone = "mobilefacenet_folded"', 'path = "x"'), "model.path"),
        (("[[faces]]", "[faces]"), "faces"),
        (("rounds = 3", "rounds = "), "not valid TOML"),
        (("rounds = 3", 'rounds = "three"'), "task.rounds is 'three'"),
        (('kind = "shipped"', 'kind = "shipped"\nlabelled = false'), "needs faces.domain"),
        (("dim = 128", "dim = 0"), "model.dim is 0; it must lie between 1 and"),
        (("dim = 128", "dim = 1000000000"), "model.dim is 1000000000; it must lie between 1 and"),
        (("dim = 128", f"dim = 128\nseed = {1 << 64}"), "model.seed is"),
        (('kind = "shipped"', f'path = "x"\nidentities = {10**12}\nimages = {10**12}'), "people and 100000000 images"),
        (('kind = "shipped"', f'path = "x"\nidentities = 1\nimages = {10**12}'), "people and 100000000 images"),
        (("replicates = 100", "replicates = 99"), "evaluation.replicates is 99; it must lie between 100"),
        (("replicates = 100", f"replicates = {10**12}"), "evaluation.replicates is 1000000000000"),
    ],
)
def test_mistakes_are_named(change: tuple[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        parse(SMALL.replace(*change))


@pytest.mark.parametrize("public", [0, 1, 2])
def test_a_clustering_measured_on_public_people_needs_two_of_them(public: int) -> None:
    """One passed the dry run, and ended the run in its first round."""
    text = SMALL.replace('method = "fedavg"', 'method = "fedfr_uda"')
    text = text.replace("margin = 1.0", 'margin = 0.5\nclustering = { algorithm = "c_finch", distance = 0.0 }')
    text = text.replace("clients = 3", f"clients = 3\npublic = {public}")
    if public == 2:
        assert parse(text).partition.public == 2
        return
    with pytest.raises(ConfigError, match=rf"of 2 people or more; partition.public is {public}, raise it to 2"):
        parse(text)


def test_what_a_run_refuses(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="--seed is -1"):
        with_changes(parse(SMALL), seed=-1)
    with pytest.raises(NotFoundError, match="start at --faces"):
        run_experiment(
            parse(SMALL.replace('kind = "shipped"', 'path = "nowhere"')), tmp_path / "a", tmp_path, tell=quiet
        )
    with pytest.raises(NotFoundError, match="holds no run"):
        run_experiment(parse(SMALL), tmp_path / "b", tmp_path, resume=True, tell=quiet)


class TestRun:
    def test_a_killed_run_goes_on_and_ends_at_the_same_model(self, tmp_path: Path) -> None:
        experiment = tmp_path / "small.toml"
        experiment.write_text(SMALL.replace("rounds = 3", "rounds = 12"))
        folder = tmp_path / "killed"
        killed_in_its_second_round(folder / "records.jsonl", "run", experiment, "--out", folder)
        spec = load(experiment)
        done = len(RunFolder(tmp_path / "killed").records())
        assert 1 <= done < 12
        assert (tmp_path / "killed" / "checkpoint.key").stat().st_mode & 0o077 == 0
        with pytest.raises(AlreadyExistsError, match="--resume"):
            run_experiment(spec, tmp_path / "killed", tmp_path, tell=quiet)
        with pytest.raises(AlreadyExistsError, match=r"\(task.rounds 12, now 14\); a run that has begun keeps"):
            run_experiment(with_changes(spec, rounds=14), tmp_path / "killed", tmp_path, resume=True, tell=quiet)

        resumed = run_experiment(spec, tmp_path / "killed", tmp_path, resume=True, tell=quiet)
        whole = run_experiment(spec, tmp_path / "whole", tmp_path, tell=quiet)
        thetas = [read_model(tmp_path / name / "model").theta for name in ("killed", "whole")]
        np.testing.assert_array_equal(thetas[0], thetas[1])
        assert resumed["after"] == whole["after"]
        records = RunFolder(tmp_path / "killed").records()
        assert [r["round"] for r in records] == list(range(1, 13))
        for unit in ("cpu_s", "wall_s"):  # of all rounds, whichever process took them
            assert resumed["run"][unit]["rounds"] == pytest.approx(sum(record[unit] for record in records), abs=0.01)
        assert not list((tmp_path / "killed").glob("checkpoint.*"))
        assert run_experiment(spec, tmp_path / "killed", tmp_path, resume=True, tell=quiet) == resumed

    def test_a_damaged_checkpoint_is_named(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path)
        theta = np.zeros(2, np.float32)
        step = Step(ServerState(theta), Cohort({}), RoundRecord(1, (), 0.0, 0.0, 0.0))
        run.save(step, {"round": 1})
        assert run.load(Cohort({})) is not None
        checkpoint = tmp_path / "checkpoint.bin"
        whole = checkpoint.read_bytes()
        cut = [whole[:size] for size in (0, 1, 12, 40, len(whole) - 1)]
        flipped = whole[:-1] + bytes([whole[-1] ^ 1])
        for damaged in (*cut, flipped, whole + b"x"):
            checkpoint.write_bytes(damaged)
            with pytest.raises(CorruptDataError, match=r"checkpoint\.bin is damaged.*new folder with --out"):
                run.load(Cohort({}))

    def test_records_and_report(self, tmp_path: Path) -> None:
        from simulation.program.reports import report

        run_experiment(parse(SMALL), tmp_path / "run", tmp_path, tell=quiet)
        records = RunFolder(tmp_path / "run").records()
        assert ["eer" in record for record in records] == [False, True, False]
        result: dict[str, Any] = json.loads((tmp_path / "run" / "evaluation.json").read_text())
        assert (result["after"]["num_mated"], result["after"]["num_non_mated"]) == (8 * 45, 28 * 100)
        assert result["after"]["eer_low"] <= result["after"]["eer"] <= result["after"]["eer_high"]
        report(tmp_path / "run", None, as_json=True)
        page = (tmp_path / "run" / "report.html").read_text()
        assert "small" in page
        assert "Equal error rate, test people" in page
        with pytest.raises(MienError, match="--markdown is for"):
            report(tmp_path / "run", tmp_path / "x.md", as_json=True)


def test_sums_of_the_ring_are_near_the_exact_ones(tmp_path: Path) -> None:
    thetas = []
    for sums in ("exact", "ring"):
        text = SMALL.replace('name = "small"', f'name = "small"\nsums = "{sums}"').replace("rounds = 3", "rounds = 1")
        run_experiment(parse(text), tmp_path / sums, tmp_path, tell=quiet)
        thetas.append(read_model(tmp_path / sums / "model").theta)
    assert 0 < np.abs(thetas[0] - thetas[1]).max() < 1e-4  # rounded to steps of the ring


NOISY = """
[task.privacy.dp]
mechanism = "central_gaussian"
noise_multiplier = 1.0
epsilon = 50.0
delta = 1e-5
max_participations = 5
"""
PRIVATE = SMALL.replace("min_cohort = 3", "min_cohort = 3\nmax_weight = 1\nl2_clip = 1.0" + NOISY)


def test_noise_needs_the_ring() -> None:
    text = PRIVATE
    with pytest.raises(ConfigError, match="set sums = 'ring'"):
        parse(text)
    assert parse(text.replace('name = "small"', 'name = "small"\nsums = "ring"')).task.privacy.dp.is_on


def test_noise_is_counted_and_losses_are_withheld(tmp_path: Path) -> None:
    told: list[str] = []
    spec = parse(PRIVATE.replace('name = "small"', 'name = "small"\nsums = "ring"').replace("rounds = 3", "rounds = 2"))
    result = run_experiment(spec, tmp_path / "run", tmp_path, tell=told.append)
    spent = result["privacy"]
    # Two Gaussian sums of multiplier 1 at delta 1e-5: dp-accounting's RdpAccountant gives 7.0774.
    assert (spent["num_sums"], spent["num_rounds"], spent["delta"]) == (2, 2, 1e-5)
    assert 7.05 < spent["epsilon"] < 7.15
    assert any("epsilon" in line and "withheld" in line for line in told)
    records = RunFolder(tmp_path / "run").records()
    assert len(records) == 2
    assert not any("loss" in name for record in records for name in record)
    page = run_page(to_mapping(spec), records, result)
    assert "Differential privacy" in page
    assert f"{spent['epsilon']:.3g} at delta 1e-05" in page


def test_a_budget_is_kept_as_a_coordinator_keeps_it(tmp_path: Path) -> None:
    text = PRIVATE.replace('name = "small"', 'name = "small"\nsums = "ring"').replace("epsilon = 50.0", "epsilon = 8.5")
    for rounds, separation, last in ((3, 0, 2), (40, 0, 2), (40, 4, 8)):
        tried = text.replace("rounds = 3", f"rounds = {rounds}")
        tried = tried.replace("max_participations = 5", f"max_participations = 5\nmin_separation = {separation}")
        with pytest.raises(BudgetExceededError, match=f"after round {last}[.]"):
            run_experiment(parse(tried), tmp_path / "run", tmp_path, tell=quiet)
    assert not (tmp_path / "run" / "experiment.json").exists()
    capped = text.replace("max_participations = 5", "max_participations = 2").replace("rounds = 3", "rounds = 90")
    spec = parse(capped)
    layout = find_method("fedavg").contribution_layout(spec.task, _part(), 128)
    found = epsilon_spent(spec.task, layout)
    assert found is not None
    assert (found.num_sums, found.num_rounds) == (2, 90)
    assert "keeps a phone out after 2" in str(found)


def _part() -> ParameterPart:
    return model_of(parse(SMALL).model, Path()).layout.part(("embedding.*",))


def test_another_seed_draws_a_new_model_s_weights_too() -> None:
    assert with_changes(parse(SMALL), seed=3).model.seed == 3
    given = parse(SMALL.replace('source = "new"\nbackbone = "mobilefacenet_folded"\ndim = 128\n', ""))
    assert with_changes(given, seed=3).model == given.model


def stopped_before_its_rounds(_text: str) -> None:
    """Stop a run at the first line that it tells, which is of the model before training."""
    raise KeyboardInterrupt


def test_a_run_that_came_to_no_round_blocks_nothing(tmp_path: Path) -> None:
    spec = parse(SMALL.replace("rounds = 3", "rounds = 1"))
    with pytest.raises(KeyboardInterrupt):
        run_experiment(spec, tmp_path / "run", tmp_path, tell=stopped_before_its_rounds)
    assert (tmp_path / "run" / "experiment.json").exists()
    run_experiment(with_changes(spec, seed=3), tmp_path / "run", tmp_path, tell=quiet)
    assert [record["round"] for record in RunFolder(tmp_path / "run").records()] == [1]
    with pytest.raises(AlreadyExistsError, match="--resume"):
        run_experiment(spec, tmp_path / "run", tmp_path, tell=quiet)


def test_a_run_waits_for_whoever_writes_its_folder_and_then_says_who(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.runs.records.WAIT_S", 0.0)
    (tmp_path / "run").mkdir()
    with only_writer(tmp_path / "run"), pytest.raises(AlreadyExistsError, match=f"process {os.getpid()}"):
        run_experiment(parse(SMALL), tmp_path / "run", tmp_path, tell=quiet)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"lock"}


def test_every_field_that_differs_is_named(tmp_path: Path) -> None:
    spec = parse(SMALL)
    RunFolder(tmp_path / "run").start(spec, Header("e", "a" * 64, "b" * 64, 0, "c", "d", "e", "f"))
    other = parse(SMALL.replace("lr = 0.01", "lr = 0.5").replace('"embedding.*"', '"*"').replace("margin = 1.0\n", ""))
    with pytest.raises(AlreadyExistsError) as refused:
        run_experiment(other, tmp_path / "run", tmp_path, resume=True, tell=quiet)
    for words in (
        "task.local.lr 0.01, now 0.5",
        "task.options.margin 1.0, now not set",
        'task.trainable ["embedding.*"], now ["*"]',
    ):
        assert words in refused.value.message
    assert "rounds" not in refused.value.message
