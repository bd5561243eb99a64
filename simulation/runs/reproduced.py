"""The papers' experiments by name, and what `mien-sim reproduce` wrote of one, read again."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mien.errors import ConfigError, CorruptDataError
from mien.records import from_mapping
from mien.shell.files import read_limited
from simulation.runs.experiment import Experiment, Failure, Results, read_results

NUM_SEEDS: Final = 3
MAX_SEEDS: Final = 1000
TOY: Final = (
    "A toy scale, which shows only that everything runs: few people, rounds and steps, and, unless a folder was named, "
    "the rendered faces that come with the package, also where title and source tell of others. Nothing that the paper "
    "claims is judged, and what whole runs have found is left out; measure without --quick for both."
)
STATE: Final = "study.json"
MAX_STATE_BYTES: Final = 1 << 20

_PAPERS: Final = {
    "fedface": (
        "FedFace (2021)",
        "FedAvg collapses, what spread-out and mean initialisation do, the client sweep of Fig 4",
    ),
    "spreadout": (
        "FedFace (2021), private forms",
        "which private form of spread-out learns as well as the published one",
    ),
    "gate": (
        "Summed statistics (ours)",
        "a gate between two populations: what phones' people gain, what the model's own lose, one threshold for both",
    ),
    "conditions": (
        "Summed statistics (ours), FedFace (2021)",
        "real faces with masks, at 14 pixels, in the dark, in near infrared, in close-up: what each method learns",
    ),
    "block": (
        "FedFace (2021), against everybody (ours)",
        "real faces in the dark where phones train the network's last block: private, exact and pooled training",
    ),
    "scratch": (
        "FedFace (2021), against everybody and summed statistics (ours)",
        "a small network trained end to end, one identity a phone, from a start that knows few people",
    ),
    "fedfr": (
        "FedFR (2022)",
        "generic and personalised models: Tables 1 to 3, Fig 3 and 4",
    ),
    "fedfr_real": (
        "FedFR (2022), on real faces",
        "Tables 1 to 3 on pictures of film actors, with 6, 20 and 40 a person",
    ),
    "pfm_fv": (
        "Federated Face Recognition (2021)",
        "the sweep over local steps K, federated validation and its norms, 3 and 12 parties",
    ),
    "pfm_fv_real": (
        "Federated Face Recognition (2021), on real faces",
        "CelebA, LFW and Bollywood as parties, clean and in the dark: local steps K, federated validation, 12 parties",
    ),
    "pfm_scratch": (
        "Federated Face Recognition (2021)",
        "a small network trained end to end by three parties: local steps K, momentum, each party alone",
    ),
    "fedgc": (
        "FedGC (2022)",
        "private classifiers, their correction, its weight, participation and unbalanced clients",
    ),
    "fedgc_scratch": (
        "FedGC (2022)",
        "a softmax on a small network trained end to end: the correction, its weight, lengths of features and classes",
    ),
    "fedfr_uda": (
        "FedFR, domain adaptation (2021)",
        "clustering, ablation, forgetting, local iterations",
    ),
    "fedfr_uda_real": (
        "FedFR, domain adaptation (2021), on real faces",
        "from CelebA to Bollywood, to LFW, to the dark and to masks: systems, clustering, ablation, forgetting",
    ),
}
EXPERIMENTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {name: said for name, said in _PAPERS.items() if importlib.util.find_spec(f"simulation.papers.{name}")}
)
"""The paper of each experiment, and what it shows; the module `simulation.papers.NAME` describes it."""


@dataclass(frozen=True)
class Options:
    """Options of a reproduction's start; kept beside its records, so that it can be rendered again."""

    experiment: str
    quick: bool = False
    faces: str | None = None
    seeds: tuple[int, ...] = tuple(range(NUM_SEEDS))

    @property
    def command(self) -> str:
        """The command that gives the same again; the folder of faces by its last name only."""
        words = ["mien-sim", "reproduce", self.experiment, *(["--quick"] if self.quick else [])]
        words += ["--seeds", str(len(self.seeds))]
        return " ".join([*words, *(["--faces", Path(self.faces).name] if self.faces else [])])

    def study(self) -> Experiment:
        """Return the study that these options name; raises ConfigError naming the nearest known experiment.

        At a toy scale nothing is judged: it has no claims, and no notes, which tell of whole runs.
        """
        module = importlib.import_module(f"simulation.papers.{known(self.experiment)}")
        make: Callable[..., Experiment] = module.study
        study = make(quick=self.quick, faces=Path(self.faces) if self.faces else None)
        if not self.quick:
            return study
        tables = tuple(dataclasses.replace(table, note="") for table in study.tables)
        return dataclasses.replace(study, claims=(), notes=(TOY,), tables=tables)


def known(name: str) -> str:
    """Return the name of an experiment that there is; raises ConfigError naming the nearest one."""
    if name in EXPERIMENTS:
        return name
    near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
    raise ConfigError(
        f"experiment {name!r} is unknown; "
        + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(EXPERIMENTS)} (mien-sim reproduce --list)")
    )


def read(folder: Path) -> tuple[Results, Options]:
    """Return the results that lie in an experiment's folder and how they were made, running nothing."""
    try:
        state = json.loads(read_limited(folder / STATE, MAX_STATE_BYTES, what=STATE))
        options = from_mapping(Options, state["options"])
        failures = tuple(Failure(row, seed, reason) for row, seed, reason in state["failures"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"{folder / STATE} is damaged; run mien-sim reproduce again") from error
    return read_results(options.study(), folder / "records", seeds=options.seeds, failures=failures), options
