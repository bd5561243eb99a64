"""What a fleet's cohorts learn: the reference engine's very model, where the same cohorts land in the same order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mien.methods import find_method
from mien.specs import AsynchronousSpec, CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.base import Cohort, SequentialEngine
from simulation.engines.engine import run_task
from simulation.fleet.records import Attempt, History, PhoneCounts
from simulation.fleet.training import landings
from simulation.program.cli import app
from tests.tiny import made_up_crops, tiny_cnn

TINY, DIM = tiny_cnn(), 8
PART = TINY.part()
CLIENTS = tuple("abcdef")
NAMES = {f"{number:08d}": client for number, client in enumerate(CLIENTS)}
COHORT = Cohort({name: made_up_crops(2 + index % 3, seed=index) for index, name in enumerate(CLIENTS)})
TASK = TaskSpec(
    "fleet",
    method="fedavg",
    rounds=4,
    cohort=CohortSpec(size=2, min_reports=2),
    local=LocalSpec(lr=1.0, flip=False),
    options={"margin": 1.0},
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
)


def history(landed: list[tuple[int, int, tuple[str, ...]]]) -> History:
    """Return a history in which cohorts (number, base, clients) made one model after another."""
    ids = {client: device for device, client in NAMES.items()}
    attempts = [
        Attempt(
            number,
            1,
            0,
            0.0,
            ended_s=100.0 * version,
            is_closed=True,
            base_version=base,
            version=version,
            devices=tuple(ids[client] for client in clients),
        )
        for version, (number, base, clients) in enumerate(landed, 1)
    ]
    lost = Attempt(99, 1, 0, 0.0, ended_s=50.0, reason="too few")
    counts, none = PhoneCounts.of(6), np.zeros(1, np.int64)
    return History("fleet", 1e4, "done", len(landed), (lost, *reversed(attempts)), counts, none, none)


@pytest.mark.parametrize("asynchronous", [None, AsynchronousSpec(max_concurrency=3)])
def test_the_same_cohorts_make_the_reference_engines_model(asynchronous: AsynchronousSpec | None) -> None:
    task = replace(TASK, asynchronous=asynchronous)
    run = run_task(task, PART, DIM, TINY.theta, COHORT, TINY.runtime())
    numbers = [record.round for record in run.records]
    landed = [
        (number, number - 1 - record.staleness, record.devices)
        for number, record in zip(numbers, run.records, strict=True)
    ]
    state = find_method(task.method).server_start(task, PART, TINY.theta)
    engine = SequentialEngine(TINY.runtime())
    steps = list(landings(history(landed), task, PART, DIM, state, COHORT, engine, NAMES))
    assert len(steps) == task.rounds
    assert [step.attempt.staleness for step in steps] == [record.staleness for record in run.records]
    assert np.array_equal(steps[-1].state.theta, run.state.theta)
    assert not np.array_equal(steps[-1].state.theta, TINY.theta)


def test_the_command_trains_the_phones_that_were_counted(tmp_path: Path) -> None:
    task = tmp_path / "task.toml"
    task.write_text(
        'name = "phones"\nmethod = "fedavg"\nrounds = 1\ntrainable = ["adapter.*"]\n'
        "[cohort]\nsize = 3\nmin_reports = 3\n[privacy]\nmin_cohort = 3\n[local]\nlr = 0.3\nflip = false\n"
    )
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        'name = "e"\n[model]\nsource = "sface"\n[[faces]]\nkind = "shipped"\n[partition]\nscheme = "one_identity"\n'
        'clients = 10\ntest = 8\nmin_images = 4\n[task]\nmethod = "fedavg"\n'
        "[task.cohort]\nsize = 3\nmin_reports = 3\n[task.privacy]\nmin_cohort = 3\n[evaluation]\nevery = 1\n"
    )
    arguments = ["fleet", str(task), "--experiment", str(experiment), "--days", "1", "--out", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (policy,) = json.loads(result.output)["policies"]
    assert policy["phones"] == 10
    assert [point["round"] for point in policy["eer"]] == [0, 1]
    assert policy["eer"][1]["hours"] > 0
    assert "Accuracy over the clock" in (tmp_path / "report.html").read_text()
