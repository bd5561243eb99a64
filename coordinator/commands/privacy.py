"""mien-coordinator privacy: what tasks show to whom, and what of the privacy budget is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from coordinator.commands.common import Home, Json, fields
from coordinator.home.home import CoordinatorHome
from mien.format import several
from mien.shell import cli as shell
from mien.shell.cli import say

if TYPE_CHECKING:
    from coordinator.store.report import PopulationReport
    from mien.rounds.records import TaskRecord

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What tasks show to whom, and what it costs.")


@app.callback()
def _group() -> None:
    """Keep `report` a command of its own."""


@app.command()
def report(home: Home, as_json: Json = False) -> None:
    """Say what each task shows to this coordinator, and what each population has spent of its privacy budget.

    Reads the store itself, whether the coordinator runs or not. A ledger that was changed is said so; the exit code is
    then that of corrupt data. Example: mien-coordinator privacy report --json
    """
    from coordinator.store.report import report as account_of
    from mien.errors import TABLE, CorruptDataError

    with CoordinatorHome(home).store() as store:
        tasks, populations = store.tasks(), store.privacy(account_of)
    rows = [(_plain(task), task) for task in tasks]
    result = {
        "tasks": [row for row, _ in rows],
        "populations": [population.to_mapping() for population in populations],
    }

    def human() -> None:
        for row, _ in rows:
            _say_task(row)
        if not rows:
            say("There is no task yet, so nothing is shown to anyone.")
        for population in populations:
            _say_population(population)

    shell.emit(result, as_json=as_json, human=human)
    if not all(population.verifies for population in populations):
        raise typer.Exit(TABLE[CorruptDataError].exit_code)


def _plain(record: TaskRecord) -> dict[str, Any]:
    """Return a task and what it shows as plain data."""
    from coordinator.operator.disclosure import disclosures
    from mien.protocol.canonical import task_from_json

    task = task_from_json(record.task_json)
    return {
        **fields(record, "task_id", "name", "population", "reason", "rounds_closed", "model_id"),
        "method": task.method,
        "state": record.state.value,
        "rounds_total": task.rounds,
        "reveals": list(task.privacy.reveals),
        "discloses": disclosures(task),
    }


def _say_task(row: dict[str, Any]) -> None:
    say(f"{row['name']} ({row['task_id']}, {row['method']}, {row['state']}):")
    for sentence in row["discloses"]:
        say(f"  - {sentence}")


def _say_population(population: PopulationReport) -> None:
    say(f"Population {population.population}:")
    if not population.verifies:
        say(f"  THE LEDGER DOES NOT VERIFY: {population.problem}.")
        return
    say(f"  {several(population.num_sums, 'sum')} opened; the ledger verifies, its newest event is {population.head}.")
    if population.num_sums_without_noise:
        say(f"  {population.num_sums_without_noise} of them without noise: no epsilon bounds what they tell.")
    if population.num_rounds_without_event:
        say(
            f"  {several(population.num_rounds_without_event, 'round')} closed without an event: no epsilon "
            f"bounds what is told by that."
        )
    for budget in population.budgets:
        say(
            f"  At delta {budget.delta:g}: epsilon {_number(budget.spent_rdp)} (PLD {_number(budget.spent_pld)}) of "
            f"{budget.epsilon:g} is spent; against replacing a phone's data, {_number(budget.epsilon_replace)}."
        )
    for task in population.tasks:
        if task.mechanism == "none":
            say(f"  {task.name}: {several(len(task.sums), 'sum')} without noise.")
            continue
        say(
            f"  {task.name}: {several(len(task.sums), 'sum')}, {task.mechanism}, z = {task.noise_multiplier:g}; "
            f"by itself epsilon "
            f"{_number(task.epsilon)}. The busiest phone was in {task.most_participations} of "
            f"{task.max_participations or 'any number'}."
        )
        for sentence in task.guarantee:
            say(f"    - {sentence}")
        table = Table("round", "attempt", "phones", "clip", "z with rounding", "epsilon before", "after")
        for each in task.sums:
            multiplier = f"{each['effective_multiplier']:.4g}"
            epsilons = (_number(each["epsilon_before"]), _number(each["epsilon_after"]))
            place = (str(each["round"]), str(each["attempt"]), str(each["devices"]), f"{each['l2_clip']:.4g}")
            table.add_row(*place, multiplier, *epsilons)
        shell.OUT.print(table)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
