"""One run of the spread-out study: train, then measure verification on people apart, and separation of embeddings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from mien.contribution import Arrays
from mien.errors import UndefinedMetricError
from mien.evaluation import (
    Comparisons,
    DetCurve,
    all_pairs,
    bootstrap_by_identity,
    equal_error_rate,
)
from mien.layout import Vector
from mien.methods import fedface, fedgc, find_method
from mien.methods.base import Runtime
from mien.methods.spreadout import Matrix, normalise
from mien.specs import TaskSpec, from_mapping
from simulation.engines.engine import Cohort, PublicFaces, Run, run_task
from simulation.engines.runtimes import OncePerRound, PublicOnly
from simulation.faces.workbench import Workbench, error_rates, mean_cosines, open_workbench
from simulation.papers.spreadout.populations import Division, divide
from simulation.runs.experiment import Job

MAX_IMAGES: Final = 10
MAX_PUBLIC_IMAGES: Final = 5
MAX_TEST_IMAGES: Final = 4
TOO_NEAR: Final = 0.3
FMR: Final = 1e-3
REPLICATES: Final = 100


def measure(job: Job) -> Mapping[str, Any]:
    """Return a run's figures: `test_eer`, its interval over people and TAR, the same on other people, separation."""
    settings = job.settings
    bench = open_workbench(job.faces, settings["max_people"])
    division = divide(bench.people, settings, job.seed)
    if settings["system"] == "pretrained":
        return _tested(bench, bench.theta, division)
    task = from_mapping(TaskSpec, {**settings["task"], "seed": job.seed})
    if settings.get("held") == "public":  # a control: a cohort of public people, and no phone
        division = replace(division, phones=division.public)
    cohort = _cohort(bench, division, settings["ids_per_client"])
    runtime: Runtime = OncePerRound(bench.runtime)
    if settings["system"] == "control":
        runtime = PublicOnly(runtime)
    started = time.process_time()
    run = run_task(task, bench.part, bench.dim, bench.theta, cohort, runtime)
    trained = time.process_time() - started
    found = {**_tested(bench, run.state.theta, division), "train_cpu_s": trained}
    if not find_method(task.method).is_minimised:  # no phone has trained, and none holds a class embedding
        return found
    losses = {"loss_first": run.records[0].loss_before, "loss_last": run.records[-1].loss_after}
    return {**found, **separation(bench.runtime, run), **losses}


def _cohort(bench: Workbench, division: Division, ids_per_client: int) -> Cohort:
    """Return phones with `ids_per_client` people each, and the public people."""
    groups = [division.phones[i : i + ids_per_client] for i in range(0, len(division.phones), ids_per_client)]
    groups = [group for group in groups if len(group) == ids_per_client]
    public, public_labels = bench.labelled(division.public, MAX_PUBLIC_IMAGES)
    crops, labels = {}, {}
    for group in groups:
        crops[group[0]], labels[group[0]] = bench.labelled(group, MAX_IMAGES)
    return Cohort(crops, public=PublicFaces(public, public_labels), labels=labels if ids_per_client > 1 else {})


# What is measured.


def _tested(bench: Workbench, theta: Vector, division: Division) -> dict[str, float]:
    """Return verification on every set of test people, the figures' names beginning with the set's."""
    found = {}
    for name, people in division.tests.items():
        crops, labels = bench.labelled(people, MAX_TEST_IMAGES)
        comparisons = all_pairs(bench.runtime.embed(theta, crops), labels, keep_subjects=True)
        figures = verification(comparisons)
        found.update({f"{name}_{figure}": value for figure, value in figures.items()})
    return found


def verification(comparisons: Comparisons) -> dict[str, float]:
    """Return EER with its interval over people where there is one, TAR at FMR 1e-3, mean cosines and counts."""
    found = {**error_rates(comparisons, {"tar_1e-3": FMR}), **mean_cosines(comparisons)}
    with contextlib.suppress(UndefinedMetricError):
        interval = bootstrap_by_identity(comparisons, _eer, rng=np.random.default_rng(0), num_replicates=REPLICATES)
        found["eer_low"], found["eer_high"] = interval.low, interval.high
    return found


def _eer(curve: DetCurve) -> float:
    return equal_error_rate(curve).value


def separation(runtime: Runtime, run: Run) -> dict[str, float]:
    """Return how far the clients' class embeddings lie apart, and how near each is to its own person's features."""
    held = _class_embeddings(run)
    names = sorted(held)
    w_CD = np.concatenate([held[name] for name in names])
    cosines = (w_CD @ w_CD.T)[np.triu_indices(len(w_CD), 1)]
    means = np.concatenate([_mean_features(runtime, run, name, len(held[name])) for name in names])
    return {
        "sep_mean": float(cosines.mean()),
        "sep_max": float(cosines.max()),
        "sep_pairs": float((cosines > TOO_NEAR).sum()),
        "drift": float((w_CD * means).sum(axis=1).mean()),
    }


def _class_embeddings(run: Run) -> dict[str, Matrix]:
    """Return each client's class embeddings (L, D) at length 1: as the server has them, or as the client keeps them."""
    held: dict[str, Matrix] = {}
    for name, kept in run.cohort.private.items():
        arrays: Arrays = {**kept, **run.state.revealed.get(name, {})}
        w = arrays.get(fedface.W, arrays.get(fedgc.W))
        if w is not None:
            num_identities = int(run.cohort.labels[name].max()) + 1 if name in run.cohort.labels else 1
            held[name] = normalise(w.reshape(num_identities, -1))
    return held


def _mean_features(runtime: Runtime, run: Run, name: str, num_identities: int) -> Matrix:
    crops = run.cohort.crops[name]
    labels = run.cohort.labels.get(name, np.zeros(len(crops), np.int64))
    embeddings = runtime.embed(run.state.theta, crops)
    return normalise(np.stack([embeddings[labels == k].mean(axis=0) for k in range(num_identities)]))
