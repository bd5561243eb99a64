"""The reproductions by name: one command measures a paper's tables, resumes, and writes them beside the paper's.

An experiment is a module with `study(*, quick: bool, faces: Path | None) -> Study` and one entry in `EXPERIMENTS`.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mien.errors import ConfigError, CorruptDataError, MienError, NotFoundError
from mien.records import from_mapping, to_mapping
from mien.shell import cli
from mien.shell.files import make_folder, read_limited, write_atomically
from simulation.runs.locking import only_writer
from simulation.runs.outputs import refuse_others
from simulation.runs.study import Failure, Results, Study, markdown, read_results, run_study

OUT: Final = Path("out/reproduce")
NUM_SEEDS: Final = 3
MAX_SEEDS: Final = 1000
TOY: Final = "At a toy scale nothing that the paper claims is judged; measure without --quick for that."
STATE: Final = "study.json"
MAX_STATE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Experiment:
    """A reproduction: its name, the module that holds its study, the paper, and what it shows."""

    name: str
    module: str
    paper: str
    shows: str


_ALL: Final = (
    Experiment(
        "fedface",
        "simulation.papers.fedface",
        "FedFace (2021)",
        "FedAvg collapses, what spread-out and mean initialisation do, the client sweep of Fig 4",
    ),
    Experiment(
        "spreadout",
        "simulation.papers.spreadout",
        "FedFace (2021), private forms",
        "which private form of spread-out learns as well as the published one",
    ),
    Experiment(
        "fedfr",
        "simulation.papers.fedfr",
        "FedFR (2022)",
        "generic and personalised models: Tables 1 to 3, Fig 3 and 4",
    ),
    Experiment(
        "pfm_fv",
        "simulation.papers.pfm_fv",
        "Federated Face Recognition (2021)",
        "the sweep over local steps K, federated validation and its norms, 3 and 12 parties",
    ),
    Experiment(
        "fedgc",
        "simulation.papers.fedgc",
        "FedGC (2022)",
        "private classifiers, their correction, its weight, participation and unbalanced clients",
    ),
    Experiment(
        "fedfr_uda",
        "simulation.papers.fedfr_uda",
        "FedFR, domain adaptation (2021)",
        "clustering, ablation, forgetting, local iterations",
    ),
)


def _is_installed(experiment: Experiment) -> bool:
    return importlib.util.find_spec(experiment.module) is not None


EXPERIMENTS: Final[Mapping[str, Experiment]] = MappingProxyType({e.name: e for e in _ALL if _is_installed(e)})


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

    def study(self) -> Study:
        """Return the study that these options name; raises ConfigError naming the nearest known experiment.

        At a toy scale nothing is judged: it has no claims.
        """
        module = importlib.import_module(find_experiment(self.experiment).module)
        make: Callable[..., Study] = module.study
        study = make(quick=self.quick, faces=Path(self.faces) if self.faces else None)
        return dataclasses.replace(study, claims=(), notes=(*study.notes, TOY)) if self.quick else study


def find_experiment(name: str) -> Experiment:
    """Return the experiment of that name; raises ConfigError naming the nearest one."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
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
        results = run_study(
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
        "experiment": results.study.name,
        "report": str(folder / "report.html"),
        "table": str(folder / "results.md"),
        "runs": len(results.records),
        "claims": [{"claim": claim.text, "here": results.verdict(claim)} for claim in results.study.claims],
        "failures": [{"row": f.row, "seed": f.seed, "reason": f.reason} for f in results.failures],
    }


def show_list(*, as_json: bool) -> None:
    """Print which experiments there are, the paper of each, and what it shows."""

    def human() -> None:
        for each in EXPERIMENTS.values():
            line = f"{each.name:10} {each.paper}: {each.shows}"
            cli.OUT.print(line, markup=False, highlight=False, soft_wrap=True)

    listed = [{"name": e.name, "paper": e.paper, "shows": e.shows} for e in EXPERIMENTS.values()]
    cli.emit({"experiments": listed}, as_json=as_json, human=human)


def main(name: str, arguments: Sequence[str] | None = None) -> None:
    """Run one experiment: `python -m simulation.papers.NAME`, the same as `mien-sim reproduce NAME`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m simulation.papers.{name}",
        description=f"{EXPERIMENTS[name].paper}: {EXPERIMENTS[name].shows}.",
        epilog=f"Example: python -m simulation.papers.{name} --quick --jobs 2",
    )
    parser.add_argument("--quick", action="store_true", help="a toy scale that shows only that everything runs")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="runs of every row")
    parser.add_argument("--faces", type=Path, help="a folder of folders, name/*.jpg")
    parser.add_argument("--out", type=Path, default=OUT, help="where records and tables go")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    args = parser.parse_args(arguments)
    try:
        run(name, quick=args.quick, jobs=args.jobs, seeds=args.seeds, faces=args.faces, out=args.out, as_json=args.json)
    except MienError as error:
        cli.fail(error, as_json=args.json)


def run(name: str, *, quick: bool, jobs: int, seeds: int, faces: Path | None, out: Path, as_json: bool = False) -> None:
    """Reproduce one experiment and print its tables; exit with code 1 if runs failed."""
    find_experiment(name)
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
