"""PFM from a network's first layer on: local steps, momentum, parties alone where features are learned, not given.

In `simulation.papers.pfm_fv` a recogniser of others' is frozen, and a map behind it is limited by how it carries over
to other people. Here a network of 0.3 million parameters at 28 x 28 pixels begins at random, and all of it is trained,
as the paper's IR-18 is. Systems and parties are that study's (`simulation.papers.pfm_fv.measured`).

    mien-sim reproduce pfm_scratch --faces synthetic112
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simulation.faces.datasets import dataset_of
from simulation.faces.workbench import open_small_network
from simulation.papers.pfm_fv import measured
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
LOSSES_ON: Final = 100
"""Pictures of a party that losses are of: ten steps would take less time than the losses of all its pictures.

A row that averages after every step says fewer (`losses_on`)."""


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return verification on the test people of one run, and the training loss at its end."""
    settings = job.settings
    sizes = settings["max_people"], settings["max_images"]
    losses_on = settings.get("losses_on", LOSSES_ON)
    return measured(open_small_network(job.faces, job.seed, *sizes, losses_on=losses_on), job)
