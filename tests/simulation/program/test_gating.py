"""What the child process finds for a candidate: the same model passes, a spoilt one fails, a small set is no fault."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from device_sdk.models.packaged import sface_path
from mien.backbones.importers import import_model
from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation import Evidence, judge
from mien.records import from_mapping, to_mapping
from mien.specs import GateSpec
from simulation.faces.models import Model, write_model
from simulation.program import worker
from simulation.program.gating import EvaluationSet, gather
from tests.simulation.program.test_worker import people_in
from tests.simulation.untrained import untrained_model

GATES = GateSpec(fmr=0.1, tolerance="larger", max_change=10.0)


@pytest.fixture(scope="module")
def sface() -> Model:
    imported = import_model(sface_path().read_bytes(), "sface.onnx")
    return Model(imported.spec, imported.layout, imported.theta)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> EvaluationSet:
    folder = people_in(tmp_path_factory.mktemp("people"), 10, 3)
    return EvaluationSet("rendered", folder, aligned=False)


def spoilt(model: Model, noise: float) -> Model:
    """Return a model whose last block has forgotten a part of what it knew."""
    rng = np.random.default_rng(0)
    tensors = dict(model.layout.unflatten(model.theta))
    for name in (name for name in tensors if name.startswith("block13")):
        spread = float(np.std(tensors[name])) or 1.0
        shape = tensors[name].shape
        tensors[name] = (tensors[name] + noise * spread * rng.standard_normal(shape)).astype(np.float32)
    return replace(model, theta=model.layout.flatten(tensors))


def test_the_released_model_itself_passes(sface: Model, people: EvaluationSet) -> None:
    evidence, (record,) = gather(GATES, sface, sface, [people])
    assert evidence.change == 0.0
    (found,) = evidence.sets
    assert (found.candidate_tar, found.candidate, found.chance) == (found.reference_tar, found.reference, 0.0)
    assert judge(GATES, evidence) == ()
    assert (record["dataset"], record["identities"], record["model_id"]) == ("rendered", 10, sface.model_id)
    assert len(record["dataset_sha256"]) == 64
    assert record["monitors"]["effective_rank"] == found.reference.effective_rank > 5


def test_a_spoilt_model_fails_and_says_where(sface: Model, people: EvaluationSet) -> None:
    evidence, records = gather(GATES, sface, spoilt(sface, 3.0), [people])
    assert evidence.change > 0.01
    reasons = judge(GATES, evidence)
    assert any("on rendered, its TAR at FMR 0.1" in reason for reason in reasons)
    assert len(records) == 1


def test_collapse_is_the_candidates_fault(sface: Model, people: EvaluationSet) -> None:
    tensors = {name: np.zeros_like(values) for name, values in sface.layout.unflatten(sface.theta).items()}
    dead = replace(sface, theta=sface.layout.flatten(tensors))
    evidence, records = gather(GATES, sface, dead, [people])
    assert records == []
    (reason,) = judge(GATES, evidence)
    assert reason.startswith("on rendered, ")


def test_a_small_set_and_another_architecture_are_not(sface: Model, people: EvaluationSet) -> None:
    with pytest.raises(UndefinedMetricError, match=r"raise gates\.fmr or add people"):
        gather(GateSpec(), sface, sface, [people])
    with pytest.raises(ConfigError, match="different architectures"):
        gather(GATES, sface, untrained_model(), [people])


def test_the_command_prints_evidence_and_refuses_what_is_no_set(
    sface: Model, people: EvaluationSet, tmp_path: Path
) -> None:
    write_model(sface, tmp_path / "before")
    write_model(sface, tmp_path / "after")
    (tmp_path / "gates.json").write_text(json.dumps(to_mapping(GATES)))
    arguments = ["check", "--reference", str(tmp_path / "before"), "--candidate", str(tmp_path / "after")]
    arguments += ["--gates", str(tmp_path / "gates.json"), "--set"]
    done = CliRunner().invoke(worker.app, [*arguments, f"{people.name}={people.folder}"])
    assert done.exit_code == 0
    printed = json.loads(done.stdout)
    assert judge(GATES, from_mapping(Evidence, printed["evidence"])) == ()
    assert len(printed["records"]) == 1
    refused = CliRunner().invoke(worker.app, [*arguments, "rendered"])
    assert isinstance(refused.exception, ConfigError)

    bad = sface.theta.copy()
    bad[0] = np.nan
    (tmp_path / "after" / "theta.f32").write_bytes(bad.astype("<f4").tobytes())
    done = CliRunner().invoke(worker.app, [*arguments, f"{people.name}={people.folder}"])
    assert json.loads(done.stdout)["evidence"]["is_finite"] is False
