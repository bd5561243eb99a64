"""Sweeps: one experiment under several settings and seeds, each run a folder of its own, resumed where it stopped.

    [sweep]
    seeds = [0, 1, 2]
    [sweep.grid]                      # every combination
    "task.local.lr" = [0.1, 0.3]
    "task.rounds" = [8, 24]
    [[sweep.cases]]                   # several fields at once; each case goes through the whole grid
    name = "published"
    [[sweep.cases]]
    name = "private"
    label = "FedFace, private form"
    "task.privacy.reveals" = []

A field is named by its path in the experiment's file. A quoted path replaces what it names, tables included. `paper` of
a case holds the paper's figures as text, one for each of `sweep.paper_columns`.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError
from mien.records import from_mapping
from mien.shell.files import make_folder, read_limited, write_atomically
from simulation.faces.sources import data_sha256
from simulation.runs.experiment import ExperimentSpec, describe, from_data, load_data, with_changes
from simulation.runs.journal import num_rounds, settings_sha256
from simulation.runs.locking import only_writer
from simulation.runs.outputs import refuse_others
from simulation.runs.settings import value_of
from simulation.runs.study import Column, Job, Measure, Results, Row, Study, Table, read_results, run_study

STATE: Final = "sweep.json"
MAX_STATE_BYTES: Final = 4 << 20
MAX_RUNS: Final = 10_000
_FIELDS: Final = ("seeds", "grid", "cases", "paper_columns")
_OF_A_CASE: Final = ("name", "label", "paper")
_OWN_OPTIONS: Final = (
    "; options belong to one method: write a [[sweep.cases]] for each method, with task.method and with "
    '"task.options" = {}, which replaces all of them'
)
_OF_SEEDS: Final = ("partition.seed", "task.seed", "name", "sweep")


@dataclass(frozen=True)
class Point:
    """One setting of a sweep: a name for files, a label for people, the fields that differ, the paper's figures.

    `data_sha256` is the digest of its faces where they are others than the sweep's.
    """

    name: str
    label: str
    changes: Mapping[str, Any]
    spec: ExperimentSpec = field(repr=False)
    paper: tuple[str, ...] = ()
    data_sha256: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """What the records of its runs are records of."""
        faces = {"data_sha256": self.data_sha256} if self.data_sha256 else {}
        return {"experiment": describe(self.spec), "changes": self.changes, **faces}


@dataclass(frozen=True)
class Sweep:
    """What is swept: the experiment without its table [sweep] as plain data, its points, and the seeds of each."""

    base: Mapping[str, Any] = field(repr=False)
    points: tuple[Point, ...]
    seeds: tuple[int, ...] = (0,)
    paper_columns: tuple[str, ...] = ()

    @property
    def spec(self) -> ExperimentSpec:
        """The experiment as it is without any change."""
        return from_data(self.base)

    @property
    def num_rounds(self) -> int:
        """Rounds of all runs."""
        return sum(point.spec.task.rounds for point in self.points) * len(self.seeds)


def load_sweep(path: Path, settings: Sequence[str] = (), num_seeds: int | None = None) -> Sweep:
    """Return the sweep of an experiment's file; `settings` are further grid lines FIELD=VALUE,VALUE.

    `num_seeds` stands in for the file's seeds: 0, 1, ... Raises as `make_sweep` and `simulation.runs.experiment.load`.
    """
    if num_seeds is not None and not 1 <= num_seeds <= MAX_RUNS:
        raise ConfigError(f"--seeds is {num_seeds}; it must lie between 1 and {MAX_RUNS}")
    data, table = load_data(path)
    grid = dict(grid_line(text) for text in settings)
    return make_sweep(data, table, grid, None if num_seeds is None else tuple(range(num_seeds)))


def make_sweep(
    data: Mapping[str, Any],
    table: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]] = {},
    seeds: Sequence[int] | None = None,
) -> Sweep:
    """Return the sweep of a table [sweep] over an experiment, `grid` joining or replacing fields of its grid.

    Raises ConfigError naming the field that is wrong or unknown, for two points of one name, and for too many runs.
    """
    if unknown := sorted(set(table) - set(_FIELDS)):
        raise ConfigError(f"unknown field 'sweep.{unknown[0]}'; known fields: {', '.join(_FIELDS)}")
    axes = {**_grid(table.get("grid", {})), **grid}
    chosen = _seeds(table.get("seeds", [0]) if seeds is None else seeds)
    cases = [_case(case) for case in _tables(table.get("cases", [{}]))]
    total = len(cases) * len(chosen)
    for values in axes.values():
        total *= len(values)
    if total > MAX_RUNS:
        raise ConfigError(f"the sweep has {total} runs; more than {MAX_RUNS} are a mistake: name fewer values")
    points = [
        _point(data, named, {**changes, **dict(zip(axes, values, strict=True))}, tuple(axes))
        for named, changes in cases
        for values in itertools.product(*axes.values())
    ]
    names = [point.name for point in points]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two settings of the sweep are named {twice[0]!r}; give each case a name of its own")
    return Sweep(data, tuple(points), chosen, _texts(table.get("paper_columns", []), "sweep.paper_columns"))


def grid_line(text: str) -> tuple[str, list[Any]]:
    """Return the field and values of FIELD=VALUE,VALUE; a value is written as in TOML, text also without quotes."""
    name, sign, values = text.partition("=")
    if not sign or not name.strip() or not values.strip():
        raise ConfigError(f"--set is {text!r}; write FIELD=VALUE,VALUE such as task.local.lr=0.01,0.1")
    try:
        return name.strip(), _checked(name, tomllib.loads(f"x = [{values}]")["x"])
    except tomllib.TOMLDecodeError:
        return name.strip(), _checked(name, [value_of(each) for each in values.split(",")])


def _checked(name: str, values: Any) -> list[Any]:
    if name.strip() in _OF_SEEDS:
        raise ConfigError(f"{name.strip()} cannot be swept; the sweep's seeds and names say it (--seeds, sweep.seeds)")
    if not isinstance(values, list) or not values:
        raise ConfigError(f"sweep.grid.{name} is {values!r}; give a list of values, such as [0.01, 0.1]")
    try:
        different = {json.dumps(value, sort_keys=True, allow_nan=False) for value in values}
    except (TypeError, ValueError):  # TOML knows dates and nan
        raise ConfigError(f"sweep.grid.{name} is {values!r}; values are numbers, texts, lists or tables") from None
    if len(different) != len(values):
        raise ConfigError(f"sweep.grid.{name} names a value twice; leave one out")
    return values


def _grid(table: Any, where: str = "") -> dict[str, list[Any]]:
    """Return field -> values of a table whose leaves are lists."""
    if not isinstance(table, Mapping):
        raise ConfigError("sweep.grid must be a table of fields with lists of values")
    found: dict[str, list[Any]] = {}
    for key, value in table.items():
        name = where + key
        if isinstance(value, Mapping):
            found |= _grid(value, name + ".")
        else:
            found[name] = _checked(name, value)
    return found


def _tables(cases: Any) -> list[Mapping[str, Any]]:
    if not isinstance(cases, list) or not cases or not all(isinstance(case, Mapping) for case in cases):
        raise ConfigError("sweep.cases must be tables [[sweep.cases]], one a setting")
    return cases


def _texts(values: Any, where: str) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{where} is {values!r}; give a list of texts")
    return tuple(values)


def _case(case: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a case calls itself with the paper's figures, and its fields with their values."""
    named: dict[str, Any] = {key: str(case[key]) for key in ("name", "label") if key in case}
    named["paper"] = _texts(case.get("paper", []), "sweep.cases.paper")
    changes = _leaves({key: value for key, value in case.items() if key not in _OF_A_CASE})
    for name in changes:
        if name in _OF_SEEDS:
            raise ConfigError(f"{name} cannot be swept; the sweep's seeds and names say it (--seeds, sweep.seeds)")
    return named, changes


def _leaves(table: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and "." not in key:
            found |= _leaves(value, f"{where}{key}.")
        else:
            found[where + key] = value
    return found


def _seeds(seeds: Any) -> tuple[int, ...]:
    right = isinstance(seeds, list | tuple) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not right or len(set(seeds)) != len(seeds):
        raise ConfigError(f"sweep.seeds is {seeds!r}; give different whole numbers from 0 on, at least one")
    return tuple(seeds)


def _point(data: Mapping[str, Any], named: Mapping[str, Any], changes: dict[str, Any], axes: tuple[str, ...]) -> Point:
    varying = {name: changes[name] for name in axes}
    short = "_".join(f"{name.rpartition('.')[2]}-{_word(value)}" for name, value in varying.items())
    label = ", ".join(f"{name.rpartition('.')[2]} {_word(value)}" for name, value in varying.items())
    name = "_".join(part for part in (named.get("name", "" if axes else "base"), short) if part)
    slug = re.sub(r"[^a-z0-9_.-]+", "-", name.lower()).strip("-._") or "base"
    if len(slug) > 60:
        slug = f"{slug[:50]}-{settings_sha256(changes)[:8]}"
    shown = " \u00b7 ".join(part for part in (named.get("label", named.get("name", "")), label) if part)
    try:
        return Point(slug, shown or "as written", changes, from_data(changed(data, changes)), named["paper"])
    except ConfigError as error:
        has_others_options = "task.method" in changes and "task.options." in str(error)
        raise ConfigError(
            f"{error}, in the sweep's setting {slug}{_OWN_OPTIONS if has_others_options else ''}"
        ) from error


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def changed(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment's plain data with some fields set; raises ConfigError for a path through no table."""
    new: dict[str, Any] = copy.deepcopy(dict(data))
    for path, value in changes.items():
        *tables, last = path.split(".")
        place: Any = new
        for table in tables:
            place = place.setdefault(table, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise ConfigError(f"{path} names no field: {'.'.join(tables)} is no table")
        place[last] = value
    return new


def rounds_done(sweep: Sweep, out: Path) -> int:
    """Return how many rounds of all runs are on disk, without reading more than is needed."""
    names = (run_name(point.name, seed) for point in sweep.points for seed in sweep.seeds)
    return sum(num_rounds(out / "runs" / name / "records.jsonl") for name in names)


# Running one: a study whose rows are the points, and whose measurement is an experiment's run.


def study_of(sweep: Sweep, measure: Measure, data_sha256: str) -> Study:
    """Return the sweep as a study: a row a point, columns for the figures of the runs' evaluations."""
    spec = sweep.spec
    rows = tuple(Row(p.name, p.label, p.settings, p.paper) for p in sweep.points)
    columns = (
        Column("EER before", "eer_before"),
        Column("EER", "eer"),
        *(Column(f"TAR at FMR {target * 100:g} %", f"tar_{target:g}") for target in spec.evaluation.targets),
        Column("processor time, s", "cpu_s", "number", 0),
    )
    notes = (spec.about,) if spec.about else ()
    return Study(
        spec.name,
        spec.name,
        measure,
        (Table("Settings", rows, columns, sweep.paper_columns),),
        (),
        spec.paper,
        notes,
        data_sha256,
    )


def measure_run(job: Job, *, runs: Path, root: Path, events: Path | None = None) -> dict[str, Any]:
    """Return the figures of one run, made or taken up again in its folder below `runs`, its rounds also in `events`."""
    from simulation.runs.export import TensorBoard
    from simulation.runs.runs import RunFolder, run_experiment

    spec = with_changes(from_mapping(ExperimentSpec, job.settings["experiment"]), seed=job.seed)
    folder = runs / run_name(job.row, job.seed)
    going_on = RunFolder(folder).experiment.is_file()
    write = TensorBoard.watching(events / folder.name) if events else None
    result = run_experiment(
        spec,
        folder,
        root,
        resume=going_on,
        tell=lambda _text: None,
        after_round=lambda record, _total: write(record) if write else None,
    )
    after = result["after"]
    figures = {"eer_before": result["before"]["eer"], "eer": after["eer"]}
    figures |= {f"tar_{point['target_fmr']:g}": point["tar"] for point in after["points"] if "tar" in point}
    return {**figures, "cpu_s": sum(result["run"]["cpu_s"].values())}


def run_name(row: str, seed: int) -> str:
    """Return the name of a run's folder."""
    return f"{row}-s{seed}"


def run_sweep(
    sweep: Sweep,
    out: Path,
    root: Path,
    *,
    jobs: int = 1,
    command: str = "",
    events: Path | None = None,
    tell: Callable[[str], None] = lambda _text: None,
    tick: Callable[[], None] = lambda: None,
) -> Results:
    """Return the sweep's results, its runs under `out`/runs and a small record of each under `out`/records.

    What is measured is not measured again; runs that were stopped go on. `events` is where TensorBoard's files go, if
    anywhere; `tick` is called now and then meanwhile.
    Raises AlreadyExistsError for a folder that holds runs of other settings or of other faces, or another command's
    records, and for one that another process writes.
    """
    runs = out / "runs"
    measure = functools.partial(measure_run, runs=runs, root=root, events=events)
    sweep, faces = _with_faces(sweep, root)
    study = study_of(sweep, measure, faces)
    _check_same(sweep, out, study.data_sha256)
    make_folder(out)
    with only_writer(out):
        make_folder(out / "records")
        make_folder(runs)
        write_state(sweep, out, study.data_sha256, command)
        return run_study(study, out / "records", seeds=sweep.seeds, jobs=jobs, tell=tell, tick=tick)


def _with_faces(sweep: Sweep, root: Path) -> tuple[Sweep, str]:
    """Return the sweep with the digests of its points' faces, and the digest of its own."""
    digest_of = functools.cache(lambda faces: data_sha256(faces, root))
    own = digest_of(sweep.spec.faces)
    points = (replace(p, data_sha256="" if (its := digest_of(p.spec.faces)) == own else its) for p in sweep.points)
    return replace(sweep, points=tuple(points)), own


def read_sweep(out: Path) -> tuple[Sweep, Results, str]:
    """Return the sweep that a folder holds, what is measured of it, and its command; nothing is run.

    Raises CorruptDataError for a damaged folder.
    """
    state = _read_state(out)
    try:
        points = tuple(
            Point(
                p["name"],
                p["label"],
                p["changes"],
                from_data(changed(state["base"], p["changes"])),
                tuple(p["paper"]),
                str(p.get("data_sha256", "")),
            )
            for p in state["points"]
        )
        sweep = Sweep(state["base"], points, _seeds(state["seeds"]), tuple(state["paper_columns"]))
        study = study_of(sweep, _not_now, str(state["data_sha256"]))
        return sweep, read_results(study, out / "records", seeds=sweep.seeds), str(state["command"])
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"{out / STATE} is damaged; run mien-sim sweep again") from error


def _not_now(_job: Job) -> dict[str, Any]:
    raise ConfigError("this study is only read; run it with mien-sim sweep")


def write_state(sweep: Sweep, out: Path, data: str, command: str) -> None:
    """Write what a folder's runs are runs of: settings, seeds, the digest of the faces, the command."""
    points = [
        {"name": p.name, "label": p.label, "changes": dict(p.changes), "paper": p.paper, "data_sha256": p.data_sha256}
        for p in sweep.points
    ]
    state = {
        "base": sweep.base,
        "points": points,
        "seeds": sweep.seeds,
        "paper_columns": sweep.paper_columns,
        "data_sha256": data,
        "command": command,
    }
    write_atomically(out / STATE, (json.dumps(state, indent=1) + "\n").encode())


def _read_state(out: Path) -> dict[str, Any]:
    try:
        state = json.loads(read_limited(out / STATE, MAX_STATE_BYTES, what=STATE))
    except ValueError as error:
        raise CorruptDataError(f"{out / STATE} is damaged; run mien-sim sweep again") from error
    if not isinstance(state, dict):
        raise CorruptDataError(f"{out / STATE} is damaged; run mien-sim sweep again")
    return state


def _check_same(sweep: Sweep, out: Path, data: str) -> None:
    """Raise AlreadyExistsError where `out` holds runs of another experiment, of other faces, or of other settings."""
    from simulation.runs.runs import read_json

    another = "and they are not mixed; name a new folder with --out"
    refuse_others(out, but=STATE)
    if (out / STATE).is_file():
        state = _read_state(out)
        if state.get("base") != json.loads(json.dumps(sweep.base)):
            raise AlreadyExistsError(
                f"{out} holds a sweep of another experiment, or of this one before it was changed, {another}"
            )
        if state.get("data_sha256") != data:
            raise AlreadyExistsError(f"{out} holds runs on other faces than {sweep.spec.name} finds now, {another}")
        faces = {point.name: point.data_sha256 for point in sweep.points}
        for before in state.get("points", ()):
            name = before.get("name")
            if name in faces and before.get("data_sha256", faces[name]) != faces[name]:
                raise AlreadyExistsError(f"{out} holds runs of {name} on other faces than it finds now, {another}")
    for point, seed in itertools.product(sweep.points, sweep.seeds):
        kept = out / "runs" / run_name(point.name, seed) / "experiment.json"
        if kept.is_file() and read_json(kept) != describe(with_changes(point.spec, seed=seed)):
            raise AlreadyExistsError(f"{kept.parent} holds a run with other settings, {another}")
