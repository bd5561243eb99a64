"""PFM and FV on a laptop: local steps, momentum and validation between silos, on pretrained SFace and synthetic faces.

Source: Bai, Wu, Shen, Li, Zhou: Federated Face Recognition (2021), Figures 4 to 6 and Table 1. The paper's parties are
MS1M, Asian-DeepGlint and VGGFace2, on which it trains IR-18 and IR-34 from scratch for 332,800 steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.errors import EmptyFolderError
from mien.layout import Vector
from mien.methods.base import ServerState, ValidationFaces
from mien.methods.pfm_fv import HISTORY, weight_of
from mien.specs import LocalSpec, TaskSpec, from_mapping
from simulation.centralised.systems import Faces, Head, Trainer
from simulation.engines.engine import RoundRecord, run_task
from simulation.faces.datasets import dataset_of
from simulation.faces.workbench import Workbench
from simulation.papers.light import open_light_workbench
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
DOMAINS: Final = ("african", "asian", "caucasian")
"""The synthetic set's domains, which stand for the paper's three data sets: one party each, or four."""

BETA: Final = 0.9
"""Momentum of pooled training, as of the parties'."""

MAX_MATED: Final = 400
"""Mated pairs of a validator, with as many others."""

DROPS: Final = (10 / 26, 18 / 26, 24 / 26)
"""After these shares of the steps the rate falls to a tenth: epochs 10, 18 and 24 of 26."""


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return verification on the test people of one run, and the training loss at its end."""
    settings = job.settings
    bench = open_light_workbench(job.faces, settings["max_people"])
    groups = _split(bench, settings, job.seed)
    judges = "validation" if settings["tuning"] else "test"
    test = sorted(name for group in groups.values() for name in group[judges])
    if settings["system"] == "pretrained":
        return bench.verification(bench.theta, test)
    people = {domain: group["people"] for domain, group in groups.items()}
    if settings["system"] == "pooled":
        theta, loss = _pooled(bench, people, settings, job.seed)
        return {**bench.verification(theta, test), "loss_last": loss}
    task = from_mapping(TaskSpec, {**settings["task"], "seed": job.seed})
    cohort = bench.cohort(_parties(people, settings.get("parts", 1)))
    if task.options["validation"] != "off":
        validators = {
            domain: _validation_faces(bench, group["validators"], job.seed) for domain, group in groups.items()
        }
        cohort = replace(cohort, validators=validators)
    images = {client: len(crops) for client, crops in cohort.crops.items()}
    weights: list[tuple[int, dict[str, float]]] = []

    def note(state: ServerState, record: RoundRecord) -> None:
        if HISTORY in state.arrays:
            weights.append((record.round, _shares(state, images)))

    run = run_task(task, bench.part, bench.dim, bench.theta, cohort, bench.runtime, after_round=note)
    return {
        **bench.verification(run.state.theta, test),
        **({"weights": weights} if weights else {}),
        "loss_first": run.records[0].loss_before,
        "loss_last": run.records[-1].loss_after,
    }


def _shares(state: ServerState, images: Mapping[str, int]) -> dict[str, float]:
    """Return each party's share of the weighting that the next round begins with (Figure 6)."""
    each = {client: weight_of(state, client, float(num)) for client, num in images.items()}
    total = sum(each.values())
    return {client: round(weight / total, 6) for client, weight in each.items()}


def _split(bench: Workbench, settings: Mapping[str, Any], seed: int) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return each domain's people for training, validators, tuning and tests, drawn by `seed`."""
    sizes = {name: settings[name] for name in ("people", "validators", "validation")}
    sizes["test"] = settings["test"] // len(DOMAINS)
    groups: dict[str, dict[str, tuple[str, ...]]] = {}
    for number, domain in enumerate(DOMAINS):
        members = [name for name in bench.people if name.startswith(f"{domain}_")]
        if len(members) < sum(sizes.values()):
            raise EmptyFolderError(
                f"the folder holds {len(members)} people named {domain}_..., this experiment needs "
                f"{sum(sizes.values())}; name a larger one with --faces, or use --quick"
            )
        order = [members[i] for i in np.random.default_rng([seed, 7, number]).permutation(len(members))]
        position, groups[domain] = 0, {}
        for name, size in sizes.items():
            groups[domain][name] = tuple(sorted(order[position : position + size]))
            position += size
    return groups


def _parties(people: Mapping[str, Sequence[str]], parts: int) -> dict[str, tuple[str, ...]]:
    """Return each domain's people divided evenly among `parts` parties."""
    return {f"{domain}-{i}": tuple(held[i::parts]) for domain, held in people.items() for i in range(parts)}


def _validation_faces(bench: Workbench, names: Sequence[str], seed: int) -> ValidationFaces:
    """Return a validator's pairs, as many mated as non-mated ones, in ten folds as the paper's benchmarks have."""
    crops, labels = bench.labelled(names)
    rng = np.random.default_rng([seed, 8])
    first, second = np.triu_indices(len(labels), 1)
    is_mated = labels[first] == labels[second]
    num = min(MAX_MATED, int(is_mated.sum()))
    chosen = np.concatenate([rng.permutation(np.flatnonzero(is_mated == kind))[:num] for kind in (True, False)])
    pairs = np.stack([first[chosen], second[chosen]], axis=1).astype(np.int64)
    folds = np.tile(np.arange(num) % 10, 2).astype(np.int64)
    return ValidationFaces(crops, pairs, is_mated[chosen], folds)


def _pooled(
    bench: Workbench, people: Mapping[str, Sequence[str]], settings: Mapping[str, Any], seed: int
) -> tuple[Vector, float]:
    """Return momentum SGD on everybody's images in one place: as many steps, the parties' batches together.

    The backbone's momentum starts anew when the rate falls.
    """
    faces = Faces(*bench.labelled([name for held in people.values() for name in held]))
    head, batch = Head("arcface", **settings["head"]), len(DOMAINS) * settings["batch"]
    theta, kept, loss = bench.theta, dict[str, Vector](), math.nan
    for stage, steps in enumerate(_stages(settings["steps"])):
        local = LocalSpec(lr=settings["lr"] * 0.1**stage, steps=steps, batch_size=batch, momentum=BETA, flip=False)
        trained = Trainer(bench.runtime, bench.part, head, local, seed + stage).trained(theta, faces, kept)
        theta, kept, loss = trained.theta, dict(trained.private), trained.loss_after
    return theta, loss


def _drops(rounds: int) -> list[int]:
    """Return the rounds after which the rate falls to a tenth."""
    return sorted({max(1, round(share * rounds)) for share in DROPS})


def _stages(steps: int) -> list[int]:
    """Return the numbers of steps at each rate."""
    stops = [0, *_drops(steps), steps]
    return [b - a for a, b in itertools.pairwise(stops) if b > a]
