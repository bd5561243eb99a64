"""Hard conditions on real faces: masks, 14 pixels, darkness, near infrared, close-ups; what each method learns of them.

Every second picture of everybody is in the condition (`simulation/faces/conditions.py`), on phones of one person and
of the test people; public people's are clean. SFace is frozen, and methods make the adapter behind it, for which
features are enough. LFW (research, non-commercial use) has no pictures of people years apart: ageing is not measured.

    mien-sim reproduce conditions --faces lfw/images

A row is a method: another one is a row of `tables.toml` more. What trains is trained at each of its `rates`, and counts
with the one under which validation people, who are in nothing else, have the lowest EER in that condition and draw.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from mien.layout import Vector
from mien.methods.base import Runtime
from mien.specs import LocalSpec, TaskSpec, from_mapping
from simulation.engines.choice import choose
from simulation.engines.engine import run_task
from simulation.engines.runtimes import OncePerRound
from simulation.faces.conditions import CONDITIONS, every_second, in_condition
from simulation.faces.datasets import dataset_of
from simulation.faces.workbench import Workbench, open_workbench
from simulation.papers.light import behind_features
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
CLEAN: Final = "clean"
GROUPS: Final = ("phones", "public", "validation", "test")
"""Settings that say how many people are of which kind; nobody is of two."""


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return test people's verification in each condition, and that of their clean pictures under the same model."""
    settings = job.settings
    whole, features = open_features(job.faces, settings["max_people"], settings["max_images"])
    phones, public, validation, test = whole.split(job.seed, *(settings[name] for name in GROUPS))
    clean = behind_features(whole, features[CLEAN])
    known_N = np.isin(whole.labels, [whole.people.index(name) for name in public])
    found = dict[str, float]()
    for condition in CONDITIONS:
        bench = behind_features(whole, np.where(known_N[:, None], features[CLEAN], features[condition]))
        held = public if settings.get("held") == "public" else phones  # the control: public people, and no phone
        runtime = OncePerRound(bench.runtime)
        train = functools.partial(trained, bench, held, settings, job.seed, public=public, runtime=runtime)
        if rates := settings.get("rates"):
            found[f"{condition}_rate"], theta = best_of(rates, train, bench, validation)
        else:
            theta = train()
        for word, seen in ((condition, bench), (f"{condition}_{CLEAN}", clean)):
            rates = seen.verification(theta, test)
            found |= {f"{word}_{name}": rates[name] for name in ("eer", "tar_1e-2", "tar_1e-3") if name in rates}
    return found


def best_of(
    rates: Sequence[float], train: Callable[[float], Vector], bench: Workbench, validation: tuple[str, ...]
) -> tuple[float, Vector]:
    """Return the rate under whose model validation people have the lowest EER, and that model; each is trained once."""
    tried = {rate: train(rate) for rate in rates}
    missed = {rate: bench.verification(theta, validation)["eer"] for rate, theta in tried.items()}
    best = min(rates, key=missed.__getitem__)
    return best, tried[best]


def trained(
    bench: Workbench,
    people: tuple[str, ...],
    settings: Mapping[str, Any],
    seed: int,
    rate: float | None = None,
    *,
    public: tuple[str, ...] = (),
    runtime: Runtime | None = None,
) -> Vector:
    """Return the model that a row's system makes of these people, one a phone, by the bench's runtime or another.

    `rate` is the learning rate of what trains, `public` are people whose faces everybody has.
    """
    if settings["system"] == "pretrained":
        return bench.theta
    if settings["system"] == "pooled":
        local = from_mapping(LocalSpec, {**settings["local"], "lr": rate, "flip": False})
        return bench.trained_centrally(people, "cosface", local, seed, **settings["cosface"]).theta
    task = from_mapping(TaskSpec, {**settings["task"], "seed": seed})
    if rate is not None:
        task = replace(task, local=replace(task.local, lr=rate))
    cohort = bench.cohort({name: (name,) for name in people}, public)
    engine = choose("auto", runtime or bench.runtime, task, bench.part).engine
    return run_task(task, bench.part, bench.dim, bench.theta, cohort, engine).state.theta


@functools.lru_cache(maxsize=1)
def open_features(
    faces: Path | None, max_people: int | None, max_images: int
) -> tuple[Workbench, Mapping[str, Vector]]:
    """Return the workbench, and everybody's features (N, D): clean, and with every second picture in each condition."""
    whole = open_workbench(faces, max_people, max_images)
    clean_ND = whole.runtime.features(whole.theta, whole.crops)
    odd = every_second(whole.labels)
    found = {CLEAN: clean_ND}
    for name in CONDITIONS:
        found[name] = clean_ND.copy()
        found[name][odd] = whole.runtime.features(whole.theta, in_condition(name, whole.crops[odd]))
    return whole, found
