"""Actions of the verbs `run` and `report` of mien-sim."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mien.errors import NotFoundError
from mien.shell import cli
from mien.shell.files import write_atomically
from simulation.program import reproduce
from simulation.program.sweep_commands import write_sweep
from simulation.runs import reproduced
from simulation.runs.experiment import markdown as markdown_of
from simulation.runs.grid import STATE as SWEEP_STATE
from simulation.runs.progress import said_when_interrupted, watching
from simulation.runs.records import num_rounds
from simulation.runs.spec import describe, dry_plan, from_data, load_data, with_changes

RUNS: Final = Path("out/runs")
REPORT: Final = "report.html"
RESULTS_HEAD: Final = """# Results

What `mien-sim reproduce` measured, beside the papers' figures. Written by `mien-sim report`; edit nothing here by hand.
The papers train other networks on other data at another scale: compare orderings, not figures. An ordering *holds* if
the 95 % interval of the paired difference over seeds lies above zero, *on average* if only its mean does. A claim
*within* so many points holds if the mean difference is no larger, either way.
"""


def run(
    experiment: Path,
    out: Path | None,
    faces: Path | None,
    *,
    resume: bool,
    dry_run: bool,
    seed: int | None,
    rounds: int | None,
    engine: str | None = None,
    precision: str | None = None,
    address: str | None = None,
    tensorboard: Path | None = None,
    as_json: bool,
) -> None:
    """Run an experiment, or say in a dry run who would hold what."""
    data, swept = load_data(experiment)
    spec = with_changes(from_data(data), seed=seed, rounds=rounds, engine=engine, precision=precision)
    root = faces_root(faces)
    if dry_run:
        summary = dry_plan(spec, root).summary()
        cli.emit(summary, as_json=as_json, human=lambda: _print_plan(summary))
        return
    from simulation.runs.export import TensorBoard
    from simulation.runs.records import RunFolder
    from simulation.runs.run import run_experiment

    folder = out or RUNS / spec.name
    write = TensorBoard.watching(tensorboard) if tensorboard else None
    with said_when_interrupted(lambda: _stopped(folder)), watching(spec.name) as watcher:
        if swept:
            watcher.tell(f"{experiment.name} has a table [sweep], which run leaves out: mien-sim sweep runs all of it")

        def after_round(record: Mapping[str, Any], total: int) -> None:
            watcher.show(int(record["round"]), total)
            if write:
                write(record)

        result = run_experiment(
            spec, folder, root, resume=resume, tell=watcher.tell, after_round=after_round, address=address
        )
    _write_page(RunFolder(folder).folder)
    answer = {
        "folder": str(folder),
        "report": str(folder / REPORT),
        "eer_before": result["before"]["eer"],
        "eer_after": result["after"]["eer"],
        "test_people": result["test_people"],
        "cpu_s": round(sum(result["run"]["cpu_s"].values()), 1),
    }
    text = f"EER {answer['eer_before']:.2%} before, {answer['eer_after']:.2%} after training\n{folder / REPORT}"
    cli.emit(answer, as_json=as_json, human=lambda: _print(text))


def _stopped(folder: Path) -> str:
    """Return the message about a run that was interrupted."""
    done = num_rounds(folder / "records.jsonl")
    if not done:
        return "stopped before the first round was done; the same command begins again"
    return f"stopped after round {done}; go on with --resume"


def report(folder: Path, markdown: Path | None, *, as_json: bool) -> None:
    """Write the reports of a run, of a sweep, of a reproduction, or of a folder of sweeps and reproductions."""
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}; name one that mien-sim run, sweep or reproduce wrote")
    pages, sections = list[Path](), list[str]()
    if (folder / "experiment.json").is_file():
        pages.append(_write_page(folder))
    else:
        studies = [folder] if (folder / reproduced.STATE).is_file() else _studies(folder)
        sweeps = [folder] if (folder / SWEEP_STATE).is_file() else _sweeps(folder)
        if not studies and not sweeps:
            raise NotFoundError(f"{folder} holds no records; start with mien-sim run, sweep or reproduce")
        for each in studies:
            results, options = reproduced.read(each)
            reproduce.write(results, options, each)
            pages.append(each / REPORT)
            sections.append(markdown_of(results, command=options.command))
        for each in sweeps:
            results, command = write_sweep(each)
            pages.append(each / REPORT)
            sections.append(markdown_of(results, command=command))
    if markdown is not None:
        if not sections:
            raise NotFoundError(f"{folder} holds a run; --markdown is for the tables of sweeps and reproductions")
        write_atomically(markdown, "\n".join([RESULTS_HEAD, *sections]).encode())
    written = [str(page) for page in (*pages, *([markdown] if markdown else []))]
    cli.emit({"written": written}, as_json=as_json, human=lambda: _print("\n".join(written)))


def _studies(folder: Path) -> list[Path]:
    """Return the reproductions in a folder, in the order in which they are listed."""
    return [folder / name for name in reproduced.EXPERIMENTS if (folder / name / reproduced.STATE).is_file()]


def _sweeps(folder: Path) -> list[Path]:
    """Return the sweeps in a folder, by name."""
    return sorted(path.parent for path in folder.glob(f"*/{SWEEP_STATE}"))


def _write_page(folder: Path) -> Path:
    from simulation.pages.run_page import run_page
    from simulation.runs.records import RunFolder

    run = RunFolder(folder)
    page = run_page(describe(run.spec()), run.records(), run.result())
    write_atomically(folder / REPORT, page.encode())
    return folder / REPORT


def faces_root(faces: Path | None) -> Path:
    """Return where the paths of an experiment's faces start: `faces`, else MIEN_DATA, else here."""
    if faces is None:
        return Path(os.environ.get("MIEN_DATA", "."))
    if not faces.is_dir():
        raise NotFoundError(f"there is no folder {faces}; name the one in which the experiment's faces lie")
    return faces


def _print_plan(summary: Mapping[str, Any]) -> None:
    partition = summary["partition"]
    lines = [
        f"{summary['experiment']}: {summary['method']}, {summary['rounds']} rounds",
        f"data: {summary['found']['identities']} identities, {summary['found']['images']} images",
        *(f"{name.replace('_', ' ')}: {number}" for name, number in partition.items()),
    ]
    if summary["generated"]:
        lines.append(f"not on this machine, lists made up: {', '.join(summary['generated'])}")
    _print("\n".join(lines))


def _print(text: str) -> None:
    cli.OUT.print(text, markup=False, highlight=False, soft_wrap=True)
