"""A release in one command: what it lacks is said at once, and what it brings too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from coordinator.commands import models
from coordinator.commands.models.folder import said_of_bundle
from coordinator.commands.models.releases import _lacking, _population_of
from coordinator.commands.quickstart import QuickFleet, make_fleet
from coordinator.operator.client import Coordinator
from coordinator.release.signing import create_key
from mien.errors import ConfigError
from mien.evaluation.rollout_spec import RollOutSpec
from mien.models.bundles import BundleFile, manifest_of
from mien.protocol.canonical import model_to_json, task_to_json
from mien.protocol.v1 import models_pb2, operator_pb2
from mien.specs import TaskSpec
from simulation.testing import LAYOUT, SPEC

MODEL_ID = "ab" * 32


@pytest.fixture(name="fleet", scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> QuickFleet:
    fleet = QuickFleet(tmp_path_factory.mktemp("releases") / "fleet")
    make_fleet(fleet, 5, "127.0.0.1", 12340)
    return fleet


class _Standings:
    """A coordinator whose gates rejected the model."""

    async def standings(self) -> list[tuple[None, Any]]:
        return [(None, SimpleNamespace(model_id=MODEL_ID, state="rejected", reason="TAR fell by 0.2"))]


def lacks(fleet: QuickFleet, **given: bool) -> list[str]:
    told = {"is_signed": False, "is_measured": False, "despite_gates": False} | given
    model = models_pb2.ModelManifest(model_id=MODEL_ID, spec_json=model_to_json(SPEC, LAYOUT))
    coordinator = cast("Coordinator", _Standings())
    return asyncio.run(_lacking(coordinator, model, fleet.coordinator.folder, then="", **told))


def test_all_that_is_missing_is_told_at_once(fleet: QuickFleet) -> None:
    threshold, signature, gates = lacks(fleet)
    assert "recognise nobody" in threshold
    assert "--without-thresholds" in threshold
    assert "--key" in signature
    assert "TAR fell by 0.2" in gates
    assert "--despite-gates" in gates


class _Made:
    """A coordinator of one model, which a task made or nobody did."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id

    async def standings(self) -> list[tuple[None, operator_pb2.ModelStatus]]:
        return [(None, operator_pb2.ModelStatus(model_id=MODEL_ID, task_id=self.task_id))]

    async def tasks(self) -> list[operator_pb2.TaskStatus]:
        tasks = {"t": TaskSpec("t", population="silos"), "u": TaskSpec("u", population="others")}
        return [operator_pb2.TaskStatus(task_id=id_, task_json=task_to_json(task)) for id_, task in tasks.items()]


@pytest.mark.parametrize(("made_by", "whose"), [("t", "silos"), ("", "named")])
def test_a_roll_out_asks_the_phones_of_the_task_that_made_its_model(made_by: str, whose: str) -> None:
    """As the coordinator does; whom the file names are asked where no task made it."""
    coordinator = cast("Coordinator", _Made(made_by))
    assert asyncio.run(_population_of(coordinator, MODEL_ID, RollOutSpec(population="named"))) == whose


def test_what_is_there_is_not_asked_for(fleet: QuickFleet) -> None:
    assert lacks(fleet, is_signed=True, is_measured=True, despite_gates=True) == []
    (signature,) = lacks(fleet, is_measured=True, despite_gates=True)
    assert "--key" in signature


def test_another_key_than_the_phones_pin_is_refused_before_anything_is_asked(fleet: QuickFleet, tmp_path: Path) -> None:
    create_key(tmp_path / "other.key")
    home = ("--home", str(fleet.coordinator.folder))
    done = CliRunner().invoke(models.app, ["release", MODEL_ID, "--key", str(tmp_path / "other.key"), *home])
    assert isinstance(done.exception, ConfigError)
    assert "phones would refuse" in str(done.exception)


@pytest.mark.parametrize("options", [("--key", "a", "--bundle", "b"), ("--data", "faces"), ("--aligned",)])
def test_options_that_contradict_each_other(fleet: QuickFleet, options: tuple[str, ...]) -> None:
    home = ("--home", str(fleet.coordinator.folder))
    done = CliRunner().invoke(models.app, ["release", MODEL_ID, *options, *home])
    assert isinstance(done.exception, ConfigError)
    assert "--key" in str(done.exception)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("theta.f32",), "no graphs."),
        (("theta.f32", "embed.onnx", "graphs.json"), "1 graphs that embed, none that trains."),
        (
            ("theta.f32", "embed.onnx", "graphs.json", "int8.variant", "train_positive.pte", "variants.json"),
            "1 graphs that embed, 1 that train, the int8 variant.",
        ),
    ],
)
def test_what_a_release_brings(names: tuple[str, ...], said: str) -> None:
    files = [BundleFile(name, "ab" * 32, 4 * LAYOUT.size if name == "theta.f32" else 7) for name in names]
    manifest = manifest_of(model_to_json(SPEC, LAYOUT), MODEL_ID, files, sequence=5, fallbacks=(), min_sdk="0.1.0")
    assert said_of_bundle(manifest.to_json()).endswith(f"release 5: {said}")
