"""Which engine is chosen, with the reason; and that what cannot run a task is refused in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.errors import ConfigError
from mien.specs import CohortSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.engines.choice import InWorker, choose, opened
from simulation.engines.runtimes import OncePerRound, PublicOnly
from simulation.engines.sums import Sums
from simulation.faces.models import read_model
from simulation.faces.partitions import PartitionSpec
from simulation.faces.sources import FacesSource
from simulation.runs.run import model_of, run_experiment
from simulation.runs.spec import RunSpec, with_changes
from tests.simulation.engines.cases import PART, TASK, TINY
from tests.simulation.untrained import untrained_model

ONE_STEP = replace(TASK, local=LocalSpec(lr=0.1, flip=False))
WHOLE = untrained_model()


@pytest.mark.parametrize(
    ("task", "sums", "chosen", "reason"),
    [
        (TASK, "exact", "stacked", "one batched program"),
        (ONE_STEP, "exact", "stacked", "one batched program"),
        (replace(TASK, local=LocalSpec(batch_norm="train")), "exact", "sequential", "BatchNorm"),
        (replace(TASK, method="federated_evaluation"), "exact", "sequential", "trains nothing"),
        (replace(TASK, privacy=PrivacySpec(min_cohort=3)), "ring", "stacked", "one batched program"),
    ],
)
def test_a_small_tail_is_stacked_where_it_can_be(task: TaskSpec, sums: Sums, chosen: str, reason: str) -> None:
    choice = choose("auto", OncePerRound(TINY.runtime()), task, PART, sums)
    assert choice.engine.name == chosen
    assert reason in choice.reason
    assert str(choice) == f"engine {chosen}: {choice.reason}"


@pytest.mark.parametrize(("task", "chosen"), [(TASK, "sequential"), (ONE_STEP, "fused")])
def test_a_whole_net_is_fused_or_run_one_by_one_on_a_cpu(task: TaskSpec, chosen: str) -> None:
    runtime = TorchRuntime(WHOLE.spec, WHOLE.layout)
    choice = choose("auto", runtime, task, WHOLE.layout.part(("*",)))
    assert choice.engine.name == chosen
    assert "221 million multiplications" in choice.reason


def test_a_control_that_trains_in_its_own_way_is_run_one_by_one() -> None:
    control = PublicOnly(TINY.runtime())
    choice = choose("auto", control, TASK, PART)
    assert choice.engine.name == "sequential"
    assert choice.engine.runtime is control
    for name in ("stacked", "fused"):
        with pytest.raises(ConfigError, match="in a way of its own"):
            choose(name, control, TASK, PART)  # type: ignore[arg-type]


def test_what_was_asked_for_is_given_or_refused_with_the_reason() -> None:
    for name in ("sequential", "stacked", "fused"):
        assert choose(name, TINY.runtime(), ONE_STEP, PART).engine.name == name  # type: ignore[arg-type]
    assert choose("fused", TINY.runtime(), TASK, PART).engine.name == "fused", "of several steps, too"
    with pytest.raises(ConfigError, match="engine fused cannot run task engines: method scaffold needs each client's"):
        choose("fused", TINY.runtime(), replace(TASK, method="scaffold"), PART)
    with pytest.raises(ConfigError, match="trains nothing"):
        choose("stacked", TINY.runtime(), replace(TASK, method="federated_evaluation"), PART)
    with pytest.raises(ConfigError, match="needs workers"):
        choose("cluster", TINY.runtime(), TASK, PART)


def test_a_cluster_takes_no_control_either() -> None:
    worker = InWorker(TINY.spec, TINY.layout, TASK, PART)
    made = opened("cluster", PublicOnly(TINY.runtime()), TASK, PART, worker)
    with pytest.raises(ConfigError, match="cluster cannot"), made:
        pass


def test_a_worker_makes_the_best_engine_for_its_device() -> None:
    part = WHOLE.layout.part(("embedding.*",))
    assert InWorker(WHOLE.spec, WHOLE.layout, TASK, part)("cpu").engine.name == "stacked"


def test_half_precision_is_for_gpus() -> None:
    with pytest.raises(ConfigError, match="precision bfloat16 is for GPUs"):
        TorchRuntime(WHOLE.spec, WHOLE.layout, precision="bfloat16")


def test_an_experiment_says_which_engine_and_why_and_all_give_the_same(tmp_path: Path) -> None:
    """On shipped faces, one step a client: stacked of itself, and each of the others as asked for."""
    spec = RunSpec(
        "engines",
        (FacesSource("shipped"),),
        partition=PartitionSpec(scheme="one_identity", clients=3, test=4),
        task=TaskSpec(
            "engines",
            method="fedavg",
            rounds=1,
            cohort=CohortSpec(3, 3),
            local=LocalSpec(lr=1.0, flip=False),
            privacy=PrivacySpec(min_cohort=3),
            options={"margin": 1.0},  # some loss is always left
        ),
    )
    models = []
    for name in ("auto", "sequential", "fused"):
        said: list[str] = []
        result = run_experiment(with_changes(spec, engine=name), tmp_path / name, tmp_path, tell=said.append)
        chosen = "stacked" if name == "auto" else name
        assert result["run"]["engine"]["name"] == chosen
        assert f"engine {chosen}: {result['run']['engine']['reason']}" in said
        assert sum("round 1/1: 3 clients, loss" in line for line in said) == 1
        models.append(read_model(tmp_path / name / "model").theta)
    for theta in models:
        np.testing.assert_allclose(theta, models[0], atol=1e-5)
        assert np.abs(theta - model_of(spec.model, tmp_path).theta).max() > 1e-3
    with pytest.raises(ConfigError, match="engine"):
        with_changes(spec, engine="quick")
