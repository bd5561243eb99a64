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
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mien.errors import AlreadyExistsError, ConfigError, CorruptDataError
from mien.records import from_mapping, to_mapping
from mien.shell.files import make_folder, read_limited, write_atomically
from mien.shell.settings import value_of
from simulation.faces.sources import data_sha256
from simulation.runs.experiment import Column, Experiment, Job, Results, Row, Table, read_results
from simulation.runs.pool import run_all
from simulation.runs.records import (
    RunFolder,
    num_rounds,
    only_writer,
    read_json,
    refuse_others,
    settings_sha256,
)
from simulation.runs.spec import RunSpec, from_data, load_data, with_changes

STATE: Final = "sweep.json"
MAX_STATE_BYTES: Final = 4 << 20
MAX_RUNS: Final = 10_000
_FIELDS: Final = ("seeds", "grid", "cases", "paper_columns")
_OF_A_CASE: Final = ("name", "label", "paper")
_OWN_OPTIONS: Final = (
    "; options belong to one method: write a [[sweep.cases]] for each method, with task.method and with "
    '"task.options" = {}, which replaces all of them'
)
_OF_SEEDS: Final = ("partition.seed", "task.seed", "model.seed", "name", "sweep")


def base_of(sweep: Experiment) -> RunSpec:
    """Return the run that a sweep is of, as it is without any change."""
    return from_data(sweep.base)


def num_rounds_of(sweep: Experiment) -> int:
    """Return the rounds of all runs."""
    return sum(row.spec.num_rounds for row in sweep.rows) * len(sweep.seeds)


def load_sweep(
    path: Path,
    settings: Sequence[str] = (),
    num_seeds: int | None = None,
    faces: Mapping[str, str] = MappingProxyType({}),
) -> Experiment:
    """Return the sweep of an experiment's file; `settings` are further grid lines FIELD=VALUE,VALUE.

    `num_seeds` stands in for the file's seeds: 0, 1, ..., and `faces`, unless empty, for its [[faces]]. Raises as
    `make_sweep` and `simulation.runs.spec.load`.
    """
    if num_seeds is not None and not 1 <= num_seeds <= MAX_RUNS:
        raise ConfigError(f"--seeds is {num_seeds}; it must lie between 1 and {MAX_RUNS}")
    data, table = load_data(path, faces)
    grid = dict(grid_line(text) for text in settings)
    return make_sweep(data, table, grid, None if num_seeds is None else tuple(range(num_seeds)))


def make_sweep(
    data: Mapping[str, Any],
    table: Mapping[str, Any],
    grid: Mapping[str, Sequence[Any]] = {},
    seeds: Sequence[int] | None = None,
) -> Experiment:
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
    rows = [
        _row(data, named, {**changes, **dict(zip(axes, values, strict=True))}, tuple(axes))
        for named, changes in cases
        for values in itertools.product(*axes.values())
    ]
    names = Counter(row.name for row in rows)
    if twice := sorted(name for name, times in names.items() if times > 1):
        raise ConfigError(f"two settings of the sweep are named {twice[0]!r}; give each case a name of its own")
    paper_columns = _texts(table.get("paper_columns", []), "sweep.paper_columns")
    return _experiment(data, rows, chosen, paper_columns)


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
    changes = leaves({key: value for key, value in case.items() if key not in _OF_A_CASE})
    for name in changes:
        if name in _OF_SEEDS:
            raise ConfigError(f"{name} cannot be swept; the sweep's seeds and names say it (--seeds, sweep.seeds)")
    return named, changes


def leaves(table: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return field -> value of a table whose fields are named by their path; a quoted path keeps what it holds."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and "." not in key:
            found |= leaves(value, f"{where}{key}.")
        else:
            found[where + key] = value
    return found


def _seeds(seeds: Any) -> tuple[int, ...]:
    right = isinstance(seeds, list | tuple) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not right or len(set(seeds)) != len(seeds):
        raise ConfigError(f"sweep.seeds is {seeds!r}; give different whole numbers from 0 on, at least one")
    return tuple(seeds)


def _row(data: Mapping[str, Any], named: Mapping[str, Any], changes: dict[str, Any], axes: tuple[str, ...]) -> Row:
    varying = {name: changes[name] for name in axes}
    short = "_".join(f"{name.rpartition('.')[2]}-{_word(value)}" for name, value in varying.items())
    label = ", ".join(f"{name.rpartition('.')[2]} {_word(value)}" for name, value in varying.items())
    name = "_".join(part for part in (named.get("name", "" if axes else "base"), short) if part)
    slug = re.sub(r"[^a-z0-9_.-]+", "-", name.lower()).strip("-._") or "base"
    if len(slug) > 60:
        slug = f"{slug[:50]}-{settings_sha256(changes)[:8]}"
    shown = " \u00b7 ".join(part for part in (named.get("label", named.get("name", "")), label) if part)
    try:
        return Row(slug, shown or "as written", _settings(data, changes), named["paper"])
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


def rounds_done(sweep: Experiment, out: Path) -> int:
    """Return how many rounds of all runs are on disk, without reading more than is needed."""
    names = (run_name(row.name, seed) for row in sweep.rows for seed in sweep.seeds)
    return sum(num_rounds(out / "runs" / name / "records.jsonl") for name in names)


def _experiment(
    base: Mapping[str, Any], rows: Sequence[Row], seeds: tuple[int, ...], paper: tuple[str, ...], data: str = ""
) -> Experiment:
    """Return a sweep, which is run by `run_sweep`: one table, with columns for the figures of its runs' evaluations."""
    spec = from_data(base)
    tars = [(f"TAR at FMR {target * 100:g} %", f"tar_{target:g}") for target in spec.evaluation.targets]
    own = [] if spec.personal is None else [*tars, ("rank 1", "rank1")]
    columns = (
        Column("EER before", "eer_before"),
        Column("EER", "eer"),
        *(Column(label, metric) for label, metric in tars),
        *(Column(f"clients' people: {label}", f"personal.{metric}") for label, metric in own),
        Column("processor time, s", "cpu_s", "number", 0),
    )
    table = Table("Settings", tuple(rows), columns, paper)
    notes = (spec.about,) if spec.about else ()
    return Experiment(spec.name, spec.name, _not_now, (table,), (), spec.paper, notes, data, base, seeds)


def measure_run(job: Job, *, runs: Path, root: Path, events: Path | None = None) -> dict[str, Any]:
    """Return the figures of one run, made or taken up again in its folder below `runs`, its rounds also in `events`."""
    from simulation.runs.export import TensorBoard
    from simulation.runs.run import run_experiment

    spec = from_mapping(RunSpec, job.settings["experiment"])
    if spec.code is not None:
        spec.code.enter()
    spec = with_changes(spec, seed=job.seed)
    folder = runs / run_name(job.row, job.seed)
    going_on = RunFolder(folder).experiment.is_file()
    with TensorBoard.watching(events / folder.name if events else None) as write:
        result = run_experiment(
            spec,
            folder,
            root,
            resume=going_on,
            tell=lambda _text: None,
            after_round=lambda record, _total: write(record),
        )
    after = result["after"]
    figures = {"eer_before": result["before"]["eer"], "eer": after["eer"], "eer_low": after["eer_low"]}
    figures |= {f"tar_{point['target_fmr']:g}": point["tar"] for point in after["points"] if "tar" in point}
    figures |= {f"personal.{name}": value for name, value in result.get("personal", {}).get("figures", {}).items()}
    return {**figures, "cpu_s": sum(result["run"]["cpu_s"].values())}


def run_name(row: str, seed: int) -> str:
    """Return the name of a run's folder."""
    return f"{row}-s{seed}"


def run_sweep(
    sweep: Experiment,
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
    sweep = replace(_with_faces(sweep, root), measure=measure)
    _check_same(sweep, out)
    make_folder(out)
    with only_writer(out):
        make_folder(out / "records")
        make_folder(runs)
        write_state(sweep, out, command)
        return run_all(sweep, out / "records", seeds=sweep.seeds, jobs=jobs, tell=tell, tick=tick)


def _with_faces(sweep: Experiment, root: Path) -> Experiment:
    """Return the sweep with the digest of its faces, and in its rows' settings those of others where they have them."""
    digest_of = functools.cache(lambda faces: data_sha256(faces, root))
    own = digest_of(base_of(sweep).faces)
    (table,) = sweep.tables
    rows = tuple(row if (its := digest_of(row.spec.faces)) == own else _on(row, its) for row in table.rows)
    return replace(sweep, tables=(replace(table, rows=rows),), data_sha256=own)


def _on(row: Row, faces: str) -> Row:
    """Return a row whose faces are others than the sweep's."""
    return replace(row, settings={**row.settings, "data_sha256": faces}) if faces else row


def _settings(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the records of a row's runs are records of."""
    return {"experiment": to_mapping(from_data(changed(base, changes))), "changes": changes}


def _faces_of(row: Mapping[str, Any]) -> str:
    """Return the digest of a row's faces in plain data, empty where they are the sweep's."""
    return str(row.get("data_sha256", ""))


def command_of(experiment: Path, settings: Sequence[str], num_seeds: int | None, faces: str = "") -> str:
    """Return the command that gives a sweep again; where its faces lie and how many processes work is left out.

    `faces` is their name where they were named in place of the file's.
    """
    words = ["mien-sim", "sweep", str(experiment)]
    words += [word for text in settings for word in ("--set", text)]
    words += ["--faces", faces] if faces else []
    return shlex.join([*words, *(["--seeds", str(num_seeds)] if num_seeds else [])])


def read_sweep(out: Path) -> tuple[Results, str]:
    """Return the results of the sweep that a folder holds, and its command; nothing is run.

    Raises CorruptDataError for a damaged folder.
    """
    state = _read_state(out)
    try:
        rows = [
            _on(Row(p["name"], p["label"], _settings(state["base"], p["changes"]), tuple(p["paper"])), _faces_of(p))
            for p in state["points"]
        ]
        columns = tuple(state["paper_columns"])
        sweep = _experiment(state["base"], rows, _seeds(state["seeds"]), columns, str(state["data_sha256"]))
        return read_results(sweep, out / "records", seeds=sweep.seeds), str(state["command"])
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"{out / STATE} is damaged; run mien-sim sweep again") from error


def _not_now(_job: Job) -> dict[str, Any]:
    raise ConfigError("this study is only read; run it with mien-sim sweep")


def write_state(sweep: Experiment, out: Path, command: str) -> None:
    """Write what a folder's runs are runs of: settings, seeds, the digest of the faces, the command."""
    (table,) = sweep.tables
    points = [
        {
            "name": row.name,
            "label": row.label,
            "changes": dict(row.settings["changes"]),
            "paper": row.paper,
            "data_sha256": _faces_of(row.settings),
        }
        for row in table.rows
    ]
    state = {
        "base": sweep.base,
        "points": points,
        "seeds": sweep.seeds,
        "paper_columns": table.paper_columns,
        "data_sha256": sweep.data_sha256,
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


def _check_same(sweep: Experiment, out: Path) -> None:
    """Raise AlreadyExistsError where `out` holds runs of another experiment, of other faces, or of other settings."""
    another = "and they are not mixed; name a new folder with --out"
    refuse_others(out, but=STATE)
    if (out / STATE).is_file():
        state = _read_state(out)
        if state.get("base") != json.loads(json.dumps(sweep.base)):
            raise AlreadyExistsError(
                f"{out} holds a sweep of another experiment, or of this one before it was changed, {another}"
            )
        if state.get("data_sha256") != sweep.data_sha256:
            raise AlreadyExistsError(f"{out} holds runs on other faces than {sweep.name} finds now, {another}")
        faces = {row.name: _faces_of(row.settings) for row in sweep.rows}
        for before in state.get("points", ()):
            name = before.get("name")
            if name in faces and before.get("data_sha256", faces[name]) != faces[name]:
                raise AlreadyExistsError(f"{out} holds runs of {name} on other faces than it finds now, {another}")
    for row, seed in itertools.product(sweep.rows, sweep.seeds):
        kept = out / "runs" / run_name(row.name, seed) / "experiment.json"
        if kept.is_file() and read_json(kept) != to_mapping(with_changes(row.spec, seed=seed)):
            raise AlreadyExistsError(f"{kept.parent} holds a run with other settings, {another}")
