"""PFM and FV on real faces: three parties that differ in size and in kind, by the code of `simulation.papers.pfm_fv`.

    mien-sim reproduce pfm_fv_real --faces data

`data` holds `celeba112`, `lfw` and `bollywood112` (research, non-commercial use). Each is a party, as the paper's three
data sets are, and has validators and test people of its own. Without them people are the shipped rendered ones of three
domains, enough for a toy scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from simulation.faces.workbench import Workbench
from simulation.papers.fedfr_uda.faces import are_real, data_of, open_domains
from simulation.papers.pfm_fv import DOMAINS, measured
from simulation.runs.experiment import Experiment, Job
from simulation.runs.tables import read_tables

TABLES: Final = Path(__file__).with_name("tables.toml")
PARTIES: Final = MappingProxyType({"celeba": "CelebA", "lfw": "LFW", "bollywood": "Bollywood"})
"""The sets that are parties, and what tables call them."""


def study(*, quick: bool, faces: Path | None) -> Experiment:
    """Return the study; `quick` is a toy scale that shows nothing but that everything runs."""
    parties = PARTIES if are_real(faces) or not quick else dict(zip(DOMAINS, DOMAINS, strict=True))
    columns = {
        "each": [[f"EER, {label}", f"eer_{domain}"] for domain, label in parties.items()],
        "shares": [[f"{label}'s share at the end", f"share_{domain}-0"] for domain, label in parties.items()],
    }
    base = {"domains": list(parties)}
    return read_tables(TABLES, measure, quick=quick, data_sha256=data_of(faces), base=base, columns=columns)


def measure(job: Job) -> Mapping[str, Any]:
    """Return verification on the test people of one run, and the training loss at its end."""
    return measured(workbench(job), job)


def workbench(job: Job) -> Workbench:
    """Return the light workbench of a run's people, all their pictures in its condition, behind its network."""
    settings = job.settings
    network = settings.get("network", "sface")
    return open_domains(job.faces, tuple(settings["domains"]), everybodys=settings["condition"], network=network)
