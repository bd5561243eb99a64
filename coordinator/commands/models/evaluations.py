"""mien-coordinator model evaluate: what a model is worth on faces."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.common import Home, Json, ask, now
from coordinator.commands.measured import table_of
from coordinator.commands.models.common import Model
from coordinator.commands.models.folder import write_model
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
    keep_thresholds: Annotated[
        bool, typer.Option(help="Keep the thresholds that were found, with their provenance, in the model's manifest.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a model on faces, in a child process that needs the simulation extra. The coordinator keeps the record.

    Example: mien-coordinator model evaluate released --data ./lfw --protocol lfw --json
    """
    if protocol not in ("lfw", "folder"):
        raise ConfigError(f"--protocol is {protocol!r}; known: lfw, folder")
    if graphs is not None and protocol != "folder":
        raise ConfigError(f"--graphs does not go with --protocol {protocol}, which torch measures: leave one out")
    sets = [(data, aligned)] if data is not None else configured_sets(home)
    if not sets:
        raise ConfigError("coordinator.toml names no evaluation_sets; add one, or give --data")
    for folder, _ in sets:
        if not folder.is_dir():
            raise NotFoundError(f"there is no folder {folder}; name the folder that holds the faces")
    tell = (lambda _: None) if as_json else shell.tell
    records = _measured(home, model, sets, protocol, graphs, tell=tell)

    async def keep(coordinator: Coordinator) -> None:
        for record in records:
            await coordinator.add_evaluation(record["model_id"], record)

    ask(home, keep)
    if keep_thresholds:
        records[0]["thresholds_kept"] = ask(home, lambda coordinator: add_thresholds(coordinator, records[0]))

    def human() -> None:
        for record in records:
            shell.OUT.print(table_of(record))

    shell.emit(records[0] if data is not None else {"evaluations": records}, as_json=as_json, human=human)


def configured_sets(home: Path) -> list[tuple[Path, bool]]:
    """Return the folders of the coordinator's evaluation sets, and whether they hold aligned crops."""
    sets = CoordinatorHome(home).resolve().config.sets
    folders = [*((folder, False) for folder in sets.raw.values()), *((folder, True) for folder in sets.crops.values())]
    return [(Path(folder), aligned) for folder, aligned in folders]


def _measured(
    home: Path,
    model: str,
    sets: Sequence[tuple[Path, bool]],
    protocol: str,
    graphs: Path | None,
    *,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return the records of a model on each folder; `tell` hears of each before it is measured."""
    with tempfile.TemporaryDirectory(prefix="mien-evaluate-") as temporary:
        ask(home, lambda coordinator: write_model(coordinator, model, Path(temporary)))
        records = []
        for folder, crops in sets:
            tell(f"Measuring the model on the faces in {folder} …")
            records.append(measured(Path(temporary), folder, protocol, aligned=crops, graphs=graphs))
        return records


def measured(model: Path, data: Path, protocol: str, *, aligned: bool, graphs: Path | None = None) -> dict[str, Any]:
    """Return the record of the model in a folder on a folder of faces, as measured by this very command."""
    from coordinator.release import worker

    record = worker.evaluate(model, data, protocol, aligned=aligned, graphs=graphs)
    return {**record, "command": shlex.join(["mien-coordinator", *sys.argv[1:]])}  # the worker's names a passing folder


async def add_thresholds(coordinator: Coordinator, record: Mapping[str, Any]) -> int:
    """Add what a record measured to the model's manifest; returns how many thresholds that were."""
    from mien.rounds.thresholds import thresholds_of

    thresholds = thresholds_of(record, now())
    for threshold in thresholds:
        await coordinator.add_threshold(threshold.model_id, threshold)
    return len(thresholds)
