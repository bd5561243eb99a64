"""Actions of the verbs `sweep` and `export` of mien-sim."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from mien.errors import ConfigError
from mien.shell import cli
from mien.shell.files import write_atomically
from simulation.runs.experiment import Experiment, Results, markdown
from simulation.runs.grid import load_sweep, num_rounds_of, read_sweep, rounds_done, run_sweep
from simulation.runs.progress import said_when_interrupted, watching

SWEEPS: Final = Path("out/sweeps")
REPORT: Final = "report.html"
TABLES: Final = "results.md"


def sweep(
    experiment: Path,
    out: Path | None,
    root: Path,
    *,
    settings: Sequence[str],
    num_seeds: int | None,
    jobs: int,
    tensorboard: Path | None,
    as_json: bool,
) -> None:
    """Run a sweep, or what is left of it, and print its table; exit with code 1 if runs failed."""
    swept = load_sweep(experiment, settings, num_seeds)
    folder, total = out or SWEEPS / swept.name, num_rounds_of(swept)
    with said_when_interrupted(lambda: _stopped(swept, folder)), watching(swept.name) as watcher:
        results = run_sweep(
            swept,
            folder,
            root,
            jobs=jobs,
            command=command_of(experiment, settings, num_seeds),
            events=tensorboard,
            tell=watcher.tell,
            tick=lambda: watcher.show(rounds_done(swept, folder), total),
        )
    write_sweep(folder)
    answer = {
        "folder": str(folder),
        "report": str(folder / REPORT),
        "table": str(folder / TABLES),
        "runs": len(results.records),
        "settings": [{"name": row.name, "changes": dict(row.settings["changes"])} for row in swept.rows],
        "failures": [{"row": f.row, "seed": f.seed, "reason": f.reason} for f in results.failures],
    }
    cli.emit(answer, as_json=as_json, human=lambda: _print(f"{markdown(results)}\n{folder / REPORT}"))
    if results.failures:
        sys.exit(1)


def _stopped(swept: Experiment, folder: Path) -> str:
    """Return the message about a sweep that was interrupted."""
    done = rounds_done(swept, folder)
    return f"stopped after {done} of {num_rounds_of(swept)} rounds; the same command goes on"


def command_of(experiment: Path, settings: Sequence[str], num_seeds: int | None) -> str:
    """Return the command that gives a sweep again; where its faces lie and how many processes work is left out."""
    words = ["mien-sim", "sweep", str(experiment)]
    words += [word for text in settings for word in ("--set", text)]
    return shlex.join([*words, *(["--seeds", str(num_seeds)] if num_seeds else [])])


def write_sweep(folder: Path) -> tuple[Results, str]:
    """Write a sweep's table and page from its records; return its results and the command that gave them."""
    from simulation.pages.sweep_page import sweep_page

    results, command = read_sweep(folder)
    write_atomically(folder / TABLES, markdown(results, command=command).encode())
    write_atomically(folder / REPORT, sweep_page(results, folder, command=command).encode())
    return results, command


def export(folder: Path, csv: Path | None, tensorboard: Path | None, *, as_json: bool) -> None:
    """Write the records in a folder for other programs."""
    from simulation.runs.collected import collect
    from simulation.runs.export import write_csv, write_events

    if csv is None and tensorboard is None:
        raise ConfigError("nothing to write: name a file with --csv, a folder with --tensorboard, or both")
    runs = collect(folder)
    written: list[Any] = []
    if csv is not None:
        write_csv(runs, csv)
        written.append(str(csv))
    if tensorboard is not None:
        written += [str(place) for place in write_events(runs, tensorboard)]
    cli.emit({"runs": len(runs), "written": written}, as_json=as_json, human=lambda: _print("\n".join(written)))


def _print(text: str) -> None:
    cli.OUT.print(text, markup=False, highlight=False, soft_wrap=True)
