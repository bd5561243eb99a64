"""FedFR on real faces: Tables 1 to 3, with 6, 20 and 40 pictures a person, by the code of `simulation.papers.fedfr`.

    mien-sim reproduce fedfr_real --faces data

`data` holds the folders `celeba112` and `bollywood112` (research, non-commercial use): public people and people for
generic tests are of the first, clients' people of the second. Without it people are the shipped rendered ones of two
domains, enough for a toy scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simulation.faces.datasets import dataset_of
from simulation.papers import fedfr
from simulation.papers.fedfr_uda.faces import prepared
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
REAL: Final = ["bollywood", "celeba"]
RENDERED: Final = ["african", "asian"]


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    folder, real = prepared(faces)
    base = {"domains": REAL if real else RENDERED}
    words = {"faces": "real faces" if real else "rendered faces of two domains"}
    return read_tables(TABLES, measure, quick=quick, data_sha256=dataset_of(folder), base=base, words=words)


def measure(job: Job) -> Mapping[str, Any]:
    """Return the figures of one run, as `simulation.papers.fedfr` has them."""
    return fedfr.measure(replace(job, faces=prepared(job.faces)[0]))
