"""The reproductions by name: one command measures a paper's tables, resumes, and writes them beside the paper's.

An experiment is a module with `study(*, quick: bool, faces: Path | None) -> Experiment` and one entry in `EXPERIMENTS`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from mien.errors import ConfigError, NotFoundError
from mien.records import to_mapping
from mien.shell import cli
from mien.shell.files import make_folder, write_atomically
from simulation.faces.named import folder_of
from simulation.runs.experiment import Results, markdown
from simulation.runs.pool import run_all
from simulation.runs.records import only_writer, refuse_others
from simulation.runs.reproduced import EXPERIMENTS, MAX_SEEDS, STATE, Options, known

OUT: Final = Path("out/reproduce")
_HOLDS: Final = {
    "fedfr_real": "celeba112 and bollywood112",
    "pfm_fv_real": "celeba112, bollywood112 and lfw",
    "fedfr_uda_real": "celeba112, bollywood112 and lfw",
}
"""What MIEN_DATA holds for an experiment that takes it whole."""

_FACES: Final = {"conditions": "lfw/images", "block": "lfw/images", **dict.fromkeys(_HOLDS, ".")}
"""Folder of MIEN_DATA that an experiment takes unless one is named; others take `synthetic112`."""


def seeds_of(count: int) -> tuple[int, ...]:
    """Return the seeds 0 ... count - 1; raises ConfigError for none, and for more than `MAX_SEEDS`."""
    if count < 1:
        raise ConfigError(f"--seeds is {count}; at least one run of every row is needed, three for an interval")
    if count > MAX_SEEDS:
        raise ConfigError(f"--seeds is {count}; more than {MAX_SEEDS} runs of every row are a mistake")
    return tuple(range(count))


def faces_for(name: str, faces: Path | None, *, quick: bool) -> Path | None:
    """Return the folder of faces to use: the one that was named, or the experiment's of MIEN_DATA, or None if quick.

    A quick run without a folder takes the synthetic faces that come with the package. Raises NotFoundError where a
    whole run has no faces.
    """
    named = folder_of(faces)
    if named is not None:
        return named.resolve()
    if quick:
        return None
    data = os.environ.get("MIEN_DATA")
    folder = _FACES.get(name, "synthetic112")
    found = Path(data) / folder if data and faces is None else None
    if found is None or not found.is_dir():
        raise NotFoundError(
            f"{name} needs hundreds of people: name a folder name/*.jpg with --faces, set MIEN_DATA to a folder "
            f"that holds {_HOLDS.get(name, folder)}, or use --quick, which takes the faces that come with the package"
        )
    return found.resolve()


def reproduce(
    options: Options, out: Path, *, jobs: int, tell: Callable[[str], None], only: Sequence[str] = ()
) -> Results:
    """Return the measured study, its records, `results.md` and `report.html` written under `out`/experiment.

    Another scale or other faces give other records in the same folder; those that fit are used again. With `only`
    those rows alone are measured now, and of others is told what lies there. One process writes the folder: raises
    AlreadyExistsError while another one does, and for a folder that holds another command's records.
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
            only=only,
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
        width = max(map(len, EXPERIMENTS))
        for name, (paper, shows) in EXPERIMENTS.items():
            cli.say(f"{name:{width}} {paper}: {shows}")

    listed = [{"name": name, "paper": paper, "shows": shows} for name, (paper, shows) in EXPERIMENTS.items()]
    cli.emit({"experiments": listed}, as_json=as_json, human=human)


def run(
    name: str,
    *,
    quick: bool,
    jobs: int,
    seeds: int,
    faces: Path | None,
    out: Path,
    only: Sequence[str] = (),
    as_json: bool = False,
) -> None:
    """Reproduce one experiment and print its tables; exit with code 1 if runs failed."""
    known(name)
    found = faces_for(name, faces, quick=quick)
    options = Options(name, quick, str(found) if found else None, seeds_of(seeds))
    results = reproduce(options, out, jobs=jobs, tell=cli.tell, only=only)
    folder = out / name
    text = markdown(results, command=options.command)
    shown = f"{text}\n{folder / 'report.html'}"
    cli.emit(answer(results, folder), as_json=as_json, human=lambda: cli.say(shown))
    if results.failures:
        sys.exit(1)
