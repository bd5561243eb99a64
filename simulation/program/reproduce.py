"""The reproductions by name: one command measures a paper's tables, resumes, and writes them beside the paper's.

An experiment is a module with `study(*, quick: bool, faces: Path | None) -> Experiment` and one entry in `EXPERIMENTS`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mien.errors import ConfigError, CorruptDataError, NotFoundError
from mien.records import from_mapping, to_mapping
from mien.shell import cli
from mien.shell.files import make_folder, read_limited, write_atomically
from simulation.runs.experiment import Experiment, Failure, Results, markdown, read_results
from simulation.runs.folders import only_writer, refuse_others
from simulation.runs.pool import run_all

OUT: Final = Path("out/reproduce")
NUM_SEEDS: Final = 3
MAX_SEEDS: Final = 1000
TOY: Final = "At a toy scale nothing that the paper claims is judged; measure without --quick for that."
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
    "fedfr": (
        "FedFR (2022)",
        "generic and personalised models: Tables 1 to 3, Fig 3 and 4",
    ),
    "pfm_fv": (
        "Federated Face Recognition (2021)",
        "the sweep over local steps K, federated validation and its norms, 3 and 12 parties",
    ),
    "fedgc": (
        "FedGC (2022)",
        "private classifiers, their correction, its weight, participation and unbalanced clients",
    ),
    "fedfr_uda": (
        "FedFR, domain adaptation (2021)",
        "clustering, ablation, forgetting, local iterations",
    ),
}
EXPERIMENTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {name: said for name, said in _PAPERS.items() if importlib.util.find_spec(f"simulation.papers.{name}")}
)
"""The paper of each experiment, and what it shows; the module `simulation.papers.NAME` describes it."""


@dataclass(frozen=True)
class Options:
    """How a reproduction was started; kept beside its records, so that it can be rendered again."""

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

        At a toy scale nothing is judged: it has no claims.
        """
        module = importlib.import_module(f"simulation.papers.{known(self.experiment)}")
        make: Callable[..., Experiment] = module.study
        study = make(quick=self.quick, faces=Path(self.faces) if self.faces else None)
        return dataclasses.replace(study, claims=(), notes=(*study.notes, TOY)) if self.quick else study


def known(name: str) -> str:
    """Return the name of an experiment that there is; raises ConfigError naming the nearest one."""
    if name in EXPERIMENTS:
        return name
    near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
    raise ConfigError(
        f"experiment {name!r} is unknown; "
        + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(EXPERIMENTS)} (mien-sim reproduce --list)")
    )


def seeds_of(count: int) -> tuple[int, ...]:
    """Return the seeds 0 ... count - 1; raises ConfigError for none, and for more than `MAX_SEEDS`."""
    if count < 1:
        raise ConfigError(f"--seeds is {count}; at least one run of every row is needed, three for an interval")
    if count > MAX_SEEDS:
        raise ConfigError(f"--seeds is {count}; more than {MAX_SEEDS} runs of every row are a mistake")
    return tuple(range(count))


def faces_for(name: str, faces: Path | None, *, quick: bool) -> Path | None:
    """Return the folder of faces to use: the one that was named, or `synthetic112` of MIEN_DATA, or None if quick.

    A quick run without a folder takes the synthetic faces that come with the package. Raises NotFoundError where a
    whole run has no faces.
    """
    if faces is not None:
        if not faces.is_dir():
            raise NotFoundError(f"there is no folder {faces}; name one that holds a folder of images per person")
        return faces.resolve()
    if quick:
        return None
    data = os.environ.get("MIEN_DATA")
    found = Path(data) / "synthetic112" if data else None
    if found is None or not found.is_dir():
        raise NotFoundError(
            f"{name} needs about a thousand people: name a folder name/*.jpg with --faces, set MIEN_DATA to a folder "
            "that holds synthetic112, or use --quick, which takes the faces that come with the package"
        )
    return found.resolve()


def reproduce(options: Options, out: Path, *, jobs: int, tell: Callable[[str], None]) -> Results:
    """Return the measured study, its records, `results.md` and `report.html` written under `out`/experiment.

    Another scale or other faces give other records in the same folder; those that fit are used again. One process
    writes it: raises AlreadyExistsError while another one does, and for a folder that holds another command's records.
    """
    study = options.study()
    folder = out / options.experiment
    refuse_others(folder, but=STATE)
    make_folder(folder)
    with only_writer(folder):
        results = run_all(
            study,
            folder / "records",
            seeds=options.seeds,
            jobs=jobs,
            faces=Path(options.faces) if options.faces else None,
            tell=tell,
        )
        write(results, options, folder)
    return results


def write(results: Results, options: Options, folder: Path) -> None:
    """Write what was measured: `study.json` (how), `results.md`, and `report.html`."""
    from simulation.pages.study_page import study_page

    failures = [[f.row, f.seed, f.reason] for f in results.failures]
    state = {"options": to_mapping(options), "failures": failures}
    write_atomically(folder / STATE, json.dumps(state, indent=1).encode())
    write_atomically(folder / "results.md", markdown(results, command=options.command).encode())
    write_atomically(folder / "report.html", study_page(results, command=options.command).encode())


def read(folder: Path) -> tuple[Results, Options]:
    """Return the results that lie in an experiment's folder and how they were made, running nothing."""
    try:
        state = json.loads(read_limited(folder / STATE, MAX_STATE_BYTES, what=STATE))
        options = from_mapping(Options, state["options"])
        failures = tuple(Failure(row, seed, reason) for row, seed, reason in state["failures"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"{folder / STATE} is damaged; run mien-sim reproduce again") from error
    return read_results(options.study(), folder / "records", seeds=options.seeds, failures=failures), options


def answer(results: Results, folder: Path) -> dict[str, Any]:
    """Return what a reproduction answers to machines: where its files are, each claim's verdict, failed runs."""
    return {
        "experiment": results.experiment.name,
        "report": str(folder / "report.html"),
        "table": str(folder / "results.md"),
        "runs": len(results.records),
        "claims": [{"claim": claim.text, "here": results.verdict(claim)} for claim in results.experiment.claims],
        "failures": [{"row": f.row, "seed": f.seed, "reason": f.reason} for f in results.failures],
    }


def show_list(*, as_json: bool) -> None:
    """Print which experiments there are, the paper of each, and what it shows."""

    def human() -> None:
        for name, (paper, shows) in EXPERIMENTS.items():
            line = f"{name:10} {paper}: {shows}"
            cli.OUT.print(line, markup=False, highlight=False, soft_wrap=True)

    listed = [{"name": name, "paper": paper, "shows": shows} for name, (paper, shows) in EXPERIMENTS.items()]
    cli.emit({"experiments": listed}, as_json=as_json, human=human)


def run(name: str, *, quick: bool, jobs: int, seeds: int, faces: Path | None, out: Path, as_json: bool = False) -> None:
    """Reproduce one experiment and print its tables; exit with code 1 if runs failed."""
    known(name)
    found = faces_for(name, faces, quick=quick)
    options = Options(name, quick, str(found) if found else None, seeds_of(seeds))
    results = reproduce(options, out, jobs=jobs, tell=lambda text: cli.ERR.print(text, markup=False, highlight=False))
    folder = out / name
    text = markdown(results, command=options.command)
    shown = f"{text}\n{folder / 'report.html'}"
    cli.emit(
        answer(results, folder),
        as_json=as_json,
        human=lambda: cli.OUT.print(shown, markup=False, highlight=False, soft_wrap=True),
    )
    if results.failures:
        sys.exit(1)
