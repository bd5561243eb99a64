"""Comparison of spread-out's private forms with the published one: separation, and verification after training.

One identity a phone (FedFace) and a few a client (FedGC); SFace is frozen, a linear adapter of 16,512 parameters behind
it is trained. Public people are of one domain and phones of others, so that the phones' population is shifted as a
whole from everything that a device may know: there public people alone are least help. `choice.py` holds the rule that
picks the default.

    mien-sim reproduce spreadout --faces synthetic112 --jobs 16
    python -m simulation.papers.spreadout.choice

With real faces, `mix.py` first makes one folder of CelebA, LFW and Bollywood for `--faces`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulation.faces.datasets import dataset_of
from simulation.papers.spreadout.populations import population_of
from simulation.papers.spreadout.runs import measure
from simulation.runs.experiment import Experiment
from simulation.runs.tables import read_tables

NAME: Final = "spreadout"
TABLES: Final = Path(__file__).with_name("tables.toml")


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study over the population that the folder's names tell; `quick` is a toy scale."""
    population = population_of(faces, quick=quick)
    labels = {name: test.label for name, test in population.tests.items()}
    others = [
        column
        for name, label in labels.items()
        if name != "test"
        for column in ((f"EER, {label}", f"{name}_eer"), (f"TAR, {label}", f"{name}_tar_1e-3"))
    ]
    return read_tables(
        TABLES,
        measure,
        quick=quick,
        data_sha256=dataset_of(faces),
        base=population.settings(),
        words={"title": population.title, "note": population.note, "several": 2 if quick else 4, **labels},
        columns={"others": others},
    )
