"""FedFR-UDA on real faces: Tables 2 to 5 and forgetting, by the code of `simulation.papers.fedfr_uda`.

    mien-sim reproduce fedfr_uda_real --faces data

`data` holds `celeba112`, `bollywood112` and `lfw` (research, non-commercial use). CelebA is the labelled source, and
targets are Bollywood, LFW, and LFW in the dark and with masks. What a clustering needs to know is measured on people of
the source; in the dark it is the benchmark's, as the paper's distance is. Without real faces people are the shipped
rendered ones, a domain in the place of each, enough for a toy scale.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Final

from simulation.papers.fedfr_uda import benchmarks_of, measure
from simulation.papers.fedfr_uda.faces import are_real, data_of
from simulation.runs.experiment import Experiment

BENCHMARKS: Final = Path(__file__).with_name("benchmarks.toml")
RENDERED: Final = MappingProxyType({"celeba": "caucasian", "bollywood": "african", "lfw": "asian"})


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    domains = {} if are_real(faces) else RENDERED
    return benchmarks_of(BENCHMARKS, quick=quick, data_sha256=data_of(faces), domains=domains)


__all__ = ["BENCHMARKS", "measure", "study"]
