"""FedFR on a laptop: Tables 1 to 3 and Figures 3 and 4, several identities a client, on synthetic faces.

Source: Liu et al.: FedFR (AAAI 2022). The paper pre-trains a 64-layer CNN on 6,000 public people and has 40 clients of
100 people each with 60 images for 30 rounds; here a linear adapter behind frozen SFace is first trained on 120 public
people, then by 40 clients of 10 people each with six images. Rates were chosen on one seed, on people and images that
no row is tested with (`tuning`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simulation.faces.datasets import dataset_of
from simulation.papers.fedfr.figures import alike_figures, generic_figures, personal_figures
from simulation.papers.fedfr.split import Split
from simulation.papers.fedfr.systems import SYSTEMS
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(faces))


def measure(job: Job) -> Mapping[str, Any]:
    """Return the figures of one run: the generic model on people of nobody, each client's model on all test images."""
    split = Split.draw(job.faces, job.settings, job.seed)
    result = SYSTEMS[job.settings["system"]](split, job.settings, job.seed)
    return {
        **generic_figures(split.bench, result.theta, split.generic),
        **alike_figures(split, result.theta),
        **personal_figures(split, result.personal),
        "steps": result.steps,
        "images": result.images,
    }
