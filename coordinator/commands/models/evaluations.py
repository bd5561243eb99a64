"""mien-coordinator model evaluate: what a model is worth on faces."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.common import Home, Json, ask, now
from coordinator.commands.measured import by_group, table_of
from coordinator.commands.models.common import Model
from coordinator.commands.models.folder import write_graphs, write_model
from coordinator.home.home import CoordinatorHome
from mien.errors import ConfigError, NotFoundError
from mien.shell import cli as shell

if TYPE_CHECKING:
    from coordinator.operator.client import Coordinator


def evaluate(
    model: Model,
    home: Home,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the faces; default: every evaluation set of coordinator.toml.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="lfw (ten-fold) or folder (all pairs of name/*.jpg).")] = "folder",
    aligned: Annotated[bool, typer.Option(help="The images are aligned crops already.")] = False,
    graphs: Annotated[
        Path | None,
        typer.Option(help="A folder with the model's graphs: measure with these, as phones do, and not with torch."),
    ] = None,
    groups: Annotated[
        Path | None,
        typer.Option(
            help="Also tell errors by group of people: a CSV with a column person or picture, the others groups (age, "
            "sex); or the faces themselves, as group/person/pictures."
        ),
    ] = None,
    worst_group: Annotated[
        bool,
        typer.Option("--worst-group", help="Thresholds that keep their false match rate in the worst group, too."),
    ] = False,
    keep_thresholds: Annotated[
        bool, typer.Option(help="Keep the thresholds that were found, with their provenance, in the model's manifest.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a model on faces, in a child process that needs the simulation extra. The coordinator keeps the record.

    Example: mien-coordinator model evaluate released --data ./lfw --protocol lfw --json

    Example: mien-coordinator model evaluate released --data ./faces --groups ages.csv --worst-group --keep-thresholds
    """
    if protocol not in ("lfw", "folder"):
        raise ConfigError(f"--protocol is {protocol!r}; known: lfw, folder")
    if graphs is not None and protocol != "folder":
        raise ConfigError(f"--graphs does not go with --protocol {protocol}, which torch measures: leave one out")
    data = _faces_of(data, groups, protocol=protocol, worst_group=worst_group)
    sets = [(data, aligned)] if data is not None else configured_sets(home)
    if not sets:
        raise ConfigError("coordinator.toml names no evaluation_sets; add one, or give --data")
    for folder, _ in sets:
        if not folder.is_dir():
            raise NotFoundError(f"there is no folder {folder}; name the folder that holds the faces")
    tell = (lambda _: None) if as_json else shell.tell
    measure = partial(measured, protocol=protocol, graphs=graphs, groups=groups, worst_group=worst_group)
    needs_graphs = graphs is None and protocol == "folder" and importlib.util.find_spec("torch") is None
    records = _measured(home, model, sets, measure, needs_graphs=needs_graphs, tell=tell)

    async def keep(coordinator: Coordinator) -> None:
        for record in records:
            await coordinator.add_evaluation(record["model_id"], record)

    ask(home, keep)
    if keep_thresholds:
        add = add_thresholds if groups is None else set_thresholds
        records[0]["thresholds_kept"] = ask(home, lambda coordinator: add(coordinator, records[0]))

    def human() -> None:
        for record in records:
            shell.OUT.print(table_of(record))
            for told in by_group(record, shell.OUT.width):
                shell.OUT.print(told)

    shell.emit(records[0] if data is not None else {"evaluations": records}, as_json=as_json, human=human)


def configured_sets(home: Path) -> list[tuple[Path, bool]]:
    """Return the folders of the coordinator's evaluation sets, and whether they hold aligned crops."""
    sets = CoordinatorHome(home).resolve().config.sets
    folders = [*((folder, False) for folder in sets.raw.values()), *((folder, True) for folder in sets.crops.values())]
    return [(Path(folder), aligned) for folder, aligned in folders]


def _faces_of(data: Path | None, groups: Path | None, *, protocol: str, worst_group: bool) -> Path | None:
    """Return the folder with the faces, which folders of groups are themselves."""
    if groups is None:
        if worst_group:
            raise ConfigError("--worst-group needs --groups: say who is in which group")
        return data
    if protocol != "folder":
        raise ConfigError(f"--groups does not go with --protocol {protocol}: leave one out")
    if not groups.exists():
        raise NotFoundError(f"there is no {groups}; --groups takes a CSV, or folders group/person/pictures")
    if groups.is_dir():
        if data is not None and data.resolve() != groups.resolve():
            raise ConfigError(f"the folders of groups in {groups} are the faces: leave --data out")
        return groups
    if data is None:
        raise ConfigError("--groups is about the faces in a folder: name it with --data")
    return data


def _measured(
    home: Path,
    model: str,
    sets: Sequence[tuple[Path, bool]],
    measure: Callable[..., dict[str, Any]],
    *,
    needs_graphs: bool,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return the records of a model on each folder; `tell` hears of each before it is measured.

    Where it `needs_graphs` it is measured by those of a signed release, if there are any for it.
    """

    async def fetch(coordinator: Coordinator, folder: Path) -> bool:
        found = await write_model(coordinator, model, folder)
        return needs_graphs and await write_graphs(coordinator, found, folder)

    with tempfile.TemporaryDirectory(prefix="mien-evaluate-") as temporary:
        there = Path(temporary)
        if ask(home, lambda coordinator: fetch(coordinator, there)):
            measure = partial(measure, graphs=there)
        records = []
        for folder, crops in sets:
            tell(f"Measuring the model on the faces in {folder} …")
            records.append(measure(there, folder, aligned=crops))
        return records


def measured(
    model: Path,
    data: Path,
    protocol: str,
    *,
    aligned: bool,
    graphs: Path | None = None,
    groups: Path | None = None,
    worst_group: bool = False,
) -> dict[str, Any]:
    """Return the record of the model in a folder on a folder of faces, as measured by this very command."""
    from coordinator.release import worker

    record = worker.evaluate(
        model, data, protocol, aligned=aligned, graphs=graphs, groups=groups, worst_group=worst_group
    )
    return {**record, "command": shlex.join(["mien-coordinator", *sys.argv[1:]])}  # the worker's names a passing folder


async def add_thresholds(coordinator: Coordinator, record: Mapping[str, Any]) -> int:
    """Add what a record measured to the model's manifest; returns how many thresholds that were."""
    from mien.rounds.thresholds import thresholds_of

    thresholds = thresholds_of(record, now())
    for threshold in thresholds:
        await coordinator.add_threshold(threshold.model_id, threshold)
    return len(thresholds)


async def set_thresholds(coordinator: Coordinator, record: Mapping[str, Any]) -> int:
    """Put what a record by group measured into the model's manifest; returns how many thresholds that were.

    Thresholds by the worst group replace those that were there, which are less strict; others come in addition, as
    `AddThreshold` adds them. Rates by another attribute or on another data set stay while the thresholds do.
    """
    from mien.rounds.thresholds import group_rates_of, thresholds_of

    found, rates = thresholds_of(record, now()), group_rates_of(record, now())
    in_addition = not record["groups"]["by_worst_group"]
    await coordinator.set_thresholds(record["model_id"], found, rates, in_addition=in_addition)
    return len(found)
