"""A small network trained end to end, one identity a phone: what each method makes of a start that knows few people.

No recogniser of others' is in it. A network of 0.3 million parameters at 28 x 28 pixels begins at random, is trained in
one place on public people, and goes to phones of one person each, which train all of it. Statistics train nothing on a
phone: they make the linear map behind the network, which all other rows leave as it is.

    mien-sim reproduce scratch --faces synthetic112

A row is a method: another one is a row of `tables.toml` more. What trains counts with the one of its `rates` under
which validation people have the lowest EER in that draw, public people's training too.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulation.faces.datasets import dataset_of
from simulation.faces.workbench import TRAINABLE, Workbench, open_small_network
from simulation.papers.conditions import GROUPS, best_of, trained
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
_RATES: Final = ("eer", "tar_1e-2", "tar_1e-3", "cos_mated", "cos_non_mated")


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return test people's verification, and the rates that validation people chose."""
    settings = job.settings
    sizes = tuple(settings[name] for name in GROUPS)
    start, rate = started(job.faces, settings["max_people"], sizes, json.dumps(settings["start"]), job.seed)
    phones, public, validation, test = start.split(job.seed, *sizes)
    found, theta = {"start_rate": rate}, start.theta
    people = public if settings.get("held") == "public" else phones  # the control: public people, and no phone
    if (task := settings.get("task", {})).get("method") == "statistics":
        bench = replace(start, part=start.model.layout.part(TRAINABLE))
        options = {**task["options"], "longest": longest_of(start, public)}
        theta = trained(bench, people, {**settings, "task": {**task, "options": options}}, job.seed)
    elif rates := settings.get("rates"):
        found["rate"], theta = best_of(
            rates, lambda rate: trained(start, people, settings, job.seed, rate), start, validation
        )
    measured = start.verification(theta, test)
    return found | {name: measured[name] for name in _RATES if name in measured}


def longest_of(bench: Workbench, people: Sequence[str]) -> float:
    """Return a length that no person's features are beyond, by these people's pictures: nothing in training holds it.

    An operator knows the model, and pictures of public people; others' features may be longer.
    """
    crops = np.concatenate([bench.crops_of(name) for name in people])
    lengths_N = np.linalg.norm(bench.runtime.features(bench.theta, crops), axis=1)
    return 1.5 * float(np.quantile(lengths_N, 0.95))


@functools.lru_cache(maxsize=1)
def started(
    faces: Path | None, max_people: int | None, sizes: tuple[int, ...], settings: str, seed: int
) -> tuple[Workbench, float]:
    """Return the workbench whose model public people made of a random one, and the rate that did best.

    `sizes` are those of `GROUPS`; `settings`, JSON, has `rates` and what `trained` takes of a pooled row.
    """
    how = json.loads(settings)
    bench = open_small_network(faces, seed, max_people)
    _, public, validation, _ = bench.split(seed, *sizes)
    rate, theta = best_of(how["rates"], lambda rate: trained(bench, public, how, seed, rate), bench, validation)
    theta.flags.writeable = False
    return replace(bench, model=replace(bench.model, theta=theta)), rate
