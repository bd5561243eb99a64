"""A study: rows (systems) x seeds, one small JSON record each, run in processes, resumed where it stopped.

    def measure(job: Job) -> dict[str, float]:  # at a module's top level: worker processes import it
        return {"eer": train_and_test(job.settings, job.seed, job.faces)}

    study = Study(
        name="fedface",
        title="FedFace on synthetic faces",
        measure=measure,
        tables=(
            Table(
                "Table 1",
                rows=(
                    Row("fedavg", "FedAvg", {"method": "fedavg", "rounds": 8}, paper=("68.88",)),
                    Row("fedface", "FedFace", {"method": "fedface", "rounds": 8}, paper=("99.28",)),
                ),
                columns=(Column("EER", "eer", "percent"),),
                paper_columns=("LFW accuracy, %",),
            ),
        ),
        claims=(Claim("FedAvg collapses", greater="fedavg", lesser="fedface", metric="eer"),),
    )
    results = run_study(study, Path("out/fedface"), seeds=(0, 1, 2), jobs=8, faces=Path("synthetic112"))
    print(markdown(results))

A record is named by its row, its seed and a hash of its settings, so a changed setting is measured anew and nothing
else is. A run that fails is named at the end, its log stays beside the records, and the others go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final, Literal

from scipy.special import stdtrit

from mien.errors import ConfigError, CorruptDataError, MienError
from mien.shell.files import make_folder, read_limited, write_atomically
from simulation.faces import provenance
from simulation.faces.children import end_with_parent

FORMAT: Final = 1
MAX_RECORD_BYTES: Final = 1 << 20
LEVEL: Final = 0.95
TICK_S: Final = 1.0
Style = Literal["percent", "points", "number", "integer"]
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,79}")
_ONE_THREAD: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """One run: a row's settings under one seed, with the folder of faces on this machine (no part of the record)."""

    row: str
    seed: int
    settings: Mapping[str, Any]
    faces: Path | None = None


Measure = Callable[[Job], Mapping[str, Any]]
"""Returns a run's figures: numbers by name, and lists of numbers for curves; nothing of a face."""


@dataclass(frozen=True)
class Row:
    """A system of a table: a name for files, a label for people, its settings (plain data), the paper's figures."""

    name: str
    label: str
    settings: Mapping[str, Any]
    paper: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"row {self.name!r} cannot name a file; use lower-case letters, digits, '_', '.', '-'")


@dataclass(frozen=True)
class Column:
    """A figure of a table: its heading, the metric's name in the records, and how it is written."""

    label: str
    metric: str
    style: Style = "percent"
    digits: int = 2

    def text(self, value: float, *, signed: bool = False) -> str:
        """Return a value as the table writes it."""
        sign = "+" if signed else ""
        if self.style in ("percent", "points"):
            return f"{value * 100:{sign}.{self.digits}f}"
        if self.style == "integer":
            return f"{value:{sign}.0f}"
        return f"{value:{sign}.{self.digits}f}"


@dataclass(frozen=True)
class Table:
    """Rows side by side with the paper's figures; a row may stand in several tables and is measured once."""

    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    paper_columns: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if row.paper and len(row.paper) != len(self.paper_columns):
                raise ConfigError(
                    f"row {row.name} has {len(row.paper)} figures of the paper, not as table {self.title}"
                )


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper claims: `greater` exceeds `lesser` in `metric`; or both are equal `within` a bound."""

    text: str
    greater: str
    lesser: str
    metric: str
    within: float | None = None


@dataclass(frozen=True)
class Study:
    """What is measured and how it is shown. `data_sha256` names the data set and is part of every record's name."""

    name: str
    title: str
    measure: Measure
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    data_sha256: str = ""

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for row in (row for table in self.tables for row in table.rows):
            if seen.setdefault(row.name, _canonical(row.settings)) != _canonical(row.settings):
                raise ConfigError(f"row {row.name} stands in two tables with different settings; give it two names")
        if unknown := sorted({name for claim in self.claims for name in (claim.greater, claim.lesser)} - set(seen)):
            raise ConfigError(f"claims name rows that no table has: {', '.join(unknown)}")

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row once, in the order of the tables."""
        return tuple({row.name: row for table in self.tables for row in table.rows}.values())

    def file_of(self, row: Row, seed: int) -> str:
        """Return the name of a run's record: row, seed and a hash of study, data and settings."""
        text = _canonical([FORMAT, self.name, self.data_sha256, seed, row.settings])
        return f"{row.name}-s{seed}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


@dataclass(frozen=True)
class Failure:
    """A run that gave no record, and why."""

    row: str
    seed: int
    reason: str


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its t-interval; `low` and `high` are None for a single seed."""

    mean: float
    low: float | None
    high: float | None
    num: int


@dataclass(frozen=True)
class Results:
    """A study's records by (row, seed), and the runs that failed."""

    study: Study
    seeds: tuple[int, ...]
    records: Mapping[tuple[str, int], Mapping[str, Any]] = field(repr=False)
    failures: tuple[Failure, ...] = ()

    def values(self, row: str, metric: str) -> dict[int, float]:
        """Return a row's metric by seed, where it was measured."""
        found = {}
        for seed in self.seeds:
            value = self.records.get((row, seed), {}).get("metrics", {}).get(metric)
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[seed] = float(value)
        return found

    def estimate(self, row: str, metric: str) -> Estimate | None:
        """Return a row's mean over seeds with its interval; None where nothing was measured."""
        return estimate(list(self.values(row, metric).values()))

    def difference(self, greater: str, lesser: str, metric: str) -> Estimate | None:
        """Return the mean paired difference over the seeds that both rows have."""
        ours, theirs = self.values(greater, metric), self.values(lesser, metric)
        return estimate([ours[seed] - theirs[seed] for seed in ours if seed in theirs])

    def verdict(self, claim: Claim) -> str:
        """Return whether a claim holds: `holds`, `holds on average`, `does not hold` or `not measured`.

        An ordering holds if the paired difference's interval lies above zero, on average if only its mean does. A
        claimed equality holds if the mean difference is within the bound.
        """
        found = self.difference(claim.greater, claim.lesser, claim.metric)
        if found is None:
            return "not measured"
        if claim.within is not None:
            return "holds" if abs(found.mean) <= claim.within else "does not hold"
        if found.mean <= 0:
            return "does not hold"
        return "holds" if found.low is not None and found.low > 0 else "holds on average"


def run_study(
    study: Study,
    folder: Path,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    jobs: int = 1,
    faces: Path | None = None,
    tell: Callable[[str], None] = lambda _text: None,
    tick: Callable[[], None] = lambda: None,
) -> Results:
    """Return the study's results; runs whose record lies in `folder` are not repeated.

    `jobs` processes of one thread each take the open runs in the order of rows, seed by seed, so that early results
    cover every row. `tell` gets a line after each run; `tick` is called about once a second while runs go on.
    """
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}; at least one process has to work")
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise ConfigError(f"seeds are {list(seeds)}; give different whole numbers from 0 on")
    make_folder(folder)
    runs = [
        (Job(row.name, seed, row.settings, faces), folder / study.file_of(row, seed))
        for seed in seeds
        for row in study.rows
    ]
    todo = [run for run in runs if _read_record(run[1]) is None]
    if todo:
        tell(f"{study.name}: {len(runs) - len(todo)} of {len(runs)} runs are done, {len(todo)} to do with {jobs} jobs")
    failures = _measure_all(study.measure, todo, min(jobs, len(todo)), tell, tick)
    return read_results(study, folder, seeds=seeds, failures=tuple(failures))


def read_results(
    study: Study, folder: Path, *, seeds: Sequence[int] = (0, 1, 2), failures: tuple[Failure, ...] = ()
) -> Results:
    """Return what is on disk of a study, running nothing."""
    records = {}
    for row in study.rows:
        for seed in seeds:
            record = _read_record(folder / study.file_of(row, seed))
            if record is not None:
                records[row.name, seed] = record
    return Results(study, tuple(seeds), records, failures)


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return mean and two-sided 95 % t-interval of a sample; None for no values, no interval for one."""
    num = len(values)
    if num == 0:
        return None
    mean = math.fsum(values) / num
    if num == 1:
        return Estimate(mean, None, None, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (num - 1))
    half = t_quantile(LEVEL, num - 1) * deviation / math.sqrt(num)
    return Estimate(mean, mean - half, mean + half, num)


def t_quantile(level: float, degrees: int) -> float:
    """Return t with P(|T| <= t) = `level` for Student's t with `degrees` of freedom."""
    if degrees < 1 or not 0 < level < 1:
        raise ConfigError("a t quantile needs a level between 0 and 1 and at least one degree of freedom")
    return float(stdtrit(degrees, (1 + level) / 2))


def markdown(results: Results, *, command: str = "") -> str:
    """Return every table and claim as Markdown, with the command and seeds that give it again."""
    study = results.study
    lines = [f"## {study.title}", ""]
    if study.source:
        lines += [f"Source: {study.source}.", ""]
    seeds = ", ".join(map(str, results.seeds))
    lines += [*([f"`{command}`", ""] if command else []), f"Seeds {seeds}; mean ± 95 % t-interval over seeds.", ""]
    for note in study.notes:
        lines += [note, ""]
    for table in study.tables:
        lines += [f"### {table.title}", "", *table_lines(results, table), ""]
        if table.note:
            lines += [table.note, ""]
    if study.claims:
        lines += ["### What the paper claims, and whether it holds here", "", *claim_lines(results), ""]
    for failure in results.failures:
        lines.append(f"Not measured: {failure.row}, seed {failure.seed}: {failure.reason}")
    return "\n".join(lines).rstrip() + "\n"


def table_lines(results: Results, table: Table) -> list[str]:
    """Return one table as lines of Markdown."""
    headings = [*(f"paper: {h}" for h in table.paper_columns), *(heading(column) for column in table.columns)]
    lines = ["| " + " | ".join(["system", *headings, "runs"]) + " |", "|---" * (2 + len(headings)) + "|"]
    return [*lines, *("| " + " | ".join(cells) + " |" for cells in table_cells(results, table))]


def table_cells(results: Results, table: Table) -> list[tuple[str, ...]]:
    """Return a table's cells as text: label, the paper's figures, one cell a column, number of runs."""
    rows = []
    for row in table.rows:
        paper = row.paper or ("",) * len(table.paper_columns)
        ours = [cell_text(results.estimate(row.name, column.metric), column) for column in table.columns]
        runs = sum((row.name, seed) in results.records for seed in results.seeds)
        rows.append((row.label, *paper, *ours, str(runs)))
    return rows


def cell_text(found: Estimate | None, column: Column, *, signed: bool = False) -> str:
    """Return an estimate as a table writes it: mean ± half the interval."""
    if found is None:
        return "not measured"
    if found.high is None:
        return column.text(found.mean, signed=signed)
    return f"{column.text(found.mean, signed=signed)} ± {column.text(found.high - found.mean)}"


def claim_lines(results: Results) -> list[str]:
    """Return the claims as a Markdown table: text, paired difference, verdict."""
    lines = ["| claim | difference | here |", "|---|---|---|"]
    return [*lines, *("| " + " | ".join(cells) + " |" for cells in claim_cells(results))]


def claim_cells(results: Results) -> list[tuple[str, str, str]]:
    """Return each claim's text, its paired difference and whether it holds."""
    columns = {column.metric: column for table in results.study.tables for column in table.columns}
    cells = []
    for claim in results.study.claims:
        column = columns.get(claim.metric, Column(claim.metric, claim.metric, "number", 4))
        found = results.difference(claim.greater, claim.lesser, claim.metric)
        text = cell_text(found, column, signed=True) + (f" ({column.label})" if found else "")
        cells.append((claim.text, text, results.verdict(claim)))
    return cells


def heading(column: Column) -> str:
    """Return a column's heading with its unit."""
    return f"{column.label}, %" if column.style in ("percent", "points") else column.label


def _canonical(value: object) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError("a row's settings must be plain data (numbers, text, lists, mappings)") from error


def _read_record(path: Path) -> dict[str, Any] | None:
    """Return a finished run's record; None where there is none or what is there is damaged."""
    if not path.is_file():
        return None
    try:
        record = json.loads(read_limited(path, MAX_RECORD_BYTES, what="record"))
    except (json.JSONDecodeError, UnicodeDecodeError, CorruptDataError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("metrics"), dict) else None


# Processes: a pool of one for every worker, so that a worker that dies takes only its own run with it.


class _Worker:
    """A process that takes one run at a time; another one takes its place where it has died."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._pool: ProcessPoolExecutor | None = None
        self._process: BaseProcess | None = None

    def measure(self, job: Job, target: Path) -> Future[None]:
        """Begin a run, whose record becomes `target`."""
        if self._pool is not None:
            return self._pool.submit(_work, self._measure, job, target)
        before = set(multiprocessing.active_children())
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=end_with_parent)
        with _one_thread():
            begun = self._pool.submit(_work, self._measure, job, target)
        (self._process,) = set(multiprocessing.active_children()) - before
        return begun

    def reason(self, done: Future[None], log: Path) -> str | None:
        """Return why a run gave no record, None where it gave one; what is known of an unforeseen error is its log."""
        error = done.exception()
        if error is None:
            log.unlink(missing_ok=True)
            return None
        if isinstance(error, MienError):
            return f"{error.code}: {error.message}"
        if isinstance(error, BrokenProcessPool):
            code = self.stop()
            return _last_line(log) or f"its process ended with code {code}"
        with log.open("a", encoding="utf-8") as file:
            file.writelines(traceback.format_exception(error))
        return f"{type(error).__name__}: {error}"

    def stop(self) -> int | None:
        """End the process, whatever it is at, and return its exit code."""
        if self._pool is None or self._process is None:
            return None
        self._process.terminate()
        self._process.join()
        self._pool.shutdown(cancel_futures=True)
        self._pool = None
        return self._process.exitcode


def _measure_all(
    measure: Measure,
    todo: Sequence[tuple[Job, Path]],
    jobs: int,
    tell: Callable[[str], None],
    tick: Callable[[], None],
) -> list[Failure]:
    """Return the runs that failed, once every run has been tried."""
    left, started, failures, done = list(reversed(todo)), time.monotonic(), list[Failure](), 0
    workers = [_Worker(measure) for _ in range(jobs)]
    at: dict[Future[None], tuple[_Worker, Job, Path]] = {}

    def begin(worker: _Worker) -> None:
        if left:
            job, target = left.pop()
            at[worker.measure(job, target)] = (worker, job, target.with_suffix(".log"))

    try:
        for worker in workers:
            begin(worker)
        while at:
            tick()
            for future in wait(at, TICK_S, FIRST_COMPLETED).done:
                worker, job, log = at.pop(future)
                reason = worker.reason(future, log)
                failures += [Failure(job.row, job.seed, reason)] if reason is not None else []
                done += 1
                rest = (time.monotonic() - started) / done * (len(todo) - done)
                coming = f"about {_minutes(rest)} left" if done < len(todo) else "finished"
                state = "done" if reason is None else f"FAILED: {reason}"
                tell(f"{done}/{len(todo)} {job.row} seed {job.seed}: {state}; {coming}")
                begin(worker)
    finally:
        for worker in workers:
            worker.stop()
    return failures


def _work(measure: Measure, job: Job, target: Path) -> None:
    """Measure a run and write its record; what libraries say meanwhile goes into its log."""
    with target.with_suffix(".log").open("wb") as log:
        os.dup2(log.fileno(), 2)
    started, cpu = time.monotonic(), time.process_time()
    record = {
        "format": FORMAT,
        "row": job.row,
        "seed": job.seed,
        "settings": dict(job.settings),
        "metrics": dict(measure(job)),
        "cpu_s": round(time.process_time() - cpu, 2),
        "wall_s": round(time.monotonic() - started, 2),
        "commit": provenance.commit(),
    }
    write_atomically(target, json.dumps(record, indent=1, sort_keys=True, allow_nan=False).encode())


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that start in this block use one thread each, whatever library they load."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def _minutes(duration_s: float) -> str:
    return f"{duration_s:.0f} s" if duration_s < 100 else f"{duration_s / 60:.0f} min"
