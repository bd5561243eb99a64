"""mien-coordinator fleet: evaluate, show, roll-outs, continue, stop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.commands.common import Home, Json, ask, fields, home_flag
from coordinator.commands.tables import Column, listing
from coordinator.commands.tasks import said_of_population
from mien.errors import NotFoundError
from mien.format import moment, several
from mien.protocol.ids import ModelId
from mien.records import from_mapping
from mien.shell import cli as shell
from mien.shell.cli import say
from mien.shell.keys import secret_hex
from mien.shell.settings import read_toml

if TYPE_CHECKING:
    from coordinator.operator.client import Coordinator
    from mien.evaluation.rollout_spec import RollOutSpec
    from mien.protocol.v1 import models_pb2, operator_pb2

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="What phones say of models, in sums: evaluate, look, and carry staged roll-outs on.",
)
RollOutId = Annotated[int, typer.Argument(help="The roll-out's number, from fleet roll-outs.")]

_MAX_BYTES = 64 * 1024


def read_roll_out(path: Path) -> RollOutSpec:
    """Return the staged roll-out in a TOML file; raises ConfigError naming the wrong field."""
    from mien.evaluation.rollout_spec import RollOutSpec

    if not path.is_file():
        raise NotFoundError(f"there is no file {path}; name the roll-out's TOML file")
    return from_mapping(RollOutSpec, read_toml(path, _MAX_BYTES, what=str(path)))


@app.command()
def evaluate(
    home: Home,
    model: Annotated[
        str, typer.Option(help="current, candidate, previous, or a model's id or its beginning.")
    ] = "current",
    against: Annotated[
        str, typer.Option(help="Compare with this model on the same phones: as --model; default: no comparison.")
    ] = "",
    population: Annotated[str, typer.Option(help="Whose phones are asked.")] = "default",
    size: Annotated[int, typer.Option(help="Phones wanted in the sum.")] = 20,
    min_reports: Annotated[int, typer.Option(help="Fewest phones in the sum; theirs is the last word: 16.")] = 16,
    fmr: Annotated[
        float, typer.Option(help="Use the model's threshold for a false match rate of at most this.")
    ] = 1e-3,
    as_json: Json = False,
) -> None:
    """Ask phones how well a model does on their own pictures; only sums of score histograms come back.

    Example: mien-coordinator fleet evaluate --model candidate --against current
    """
    from mien.evaluation.rollout_spec import RollOutSpec
    from mien.rounds.rollouts import evaluation_task, threshold_for
    from mien.specs import CohortSpec

    async def question(coordinator: Coordinator) -> tuple[operator_pb2.TaskStatus, str]:
        chosen = [await _chosen(coordinator, each) for each in (model, against) if each]
        known = [(ModelId(each.model_id), each.spec_json) for each in chosen]
        points = [(model_id, threshold_for(spec_json, model_id, fmr).value) for model_id, spec_json in known]
        spec = RollOutSpec(population=population, cohort=CohortSpec(size, min_reports), min_cohort=min_reports)
        name = f"fleet-{points[0][0][:12]}-{secret_hex(3)}"
        task = evaluation_task(
            spec,
            name=name,
            model_id=points[0][0],
            threshold=points[0][1],
            reference=points[1] if len(points) > 1 else None,
        )
        nobody = await said_of_population(coordinator, population, home)
        return await coordinator.submit(task, secret_hex(16)), nobody

    status, nobody = ask(home, question)

    def human() -> None:
        if nobody:
            say(nobody)
        say(
            f"Task {status.task_id} asks phones. Follow it: "
            f"mien-coordinator task watch {status.name}{home_flag(home)}; then "
            f" mien-coordinator fleet show {status.model_id[:12]}{home_flag(home)}"
        )

    warning = {"warning": nobody} if nobody else {}
    result = {**fields(status, "task_id", "name", "model_id", "state"), **warning}
    shell.emit(result, as_json=as_json, human=human)


async def _chosen(coordinator: Coordinator, wanted: str) -> models_pb2.ModelManifest:
    """Return a model by its part in a roll-out, or its id; raises NotFoundError."""
    from coordinator.commands.models.common import find_model

    if wanted not in ("current", "candidate", "previous"):
        return await find_model(coordinator, wanted)
    statuses = [status for _, status in await coordinator.standings()]
    released = sorted((each for each in statuses if each.state == "released"), key=lambda each: each.share)
    if wanted == "current" and released:
        return await coordinator.manifest(released[-1].model_id)
    if wanted == "candidate":
        waiting = [each for each in released if each.share < released[-1].share]
        waiting = waiting or [each for each in statuses if each.state == "candidate"]
        if waiting:
            return await coordinator.manifest(waiting[-1].model_id)
    if wanted == "previous" and (retired := [each for each in statuses if each.state == "retired"]):
        return await coordinator.manifest(retired[-1].model_id)
    raise NotFoundError(f"there is no {wanted} model; mien-coordinator model list shows which there are")


@app.command()
def show(
    home: Home,
    model: Annotated[
        str, typer.Argument(help="current, candidate, previous, or a model's id or its beginning.")
    ] = "current",
    as_json: Json = False,
) -> None:
    """Show what phones said of a model, the newest last; with --json also histograms and the curve's points.

    Example: mien-coordinator fleet show 3f0c --json
    """

    async def question(coordinator: Coordinator) -> tuple[str, list[dict[str, Any]], list[operator_pb2.TaskStatus]]:
        found = await _chosen(coordinator, model)
        records = await coordinator.evaluations(found.model_id)
        said = [record for record in records if record.get("protocol") == "fleet"]
        return found.model_id, said, asking(await coordinator.tasks(), found.model_id)

    model_id, records, tasks = ask(home, question)

    def human() -> None:
        if records:
            shell.OUT.print(listing(_SAID, [_cells(record["figures"]) for record in records], shell.OUT.width))
        for task in tasks:
            say(waiting(task))
        if not records and not tasks:
            say(f"No phone was asked about model {model_id[:12]} yet; mien-coordinator fleet evaluate does.")

    result = {"model_id": model_id, "evaluations": records, "asking": [task.task_id for task in tasks]}
    shell.emit(result, as_json=as_json, human=human)


def asking(tasks: Sequence[operator_pb2.TaskStatus], model_id: str) -> list[operator_pb2.TaskStatus]:
    """Return the tasks that ask phones about a model now."""
    from mien.rounds.records import TaskState

    mine = [task for task in tasks if (task.method, task.model_id) == ("federated_evaluation", model_id)]
    return [task for task in mine if not TaskState(task.state).is_over]


def waiting(task: operator_pb2.TaskStatus) -> str:
    """Return in words that a task waits for phones, and for how many."""
    from mien.protocol.canonical import task_from_json

    cohort = task_from_json(task.task_json).cohort
    why = f" ({task.reason})" if task.reason else ""
    return (
        f"Task {task.name} is {task.state}{why}: it waits for the answers of "
        f"{several(cohort.min_reports, 'phone')}, up to "
        f"{cohort.size}; mien-coordinator task watch {task.name} follows it."
    )


_SAID = (
    Column("phones"),
    Column("TAR"),
    Column("FMR"),
    Column("drop of TAR (95 %)"),
    Column("EER", rank=1),
    Column("TAR before", rank=2),
    Column("FMR before", rank=3),
    Column("mated, non-mated", rank=4),
)


def _cells(figures: dict[str, Any]) -> tuple[str, ...]:
    """Return what people are shown of an evaluation."""
    model, before, drop = figures["model"], figures.get("reference"), figures.get("tar_drop")
    return (
        str(figures["num_phones"]),
        f"{model['tar']['value']:.4f} at {model['threshold']:.3f}",
        f"{model['fmr']['value']:.2g}",
        f"{drop['value']:z.4f} ({drop['low']:z.4f} to {drop['high']:z.4f})" if drop else "–",
        f"{model['eer']:.4f}",
        f"{before['tar']['value']:.4f} at {before['threshold']:.3f}" if before else "–",
        f"{before['fmr']['value']:.2g}" if before else "–",
        f"{figures['num_mated']}, {figures['num_non_mated']}",
    )


_ROLL_OUT = (
    Column("number"),
    Column("model"),
    Column("state"),
    Column("share (stage)"),
    Column("phones said", rank=1, folds=True),
    Column("why", folds=True),
    Column("instead of", rank=2),
    Column("population", rank=3),
    Column("since (UTC)", rank=4),
)


@app.command("roll-outs")
def roll_outs(home: Home, as_json: Json = False) -> None:
    """List staged roll-outs: how far each is, and what phones said last.

    Example: mien-coordinator fleet roll-outs --json
    """
    found = ask(home, lambda coordinator: coordinator.roll_outs())

    def human() -> None:
        rows = [
            (
                *(
                    str(each.id),
                    each.model_id[:12],
                    each.state,
                    f"{each.share:.4g} ({each.stage + 1}/{len(each.stages)})",
                ),
                *(_said(dict(each.figures)), each.reason or "–", each.reference_model_id[:12], each.population),
                moment(each.changed_unix_ms),
            )
            for each in found
        ]
        nothing = "There is no roll-out yet; mien-coordinator model release --roll-out begins one."
        shell.OUT.print(listing(_ROLL_OUT, rows, shell.OUT.width) if found else nothing)

    shell.emit({"roll_outs": [to_plain(each) for each in found]}, as_json=as_json, human=human)


def _said(figures: dict[str, float]) -> str:
    if not figures:
        return "–"
    text = f"{several(round(figures['phones']), 'phone')}: TAR {figures['tar']:.4f}, FMR {figures['fmr']:.2g}"
    return text + (f", TAR dropped by {figures['tar_drop']:z.4f}" if "tar_drop" in figures else "")


@app.command("continue")
def continue_(roll_out: RollOutId, home: Home, as_json: Json = False) -> None:
    """Let a roll-out that waits go on: to its next share where it held, else phones are asked again.

    Example: mien-coordinator fleet continue 3
    """
    _tell(ask(home, lambda coordinator: coordinator.continue_roll_out(roll_out)), as_json)


@app.command()
def stop(roll_out: RollOutId, home: Home, as_json: Json = False) -> None:
    """End a roll-out where it is: phones keep what they have, and model rollback takes it back.

    Example: mien-coordinator fleet stop 3
    """
    _tell(ask(home, lambda coordinator: coordinator.stop_roll_out(roll_out)), as_json)


def to_plain(each: operator_pb2.RollOutStatus) -> dict[str, Any]:
    """Return a roll-out as plain data."""
    where = ("state", "reason", "share", "stage", "stages", "task_id", "figures")
    times = ("started_unix_ms", "started_by", "changed_unix_ms")
    return fields(each, "id", "model_id", "reference_model_id", "population", *where, *times)


def _tell(each: operator_pb2.RollOutStatus, as_json: bool) -> None:
    shell.emit(
        to_plain(each),
        as_json=as_json,
        human=lambda: say(f"Roll-out {each.id} is {each.state}, at {each.share:.4g} of the phones."),
    )
