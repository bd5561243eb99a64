"""FedGC on a laptop: private classifiers and their correction, on pretrained SFace and synthetic faces.

Source: Niu, Deng: Federated Learning for Face Recognition with Gradient Correction (2022), Tables 1, 2 and the average
of seven test sets. The paper trains a ResNet-34 from scratch on CASIA-WebFace divided among 36 clients; here SFace is
frozen, and 36 clients of 17 people each train a linear adapter behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.layout import Vector
from mien.methods.proxies import CLASSES, normalised
from mien.specs import LocalSpec, TaskSpec, from_mapping
from simulation.engines.engine import Run, run_task
from simulation.engines.runtimes import OncePerRound
from simulation.faces.datasets import dataset_of
from simulation.faces.partitions import log_normal
from simulation.faces.workbench import Workbench, open_workbench
from simulation.runs.experiment import Experiment, Job
from simulation.runs.measuring import class_angles
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
SIGMA: Final = 1.0
"""Deviation of the log-normal numbers of identities of unbalanced clients."""


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return verification on the test people of one run."""
    bench = open_workbench(job.faces, job.settings["max_people"])
    made = train(bench, job)
    return {**bench.verification(made.theta, made.test), **made.figures}


@dataclass(frozen=True)
class Made:
    """What a row's system made of a model: it, class embeddings (K, D) where there are any, losses and angles.

    Class embeddings are there where every client has its own, in the order of `clients`, one client's people after
    another's.
    `clients` are the people of each, whom central training had in one place; `test` are people whom nobody trained on.
    """

    theta: Vector = field(repr=False)
    clients: Mapping[str, tuple[str, ...]] = field(repr=False)
    test: tuple[str, ...] = field(repr=False)
    classes: Vector | None = field(default=None, repr=False)
    figures: Mapping[str, Any] = field(default_factory=dict, repr=False)


def train(bench: Workbench, job: Job) -> Made:
    """Return what the row's system makes of the bench's model, on people drawn by the seed."""
    settings = job.settings
    people, public, test = bench.split(job.seed, *(settings[name] for name in ("people", "public", "test")))
    clients = _clients(people, settings["clients"], job.seed, unbalanced=settings.get("unbalanced", False))
    if settings["system"] == "pretrained":
        return Made(bench.theta, clients, test)
    if settings["system"] == "central":
        local = from_mapping(LocalSpec, {**settings["local"], "epochs": settings["rounds"]})
        head = {"scale": 1.0, "margin": 0.0, "start": settings["start"], **settings["head"]}
        central = bench.trained_centrally(people, head.pop("kind"), local, job.seed, **head)
        order = [people.index(name) for held in clients.values() for name in held]
        return Made(central.theta, clients, test, central.private[CLASSES][order])
    task_data = settings["task"]
    options = {**task_data["options"], "identities": max(len(held) for held in clients.values())}
    task = from_mapping(TaskSpec, {**task_data, "options": options, "seed": job.seed})
    cohort = bench.cohort(clients, public)
    if "class_length" in settings:
        cohort = replace(cohort, private=_drawn(clients, bench.dim, settings["class_length"], job.seed))
    run = run_task(task, bench.part, bench.dim, bench.theta, cohort, OncePerRound(bench.runtime))
    losses = {"loss_first": run.records[0].loss_before, "loss_last": run.records[-1].loss_after}
    # A client that no round has drawn has none yet.
    is_whole = run.cohort.private.keys() >= clients.keys()
    w_KD = np.concatenate([_classes(run, client, bench.dim) for client in clients]) if is_whole else None
    return Made(run.state.theta, clients, test, w_KD, {**losses, "angles": class_angles(run.state, run.cohort)})


def _drawn(clients: Mapping[str, Sequence[str]], dim: int, length: float, seed: int) -> dict[str, dict[str, Vector]]:
    """Return class embeddings (L, D) of this length in random directions, as if each client had kept them."""
    drawn = np.random.default_rng([seed, 6])
    return {
        client: {CLASSES: np.float32(length) * normalised(drawn.normal(size=(len(held), dim)))}
        for client, held in clients.items()
    }


def _classes(run: Run, client: str, dim: int) -> Vector:
    """Return a client's class embeddings (L, D), as they were last shown or kept."""
    arrays = {**run.cohort.private[client], **run.state.revealed.get(client, {})}
    rows_LD: Vector = arrays[CLASSES].reshape(-1, dim)
    return rows_LD[np.any(rows_LD != 0, axis=1)]  # rows beyond a client's identities are zero


def _clients(people: Sequence[str], num: int, seed: int, *, unbalanced: bool) -> Mapping[str, tuple[str, ...]]:
    """Return clients of equally many people, or of log-normal numbers of them and two at least."""
    if not unbalanced:
        return {f"client-{i:02d}": tuple(people[i::num]) for i in range(num)}
    order = [people[i] for i in np.random.default_rng([seed, 5]).permutation(len(people))]
    extra = log_normal(order[num:], num, SIGMA, seed)
    return {client: tuple(sorted((*held, order[i]))) for i, (client, held) in enumerate(extra.items())}
