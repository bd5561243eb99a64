"""A study: rows (systems) x seeds, one small JSON record each, run in processes, resumed where it stopped.

    def measure(job: Job) -> dict[str, float]:  # at a module's top level: worker processes import it
        return {"eer": train_and_test(job.settings, job.seed, job.faces)}

    study = Experiment(
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
    results = run_all(study, Path("out/fedface"), seeds=(0, 1, 2), jobs=8, faces=Path("synthetic112"))
    print(markdown(results))

A record is named by its row, its seed and a hash of its settings, so a changed setting is measured anew and nothing
else is. A run that fails is named at the end, its log stays beside the records, and the others go on.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from scipy.special import stdtrit

from mien.errors import ConfigError, CorruptDataError
from mien.records import from_mapping
from mien.shell.files import read_limited
from simulation.runs.spec import RunSpec

FORMAT: Final = 1
MAX_RECORD_BYTES: Final = 1 << 20
LEVEL: Final = 0.95
CLAIMS_HEAD: Final = "### What the paper claims, and whether it holds here"
Style = Literal["percent", "points", "number", "integer"]
Kind = Literal["paper", "why", "ours"]
Faces = Literal["rendered", "real"]
Trains = Literal["adapter", "blocks", "network"]
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,79}")


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
    """A system of a table: a name for files, a label for people, its settings (plain data), the paper's figures.

    A row of a sweep has a run as its setting `experiment`, and `changes` that make it of the sweep's base.
    """

    name: str
    label: str
    settings: Mapping[str, Any] = field(repr=False)
    paper: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"row {self.name!r} cannot name a file; use lower-case letters, digits, '_', '.', '-'")

    @property
    def spec(self) -> RunSpec:
        """The run of a sweep's row, under its own seed."""
        return from_mapping(RunSpec, self.settings["experiment"])


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
class Setting:
    """What a claim was asked in: whose faces, what was trained, and its place among a study's settings, fairest first.

    How fair a test is depends on these alone, and not on how it ends.
    """

    name: str = ""
    faces: Faces = "rendered"
    trains: Trains = "adapter"
    place: int = 0
    why: str = ""


@dataclass(frozen=True)
class Claim:
    """An ordering: `greater` exceeds `lesser` in `metric`; or both are equal `within` a bound. No `lesser` is 0.

    A claim of a paper is a test `of` one of `simulation/papers/claims.toml`, "PAPER.NAME"; one that tells why another
    fails is of kind "why", and every other one is "ours". Without a `setting` it is of the one that its text begins
    with ("wrong labels: ..."), or of the study's own.
    """

    text: str
    greater: str
    lesser: str
    metric: str
    within: float | None = None
    kind: Kind = "ours"
    of: str = ""
    setting: str = ""

    def __post_init__(self) -> None:
        if (self.kind == "paper") != bool(self.of):
            raise ConfigError(f"claim {self.text!r} is of kind {self.kind}, and a test of {self.of or 'no paper'}")

    @property
    def rows(self) -> set[str]:
        """The rows that it compares."""
        return {self.greater, self.lesser} - {""}


@dataclass(frozen=True)
class Experiment:
    """A measurement: its settings and seeds, how it is shown, and what is claimed of it.

    `data_sha256` names the data set and is part of every record's name. A sweep keeps the run that its rows change as
    `base`, in plain data.
    """

    name: str
    title: str
    measure: Measure
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    data_sha256: str = ""
    base: Mapping[str, Any] = field(default_factory=dict, repr=False)
    seeds: tuple[int, ...] = (0, 1, 2)
    settings: tuple[Setting, ...] = ()

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for row in (row for table in self.tables for row in table.rows):
            if seen.setdefault(row.name, _canonical(row.settings)) != _canonical(row.settings):
                raise ConfigError(f"row {row.name} stands in two tables with different settings; give it two names")
        if unknown := sorted({name for claim in self.claims for name in claim.rows} - set(seen)):
            raise ConfigError(f"claims name rows that no table has: {', '.join(unknown)}")
        if unnamed := sorted({claim.setting for claim in self.claims} - {"", *(each.name for each in self.settings)}):
            raise ConfigError(f"claims name settings that the study lacks: {', '.join(unnamed)}")

    def setting_of(self, claim: Claim) -> Setting:
        """Return what a claim is asked in."""
        named = {each.name: each for each in self.settings}
        return named.get(claim.setting or claim.text.partition(": ")[0], named.get("", Setting()))

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

    experiment: Experiment
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
        """Return the mean paired difference over the seeds that both rows have; no `lesser` is 0."""
        ours = self.values(greater, metric)
        theirs = self.values(lesser, metric) if lesser else dict.fromkeys(ours, 0.0)
        return estimate([ours[seed] - theirs[seed] for seed in ours if seed in theirs])

    def harmed(self) -> list[str]:
        """Return a sentence for each row whose training made the model worse, by more than chance explains.

        That is where the interval of `eer` - `eer_before` over seeds lies above zero; of one seed, where the interval
        over identities does. Rows without these figures are left out.
        """
        found = []
        for row in self.experiment.rows:
            before, after = self.values(row.name, "eer_before"), self.values(row.name, "eer")
            both = [seed for seed in after if seed in before]
            lows = self.values(row.name, "eer_low")
            gain = estimate([after[seed] - before[seed] for seed in both])
            low = None if gain is None else gain.low
            if gain is not None and low is None:
                low = lows[both[0]] - before[both[0]] if both[0] in lows else None
            if gain is not None and low is not None and low > 0:
                means = [math.fsum(each[seed] for seed in both) / len(both) for each in (before, after)]
                found.append(f"{row.label}: {_worse(*means)}")
        return found

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


def harm(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return a sentence where training made a model worse by more than chance explains, empty where it did not.

    `before` and `after` are what a run measured; chance is the interval of the later EER over identities.
    """
    return _worse(before["eer"], after["eer"]) if after["eer_low"] > before["eer"] else ""


def _worse(before: float, after: float) -> str:
    return (
        f"training made the model worse: EER {before:.2%} before, {after:.2%} after; train less "
        "(task.local.lr, task.rounds), or on other faces"
    )


def read_results(
    study: Experiment, folder: Path, *, seeds: Sequence[int] = (0, 1, 2), failures: tuple[Failure, ...] = ()
) -> Results:
    """Return the results of a study on disk, running nothing."""
    records = {}
    for row in study.rows:
        for seed in seeds:
            record = read_record(folder / study.file_of(row, seed))
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
    study = results.experiment
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
    for worse in results.harmed():
        lines += [f"**Worse than before training.** {worse}.", ""]
    if study.claims:
        lines += [CLAIMS_HEAD, "", *claim_lines(results), ""]
    for failure in results.failures:
        lines.append(f"Not measured: {failure.row}, seed {failure.seed}: {failure.reason}")
    return "\n".join(lines).rstrip() + "\n"


def table_lines(results: Results, table: Table) -> list[str]:
    """Return one table as lines of Markdown."""
    headings = [*(f"paper: {h}" for h in table.paper_columns), *(heading(column) for column in table.columns)]
    lines = ["| " + " | ".join(["system", *headings, "runs"]) + " |", "|---" * (2 + len(headings)) + "|"]
    return [*lines, *("| " + " | ".join(cells) + " |" for cells in table_cells(results, table))]


def table_cells(results: Results, table: Table) -> list[tuple[str, ...]]:
    """Return a table's cells as text: label, the paper's figures, one cell a column, number of runs.

    A figure that not all runs have says how many do.
    """
    rows = []
    for row in table.rows:
        paper = row.paper or ("",) * len(table.paper_columns)
        runs = sum((row.name, seed) in results.records for seed in results.seeds)
        found = [(results.estimate(row.name, column.metric), column) for column in table.columns]
        ours = [
            cell_text(each, column) + (f" ({each.num} of {runs})" if each is not None and each.num < runs else "")
            for each, column in found
        ]
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
    columns = {column.metric: column for table in results.experiment.tables for column in table.columns}
    cells = []
    for claim in results.experiment.claims:
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


def read_record(path: Path) -> dict[str, Any] | None:
    """Return a finished run's record; None where there is none or what is there is damaged."""
    if not path.is_file():
        return None
    try:
        record = json.loads(read_limited(path, MAX_RECORD_BYTES, what="record"))
    except (json.JSONDecodeError, UnicodeDecodeError, CorruptDataError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("metrics"), dict) else None
