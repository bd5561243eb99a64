"""mien-coordinator model card: a model's card out of the coordinator's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coordinator.commands.common import Home, Json
from coordinator.commands.models.common import Model, only_one
from coordinator.home.home import CoordinatorHome
from mien.errors import AlreadyExistsError, ConfigError, NotFoundError
from mien.protocol.ids import ModelId, PopulationId, TaskId
from mien.shell import cli as shell
from mien.shell.cli import say
from mien.shell.files import write_atomically

if TYPE_CHECKING:
    from coordinator.operator.card import ModelCard, Training
    from coordinator.store.report import PopulationReport, TaskReport
    from coordinator.store.store import Store
    from mien.rounds.records import ModelRecord

_HTML: Final = (".html", ".htm")
_MARKDOWN: Final = (".md", ".markdown")


def card(
    model: Model,
    home: Home,
    out: Annotated[
        Path | None, typer.Option(help="A new file: .html, or .md for Markdown; default: Markdown is printed.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a model's card: what it is, what was measured of it on whom, what never was, and how it was trained.

    Reads the store itself, whether the coordinator runs or not; asks no network. The same record gives the same card.

    Example: mien-coordinator model card released --out card.html
    """
    from coordinator.operator.card import card_report, to_plain
    from mien.shell.pages import markdown, render

    if out is not None and out.suffix.lower() not in (*_HTML, *_MARKDOWN):
        raise ConfigError(f"--out is {out.name!r}; name a file that ends in .html or .md")
    if out is not None and out.exists():
        raise AlreadyExistsError(f"{out} exists already; name a new file")
    with CoordinatorHome(home).store() as store:
        found = card_of(store, _found(store, model))
    report = card_report(found)
    if out is not None:
        page = render(report) if out.suffix.lower() in _HTML else markdown(report)
        write_atomically(out, page.encode())

    def human() -> None:
        if out is None:
            shell.OUT.print(markdown(report), highlight=False, markup=False, soft_wrap=True, end="")
        else:
            say(f"The card of model {found.model.model_id} is in {out}.")

    shell.emit({**to_plain(found), "out": out and str(out)}, as_json=as_json, human=human)


def _found(store: Store, wanted: str) -> ModelId:
    """Return the id of a model by the beginning of it, or 'released'."""
    if wanted == "released":
        newest = store.newest_release()
        if newest is None:
            raise NotFoundError("no model is released yet; give an id that mien-coordinator model list shows")
        return newest.model_id
    return only_one((model.model_id for model in store.models()), wanted)


def card_of(store: Store, model_id: ModelId) -> ModelCard:
    """Return what the store has on record of a model and of those that it was made of."""
    from coordinator.operator.card import ModelCard
    from coordinator.store.report import report as account_of

    models = {model.model_id: model for model in store.models()}
    line = _ancestry(models, models[model_id])
    accounts = {each.population: each for each in store.privacy(account_of)}
    return ModelCard(
        model=line[-1],
        standing=store.standings()[model_id],
        bundle=store.bundle(model_id),
        trainings=tuple(_trainings(store, line, accounts)),
        origin=f"model {line[0].model_id[:12]}, which was imported",
        evaluations=tuple(store.evaluations(model_id)),
    )


def _ancestry(models: Mapping[ModelId, ModelRecord], model: ModelRecord) -> list[ModelRecord]:
    """Return a model after all that it was made of, the imported one first."""
    line = [model]
    while (parent := line[-1].parent_model_id) is not None and parent in models and models[parent] not in line:
        line.append(models[parent])
    return line[::-1]


def _trainings(
    store: Store, line: Sequence[ModelRecord], accounts: Mapping[PopulationId, PopulationReport]
) -> list[Training]:
    """Return the tasks that made models of a line, with their rounds up to the last one in it."""
    from coordinator.operator.card import Training
    from mien.protocol.canonical import task_from_json

    last: dict[TaskId, int] = {}
    for model in line:
        if model.task_id is not None:
            last[model.task_id] = max(last.get(model.task_id, 0), model.round or 0)
    found = []
    for task_id, rounds in last.items():
        record = store.task(task_id)
        account = _account(accounts.get(record.population), task_id)
        sums = [] if account is None else [each for each in account.sums if each["round"] <= rounds]
        phones = [each["devices"] for each in sums]
        found.append(
            Training(
                task_id=task_id,
                task=task_from_json(record.task_json),
                rounds=rounds,
                num_sums=len(sums),
                phones=(min(phones), max(phones)) if phones else None,
                epsilon=None if account is None else account.epsilon,
            )
        )
    return found


def _account(population: PopulationReport | None, task_id: TaskId) -> TaskReport | None:
    return next((each for each in population.tasks if each.task_id == task_id), None) if population else None
