"""A model on a folder name/*.jpg: every two images compared, with the record of it, and the enrolment sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from device_sdk.faces import ChoiceRule, FacePipeline
from device_sdk.faces.crops import MASTER, fit_crops
from device_sdk.people.enroll import DEFAULT_MIN_IMAGES
from device_sdk.runtimes import load_runtime
from device_sdk.runtimes.manifest import GraphFolder
from mien.errors import ConfigError, UndefinedMetricError
from mien.evaluation import (
    Comparisons,
    DetCurve,
    NotMeasurable,
    all_pairs,
    det_curve,
    differential,
    equal_error_rate,
    tar_at_fmrs,
)
from mien.evaluation.enrolment import enrolment_sweep
from mien.evaluation.fairness import GroupErrors, Grouping, Rate
from mien.evaluation.gates import MIN_EXPECTED_ERRORS, is_measurable, monitors
from mien.evaluation.records import Provenance
from mien.evaluation.scores import all_pairs_among
from mien.evaluation.tail import enrolled_against_strangers, tail_of
from mien.methods.base import Runtime
from mien.rounds.thresholds import PHONES_MAX_FMR, why_left_out
from mien.shell import provenance
from simulation.faces.datasets import LabelledCrops, People, digest, find_people, read_people
from simulation.faces.groups import Groups, folders_of_groups, read_groups
from simulation.faces.models import Model, read_model, sface

NAME: Final = "folder-all-pairs"
VERSION: Final = "1"
TARGETS: Final = (1e-1, 1e-2, 1e-3, 1e-4)
ENROLLED: Final = 5
"""Pictures of a person that a template is made of at most where thresholds for galleries are measured."""


def evaluate_folder(
    model: Model,
    folder: Path,
    *,
    aligned: bool = False,
    graphs: Path | None = None,
    groups: Path | None = None,
    worst_group: bool = False,
) -> dict[str, Any]:
    """Return EER and operating points over all pairs of a folder name/*.jpg, failures to enrol counted.

    With a folder of the model's graphs ONNX Runtime embeds, else torch where it is installed. `groups` is a CSV, or
    `folder` itself where that is of folders group/person: then errors are also told within and between groups.
    With `worst_group` the operating points are those of the group with the most false matches.
    """
    if worst_group and groups is None:
        raise ConfigError("--worst-group needs --groups: say who is in which group")
    people, grouped = _grouped(folder, groups)
    faces = read_people(people, FacePipeline(model.spec.input, None, ChoiceRule.CENTRE, aligned=aligned))
    embeddings = _runtime(model, graphs).embed(model.theta, faces.crops)
    comparisons = all_pairs(embeddings, faces.labels)
    dataset = folder.resolve().name
    record = folder_record(model, faces, embeddings, comparisons, dataset=dataset, dataset_sha256=digest(people))
    if grouped is None:
        return record
    return {**record, **by_group(record, people, faces, embeddings, grouped, worst_group=worst_group)}


def _grouped(folder: Path, groups: Path | None) -> tuple[People, Groups | None]:
    """Return the people in a folder with their groups; folders of groups are read from one place only."""
    if groups is None:
        return find_people(folder), None
    if not groups.is_dir():
        people = find_people(folder)
        return people, read_groups(groups, people)
    if groups.resolve() != folder.resolve():
        raise ConfigError(f"the faces are in {folder} and the folders of groups in {groups}; give --groups alone")
    return folders_of_groups(groups)


def by_group(
    record: Mapping[str, Any],
    people: People,
    faces: LabelledCrops,
    embeddings: NDArray[np.float32],
    groups: Groups,
    *,
    worst_group: bool = False,
) -> dict[str, Any]:
    """Return what a record says of groups: errors at the threshold for `PHONES_MAX_FMR`, or the rarest rate measured.

    With `worst_group` also operating points of their own, and thresholds for galleries: those of the worst group alone.
    Raises UndefinedMetricError where no operating point was measured, ConfigError where no group can give one.
    """
    number = {name: index for index, name in enumerate(people)}
    numbered = {
        attribute: {group: [number[name] for name in names] for group, names in members.items()}
        for attribute, members in groups.members.items()
    }
    changed, worst = dict[str, Any](), None
    if worst_group:
        worst, changed = _worst(record, embeddings, faces.labels, numbered)
    point = _decisive({**record, **changed}["points"])
    with_face = np.bincount(faces.labels, minlength=len(people))
    found = differential(
        embeddings,
        faces.labels,
        numbered,
        threshold=point["threshold"],
        target_fmr=point["target_fmr"],
        num_failed=np.array([len(files) for files in people.values()]) - with_face,
    )
    told = {
        "target_fmr": found.target_fmr,
        "threshold": found.threshold,
        "by_worst_group": worst_group,
        "worst_group": worst,
        "groups_sha256": groups.sha256,
        "not_stated": groups.not_stated(people),
        "rates": [_group_plain(each) for each in found.groups],
        "between": [
            {"attribute": each.attribute, "first": each.first, "second": each.second, "fmr": _rate_plain(each.fmr)}
            for each in found.between
        ],
        "warnings": [*(_too_rare(point) if worst_group else ()), *found.warnings()],
    }
    return {**changed, "groups": told}


def _decisive(points: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the operating point with which phones decide, or that of the rarest rate above it that was measured.

    Where too few were compared to measure any it is that of the most frequent rate: then groups are too small, too.
    """
    found = [each for each in points if "threshold" in each and each["target_fmr"] >= PHONES_MAX_FMR]
    if not found:
        raise UndefinedMetricError("so few comparisons have no false match rate, and no group has one: add people")
    measured = sorted((each for each in found if not why_left_out(each)), key=lambda each: float(each["target_fmr"]))
    return measured[0] if measured else found[0]


def _worst(
    record: Mapping[str, Any],
    embeddings: NDArray[np.float32],
    labels: NDArray[np.int64],
    groups: Grouping,
) -> tuple[dict[str, str] | None, dict[str, Any]]:
    """Return the group whose threshold decides, None where that of all people is higher, and points by groups.

    At each rate the point is that of the group with the highest threshold among those with enough comparisons, or the
    whole set's where that is higher.
    """
    points: list[dict[str, Any]] = [dict(each) for each in record["points"]]
    rows: dict[tuple[str, str], NDArray[np.bool_]] = {}
    for attribute, members in groups.items():
        for group, people in members.items():
            chosen = np.isin(labels, people)
            own = _points_within(embeddings, labels, chosen)
            measured = [index for index, point in enumerate(own) if not why_left_out(point)]
            if any(own[index]["target_fmr"] >= PHONES_MAX_FMR for index in measured):
                rows[attribute, group] = chosen
            for index in measured:
                if own[index]["threshold"] > points[index].get("threshold", -1.0):
                    points[index] = {**own[index], "group": {"attribute": attribute, "group": group}}
    decisive = _decisive(points)
    if not any(is_measurable(decisive["target_fmr"], _num_strangers(labels[chosen])) for chosen in rows.values()):
        needed = MIN_EXPECTED_ERRORS / decisive["target_fmr"]
        raise UndefinedMetricError(
            f"no group has the {needed:.0f} non-mated comparisons that measure FMR {decisive['target_fmr']:g}; "
            "add people to the groups, or leave --worst-group out"
        )
    worst = decisive.get("group")
    if worst is None:
        return None, {"points": points}
    chosen = rows[worst["attribute"], worst["group"]]
    return worst, {"points": points, "search": searched(embeddings[chosen], labels[chosen])}


def _too_rare(point: Mapping[str, Any]) -> list[str]:
    """Return a sentence where a worst group's threshold is of a rate higher than that with which phones decide."""
    if point["target_fmr"] <= PHONES_MAX_FMR:
        return []
    needed = MIN_EXPECTED_ERRORS / PHONES_MAX_FMR
    return [
        f"no group has the {needed:,.0f} non-mated comparisons that FMR {PHONES_MAX_FMR:g}, with which phones decide, "
        f"needs: the worst group is known at FMR {point['target_fmr']:g} only; add people to the groups"
    ]


def _points_within(
    embeddings: NDArray[np.float32], labels: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Return the operating points of the chosen samples alone; none where they cannot be compared."""
    try:
        return operating_points(det_curve(all_pairs_among(embeddings, labels, chosen)))
    except UndefinedMetricError:
        return []


def _num_strangers(labels: NDArray[np.int64]) -> int:
    sizes = np.unique(labels, return_counts=True)[1].astype(np.int64)
    return int(sizes.sum() ** 2 - (sizes**2).sum()) // 2


def _group_plain(each: GroupErrors) -> dict[str, Any]:
    return {
        "attribute": each.attribute,
        "group": each.group,
        "people": each.num_people,
        "verdict": each.verdict,
        "reason": each.reason,
        "fmr": None if each.fmr is None else _rate_plain(each.fmr),
        "fnmr": None if each.fnmr is None else _rate_plain(each.fnmr),
        "fte": _rate_plain(each.fte),
    }


def _rate_plain(rate: Rate) -> dict[str, Any]:
    interval = None if rate.interval is None else dataclasses.asdict(rate.interval)
    return {"rate": rate.value, "errors": rate.num_errors, "of": rate.num_trials, "interval": interval}


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
