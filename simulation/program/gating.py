"""Evidence for gates: a candidate beside the model that it would replace, measured on folders of faces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.runtimes import load_runtime
from mien.errors import ConfigError, IntegrityError, UndefinedMetricError
from mien.evaluation import Comparisons, Evidence, Monitors, SetEvidence, all_pairs, det_curve
from mien.evaluation.gates import drop_by_chance, monitors, relative_change, tar_at
from mien.specs import GateSpec
from simulation.faces.datasets import LabelledCrops, digest, find_people, read_people
from simulation.faces.folder_protocol import folder_record
from simulation.faces.models import Model

_BOOTSTRAP_SEED = 0


@dataclass(frozen=True)
class EvaluationSet:
    """A folder name/*.jpg that an operator evaluates on; `aligned` if its images are crops already."""

    name: str
    folder: Path
    aligned: bool


@dataclass(frozen=True)
class _Measured:
    """One model on one set."""

    comparisons: Comparisons
    tar: float
    monitors: Monitors
    record: dict[str, Any] = field(repr=False)


def gather(
    gates: GateSpec, reference: Model, candidate: Model, sets: Sequence[EvaluationSet]
) -> tuple[Evidence, list[dict[str, Any]]]:
    """Return the evidence for and against a candidate, and the records of its own measurements.

    Raises ConfigError or UndefinedMetricError where a set cannot measure what the gates ask for: that is no fault of
    the candidate's.
    """
    if candidate.layout.sha256 != reference.layout.sha256:
        raise ConfigError("the two models are of different architectures; gates compare versions of one model")
    measured, records = [], []
    for chosen in sets:
        evidence, record = _on(gates, reference, candidate, chosen)
        measured.append(evidence)
        records += [record] if record is not None else []
    change = relative_change(reference.theta, candidate.theta)
    return Evidence(bool(np.isfinite(candidate.theta).all()), change, tuple(measured)), records


def _on(
    gates: GateSpec, reference: Model, candidate: Model, chosen: EvaluationSet
) -> tuple[SetEvidence, dict[str, Any] | None]:
    people = find_people(chosen.folder)
    pipeline = FacePipeline(reference.spec.input, None, ChoiceRule.CENTRE, aligned=chosen.aligned)
    faces = read_people(people, pipeline)
    dataset_sha256 = digest(people)
    before = _measure(gates, reference, faces, chosen, dataset_sha256)
    compared = before.comparisons
    found = SetEvidence(chosen.name, compared.num_mated, compared.num_non_mated, before.tar, before.monitors)
    try:
        after = _measure(gates, candidate, faces, chosen, dataset_sha256)
    except (IntegrityError, UndefinedMetricError) as error:  # the reference had figures on the very same faces
        return replace(found, problem=error.message), None
    chance = None
    if gates.tolerance != "delta":
        rng = np.random.default_rng(_BOOTSTRAP_SEED)
        chance = drop_by_chance(before.comparisons, after.comparisons, gates.fmr, rng=rng)
    return replace(found, candidate_tar=after.tar, candidate=after.monitors, chance=chance), after.record


def _measure(
    gates: GateSpec, model: Model, faces: LabelledCrops, chosen: EvaluationSet, dataset_sha256: str
) -> _Measured:
    embeddings = load_runtime(model.spec, model.layout).embed(model.theta, faces.crops)
    comparisons = all_pairs(embeddings, faces.labels, keep_subjects=gates.tolerance != "delta")
    found = monitors(embeddings, comparisons)
    record = folder_record(model, faces, embeddings, comparisons, dataset=chosen.name, dataset_sha256=dataset_sha256)
    return _Measured(comparisons, tar_at(det_curve(comparisons), gates.fmr), found, record)
