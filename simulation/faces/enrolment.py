"""The enrolment sweep on a folder of faces: `mien-sim enrolment`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.faces.crops import MASTER, fit_crops
from device_sdk.runtimes.torch_runtime import TorchRuntime
from mien.evaluation.enrolment import enrolment_sweep
from simulation.faces.datasets import digest, find_people, read_people
from simulation.faces.models import read_model
from simulation.faces.pretrained import sface


def sweep(
    folder: Path, model: Path | None, counts: Sequence[int], *, aligned: bool, target_fmr: float, seed: int
) -> dict[str, Any]:
    """Return error rates over the number of enrolled pictures, on the people in `folder`/name/*.jpg who have enough.

    `model` is a folder that `mien-coordinator model export` wrote; None is the pretrained SFace.
    """
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
