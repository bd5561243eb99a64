"""Through the network's last block: what each method learns where phones train SFace itself and not a map behind it.

People and pictures are those of `simulation.papers.conditions`, of one condition: every second picture of everybody is
in it. Phones hold one person each and train 545,280 parameters of SFace's last two blocks, on what enters them. Nobody
trains on the people of `validation`, on whose pictures rates were chosen, nor on those of `test`.

    mien-sim reproduce block --faces lfw/images

A row is a method: another one is a row of `tables.toml` more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from mien.layout import Vector
from mien.specs import LocalSpec, TaskSpec, from_mapping
from simulation.engines.choice import choose
from simulation.engines.engine import run_task
from simulation.faces.conditions import every_second, in_condition
from simulation.faces.datasets import dataset_of
from simulation.faces.workbench import Workbench, open_network
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
_RATES: Final = ("eer", "tar_1e-2", "tar_1e-3")


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return test people's verification in the condition, that of their clean pictures, and validation people's."""
    settings = job.settings
    clean = open_network(job.faces, settings["max_people"], settings["max_images"])
    seen = in_half(clean, settings["condition"])
    phones, validation, test = clean.split(job.seed, *(settings[name] for name in ("phones", "validation", "test")))
    theta = trained(seen, phones, settings, job.seed)
    found = dict[str, float]()
    for prefix, bench, people in (("", seen, test), ("clean_", clean, test), ("val_", seen, validation)):
        rates = bench.verification(theta, people)
        found |= {prefix + name: rates[name] for name in _RATES if name in rates}
    return found


def in_half(clean: Workbench, condition: str) -> Workbench:
    """Return the workbench whose every second picture of a person is in a condition."""
    crops = clean.crops.copy()
    odd = every_second(clean.labels)
    crops[odd] = in_condition(condition, crops[odd])
    return replace(clean, crops=crops)


def trained(bench: Workbench, phones: tuple[str, ...], settings: Mapping[str, Any], seed: int) -> Vector:
    """Return the model that a row's system makes of phones' people."""
    if settings["system"] == "pretrained":
        return bench.theta
    if settings["system"] == "pooled":
        local = LocalSpec(**settings["local"], flip=False)
        return bench.trained_centrally(phones, "cosface", local, seed, **settings["cosface"])
    task = from_mapping(TaskSpec, {**settings["task"], "seed": seed})
    engine = choose("auto", bench.runtime, task, bench.part).engine
    return run_task(
        task, bench.part, bench.dim, bench.theta, bench.cohort({name: (name,) for name in phones}), engine
    ).state.theta
