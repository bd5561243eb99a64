"""An experiment on this machine's own workers of Ray's: the run of one process, and nothing is left of Ray."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mien.errors import ConfigError
from simulation.engines.choice import InWorker, Place, opened
from simulation.engines.population import num_images
from simulation.faces.models import read_model
from simulation.runs.records import RunFolder
from simulation.runs.run import model_of, open_cohort, run_experiment
from simulation.runs.spec import parse, with_changes
from tests.simulation.engines.cases import PART, TASK, TINY
from tests.simulation.runs.test_experiment import SMALL

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder in which Ray's own is made; its name must be short, for sockets."""
    with tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.slow
def test_an_experiment_on_a_cluster_is_the_sequential_one(tmp_path: Path, temporary: Path) -> None:
    spec = with_changes(parse(SMALL), rounds=1)
    said: list[str] = []
    for engine in ("cluster", "sequential"):
        run_experiment(with_changes(spec, engine=engine), tmp_path / engine, tmp_path, tell=said.append)
    assert any("workers on this machine, each with engine " in line for line in said)
    told = json.loads((tmp_path / "cluster" / "evaluation.json").read_text())["run"]["engine"]
    assert told["name"] == "cluster"
    assert ", each with engine " in told["reason"]
    assert told["workers"] == ["stacked"]
    kept = {engine: RunFolder(tmp_path / engine).records() for engine in ("cluster", "sequential")}
    assert [(record["engine"], record.get("workers")) for record in kept["cluster"]] == [("cluster", ["stacked"])]
    assert [(record["engine"], record.get("workers")) for record in kept["sequential"]] == [("sequential", None)]
    there, here = (read_model(tmp_path / engine / "model").theta for engine in ("cluster", "sequential"))
    moved = np.abs(here - model_of(spec.model, tmp_path).theta).max()
    assert moved > 1e-5
    assert np.abs(there - here).max() < 0.01 * moved
    assert not ray.is_initialized()
    assert list(temporary.glob("mien-ray-*")) == []


def test_workers_open_the_phones_of_the_run(tmp_path: Path) -> None:
    """What travels to a worker opens the same faces there and holds none; images are counted without opening one."""
    spec = parse(SMALL)
    cohort = open_cohort(spec, tmp_path)
    sent = ray.cloudpickle.dumps((open_cohort, spec, tmp_path))
    assert len(sent) < 20_000
    again = open_cohort(*ray.cloudpickle.loads(sent)[1:])
    assert list(again.crops) == list(cohort.crops)
    for name in cohort.crops:
        assert num_images(cohort.crops, name) == len(again.crops[name])
        np.testing.assert_array_equal(again.crops[name], cohort.crops[name])


def test_an_address_is_for_the_cluster_engine_alone() -> None:
    worker = InWorker(TINY.spec, TINY.layout, TASK, PART)
    with (
        pytest.raises(ConfigError, match="use engine cluster"),
        opened("stacked", TINY.runtime(), TASK, PART, worker, Place(address="127.0.0.1:1")),
    ):
        pass
