"""Pages and tables beside the records of runs, sweeps and reproductions: `mien-sim report`."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path
from typing import Final

from mien.errors import AlreadyExistsError, NotFoundError
from mien.shell import cli
from mien.shell.files import write_atomically
from simulation.pages.run_page import write_run
from simulation.pages.sweep_page import write_sweep
from simulation.program import reproduce
from simulation.runs import claims, reproduced
from simulation.runs.claims import JudgedClaim
from simulation.runs.experiment import markdown as markdown_of
from simulation.runs.grid import STATE as SWEEP_STATE
from simulation.runs.records import REPORT, RUN

RESULTS_HEAD: Final = """# Results

What `mien-sim reproduce` measured, beside the papers' figures. Written by `mien-sim report`; edit nothing here by hand.
The papers train other networks on other data at another scale: compare orderings, not figures. An ordering *holds* if
the 95 % interval of the paired difference over seeds lies above zero, *on average* if only its mean does. A claim
*within* so many points holds if the mean difference is no larger, either way.
"""


def report(folder: Path, markdown: Path | None, *, as_json: bool) -> None:
    """Write the reports of a run, of a sweep, of a reproduction, or of a folder of any of these.

    Of a page of tables that was written before, instead of a folder, the summary is written anew.
    """
    if folder.is_file():
        _emit([folder], _write_page(folder, []), as_json=as_json)
        return
    if not folder.is_dir():
        raise NotFoundError(f"there is no folder {folder}; name one that mien-sim run, sweep or reproduce wrote")
    pages, sections, deeper = list[Path](), list[str](), list[Path]()
    if (folder / RUN).is_file():
        pages.append(write_run(folder))
    else:
        studies = [folder] if (folder / reproduced.STATE).is_file() else _studies(folder)
        sweeps = [folder] if (folder / SWEEP_STATE).is_file() else _sweeps(folder)
        runs = [] if studies == [folder] or sweeps == [folder] else _runs(folder)
        deeper = [] if [folder] in (studies, sweeps) else _deeper(folder, {*studies, *sweeps, *runs})
        if not studies and not sweeps and not runs:
            there = f"name one of {', '.join(map(str, deeper))}" if deeper else ""
            raise NotFoundError(f"{folder} holds no records; {there or 'start with mien-sim run, sweep or reproduce'}")
        pages += map(write_run, runs)
        for each in studies:
            results, options = reproduced.read(each)
            reproduce.write(results, options, each)
            pages.append(each / REPORT)
            sections.append(markdown_of(results, command=options.command))
        for each in sweeps:
            results, command = write_sweep(each)
            pages.append(each / REPORT)
            sections.append(markdown_of(results, command=command))
    found = claims.judged_of(sections)
    if markdown is not None:
        if not sections:
            raise NotFoundError(f"{folder} holds runs alone; --markdown is for the tables of sweeps and reproductions")
        found = _write_page(markdown, sections)
        pages.append(markdown)
    for each in deeper:
        cli.tell(f"Left out, for it lies deeper: {each}; mien-sim report {each}")
    _emit(pages, found, as_json=as_json)


def _write_page(page: Path, sections: Sequence[str]) -> list[JudgedClaim]:
    """Write a page of tables with its summary, and return that; sections that it has and `sections` lack stay."""
    old = page.read_text(encoding="utf-8") if page.is_file() else RESULTS_HEAD
    if not old.startswith(RESULTS_HEAD.partition("\n")[0]):
        raise AlreadyExistsError(f"{page} is no page of results; name another file with --markdown")
    every = claims.merged(claims.sections_of(old), sections)
    found = claims.judged_of(every)
    write_atomically(page, claims.page_of(RESULTS_HEAD, every, found).encode())
    return found


def _emit(pages: Sequence[Path], found: Sequence[JudgedClaim], *, as_json: bool) -> None:
    written = [str(page) for page in pages]
    told = {"written": written, **({"summary": claims.as_mapping(found)} if found else {})}
    cli.emit(told, as_json=as_json, human=lambda: cli.say("\n".join(written)))


def _studies(folder: Path) -> list[Path]:
    """Return the reproductions in a folder, in the order in which they are listed."""
    return [folder / name for name in reproduced.EXPERIMENTS if (folder / name / reproduced.STATE).is_file()]


def _runs(folder: Path) -> list[Path]:
    """Return the single runs in a folder, by name."""
    return sorted(path.parent for path in folder.glob(f"*/{RUN}"))


def _deeper(folder: Path, reported: Container[Path]) -> list[Path]:
    """Return the folders in a folder that hold runs, sweeps or reproductions, and are not `reported` themselves."""
    found = {path.parent.parent for name in (RUN, reproduced.STATE, SWEEP_STATE) for path in folder.glob(f"*/*/{name}")}
    return sorted(each for each in found if each not in reported)


def _sweeps(folder: Path) -> list[Path]:
    """Return the sweeps in a folder, by name."""
    return sorted(path.parent for path in folder.glob(f"*/{SWEEP_STATE}"))
