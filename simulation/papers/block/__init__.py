"""Through the network's last block: what each method learns where phones train SFace itself and not a map behind it.

People and pictures are those of `simulation.papers.conditions`, of one condition: every second picture of everybody but
public people is in it. Phones hold one person each and train 545,280 parameters of SFace's last two blocks, on what
enters them. What trains counts with the one of its `rates` under which validation people have the lowest EER.

    mien-sim reproduce block --faces lfw/images

A row is a method: another one is a row of `tables.toml` more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from simulation.faces.conditions import every_second, in_condition
from simulation.faces.datasets import dataset_of
from simulation.faces.workbench import Workbench, open_network
from simulation.papers.conditions import GROUPS, best_of, trained
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
_RATES: Final = ("eer", "tar_1e-2", "tar_1e-3")


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return test people's verification in the condition, and that of their clean pictures under the same model."""
    settings = job.settings
    clean = open_network(job.faces, settings["max_people"], settings["max_images"])
    phones, public, validation, test = clean.split(job.seed, *(settings[name] for name in GROUPS))
    seen = in_half(clean, settings["condition"], public)
    found, theta = dict[str, float](), clean.theta
    if rates := settings.get("rates"):
        people = public if settings.get("held") == "public" else phones  # the control: public people, and no phone
        found["rate"], theta = best_of(
            rates, lambda rate: trained(seen, people, settings, job.seed, rate), seen, validation
        )
    for prefix, bench in (("", seen), ("clean_", clean)):
        measured = bench.verification(theta, test)
        found |= {prefix + name: measured[name] for name in _RATES if name in measured}
    return found


def in_half(clean: Workbench, condition: str, spared: Sequence[str] = ()) -> Workbench:
    """Return the workbench whose every second picture of a person is in a condition, but for those who are spared."""
    odd, crops = every_second(clean.labels), clean.crops.copy()
    kept = np.isin(clean.labels[odd], [clean.people.index(name) for name in spared])
    # Draws follow from a picture's place among all of them, so those who are spared are changed and left out.
    crops[odd[~kept]] = in_condition(condition, clean.crops[odd])[~kept]
    return replace(clean, crops=crops)
