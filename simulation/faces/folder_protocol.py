"""A model on a folder name/*.jpg: every two images compared, with the record of it, and the enrolment sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.faces.crops import MASTER, fit_crops
from device_sdk.people.enroll import DEFAULT_MIN_IMAGES
from device_sdk.runtimes import load_runtime
from device_sdk.runtimes.manifest import GraphFolder
from mien.errors import UndefinedMetricError
from mien.evaluation import Comparisons, DetCurve, NotMeasurable, all_pairs, det_curve, equal_error_rate, tar_at_fmrs
from mien.evaluation.enrolment import enrolment_sweep
from mien.evaluation.gates import monitors
from mien.evaluation.records import Provenance
from mien.evaluation.tail import enrolled_against_strangers, tail_of
from mien.methods.base import Runtime
from mien.shell import provenance
from simulation.faces.datasets import LabelledCrops, digest, find_people, read_people
from simulation.faces.models import Model, read_model, sface

NAME: Final = "folder-all-pairs"
VERSION: Final = "1"
TARGETS: Final = (1e-1, 1e-2, 1e-3, 1e-4)
ENROLLED: Final = 5
"""Pictures of a person that a template is made of at most where thresholds for galleries are measured."""


def evaluate_folder(model: Model, folder: Path, *, aligned: bool = False, graphs: Path | None = None) -> dict[str, Any]:
    """Return EER and operating points over all pairs of a folder name/*.jpg, failures to enrol counted.

    With a folder of the model's graphs ONNX Runtime embeds, else torch where it is installed.
    """
    people = find_people(folder)
    faces = read_people(people, FacePipeline(model.spec.input, None, ChoiceRule.CENTRE, aligned=aligned))
    embeddings = _runtime(model, graphs).embed(model.theta, faces.crops)
    comparisons = all_pairs(embeddings, faces.labels)
    dataset = folder.resolve().name
    return folder_record(model, faces, embeddings, comparisons, dataset=dataset, dataset_sha256=digest(people))


def _runtime(model: Model, graphs: Path | None) -> Runtime:
    if graphs is None:
        return load_runtime(model.spec, model.layout)
    from device_sdk.runtimes.onnx_runtime import OnnxRuntime

    return OnnxRuntime(model.spec, model.layout, GraphFolder.at(graphs, model.spec, model.layout))


def folder_record(
    model: Model,
    faces: LabelledCrops,
    embeddings: NDArray[np.float32],
    comparisons: Comparisons,
    *,
    dataset: str,
    dataset_sha256: str,
) -> dict[str, Any]:
    """Return the record of a model's comparisons: counts, EER, operating points, monitors, and where they are from."""
    curve = det_curve(comparisons)
    return {
        **origin((NAME, VERSION), dataset, dataset_sha256, model),
        "identities": len(faces.names),
        "images": len(faces.labels) + len(faces.failures),
        "fte": len(faces.failures),
        "mated": comparisons.num_mated,
        "non_mated": comparisons.num_non_mated,
        "eer": equal_error_rate(curve).value,
        "points": operating_points(curve),
        "search": searched(embeddings, faces.labels),
        "monitors": dataclasses.asdict(monitors(embeddings, comparisons)),
    }


def searched(embeddings: NDArray[np.float32], labels: NDArray[np.int64]) -> dict[str, Any]:
    """Return the thresholds at which people enrolled as on a phone keep strangers out, or why there are none.

    It takes people with more pictures than an enrolment; what the thresholds are for is in `mien.evaluation.tail`.
    """
    try:
        scores, enrolled = enrolled_against_strangers(embeddings, labels, at_least=DEFAULT_MIN_IMAGES, at_most=ENROLLED)
        tail = tail_of(scores)
    except UndefinedMetricError as error:
        return {"not_measurable": error.message}
    return {"enrolled": enrolled, "images": [DEFAULT_MIN_IMAGES, ENROLLED], **dataclasses.asdict(tail)}


def operating_points(curve: DetCurve) -> list[dict[str, Any]]:
    """Return the operating point at each of `TARGETS`, or why the scores cannot give it."""
    return [
        {"target_fmr": point.target_fmr, "not_measurable": point.reason}
        if isinstance(point, NotMeasurable)
        else {**dataclasses.asdict(point), "fmr": point.fmr, "fnmr": point.fnmr}
        for point in tar_at_fmrs(curve, TARGETS)
    ]


def origin(protocol: tuple[str, str], dataset: str, dataset_sha256: str, model: Model) -> dict[str, Any]:
    """Return what every record says of where its figures come from. No protocol here draws anything: its seed is 0."""
    name, version = protocol
    command = provenance.command("python", "-m", "simulation.program.worker")
    found = Provenance(dataset, dataset_sha256, model.model_id, provenance.commit(), command)
    return {"protocol": name, "protocol_version": version, **dataclasses.asdict(found)}


def enrolment(
    folder: Path, model: Path | None, counts: Sequence[int], *, aligned: bool, target_fmr: float, seed: int
) -> dict[str, Any]:
    """Return error rates over the number of enrolled pictures, on the people in `folder`/name/*.jpg who have enough.

    `model` is a folder that `mien-coordinator model export` wrote; None is the pretrained SFace.
    """
    from device_sdk.runtimes.torch_runtime import TorchRuntime

    people = find_people(folder, min_images=max(counts) + 1)
    faces = read_people(people, FacePipeline(MASTER, None, ChoiceRule.CENTRE, aligned=aligned))
    recogniser = sface() if model is None else read_model(model)
    runtime = TorchRuntime(recogniser.spec, recogniser.layout)
    embeddings = runtime.embed(recogniser.theta, fit_crops(faces.crops, recogniser.spec.input))
    points = enrolment_sweep(embeddings, faces.labels, counts, target_fmr=target_fmr, seed=seed)
    return {
        "model": recogniser.spec.backbone,
        "dataset_sha256": digest(people),
        "failed_to_acquire": len(faces.failures),
        "target_fmr": target_fmr,
        "seed": seed,
        "points": [{**dataclasses.asdict(point), "fnmr": point.at_fmr.fnmr} for point in points],
    }
