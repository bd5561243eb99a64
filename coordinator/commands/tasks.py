"""mien-coordinator task: submit, list, watch, pause, resume, cancel."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.live import Live
from rich.table import Table

from coordinator.commands.common import (
    Home,
    Json,
    Task,
    ask,
    fields,
    find_task,
    home_flag,
    key_flag,
    now,
    operator_flag,
)
from coordinator.commands.tables import Column, listing
from mien.errors import (
    AlreadyExistsError,
    ConfigError,
    DrainingError,
    NotFoundError,
    UnavailableError,
    UnreachableError,
    VersionError,
)
from mien.format import gathered, several
from mien.records import from_mapping
from mien.shell import cli as shell
from mien.shell.cli import say
from mien.shell.keys import secret_hex
from mien.shell.settings import read_toml

if TYPE_CHECKING:
    from rich.console import RenderableType

    from coordinator.operator.client import Coordinator
    from mien.protocol.v1 import operator_pb2
    from mien.specs import TaskSpec

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Submit training tasks and follow them.")

_MAX_TASK_BYTES = 256 * 1024
_VALIDATE = 1
_OVER = (8, 9)
_TASK_OVER = ("done", "cancelled", "failed")

PRESETS: Final[Mapping[str, Mapping[str, Mapping[str, float]]]] = {
    "phones": {
        "cohort": {"over_selection": 1.2},
        "deadlines": {
            "selecting_s": 3600.0,
            "selecting_soft_s": 120.0,
            "training_s": 300.0,
            "training_soft_s": 120.0,
            "keys_s": 15.0,
            "shares_s": 15.0,
            "upload_s": 90.0,
            "upload_soft_s": 30.0,
            "consistency_s": 15.0,
            "unmask_s": 15.0,
        },
    },
}
"""Values that a task's file may take by a name, wherever it says nothing of its own.

`phones`: from the choice of the phones on, rounds end within the ten minutes that Android gives a job at night.
"""


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="The task in TOML.")],
    home: Home,
    token: Annotated[
        str, typer.Option(help="Submitting again with the same token gives the same task; default: a new one.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Submit a task, and say what it will show the server.

    Example: mien-coordinator task submit fedface.toml
    """
    from coordinator.operator.disclosure import disclosures

    task = read_task(file, in_groups=True)
    shown = disclosures(task)

    async def question(coordinator: Coordinator) -> tuple[operator_pb2.TaskStatus, str, str]:
        earlier = "" if token else said_of_earlier(await coordinator.tasks(), task, home)
        nobody = await said_of_population(coordinator, task.population, home)
        return await coordinator.submit(task, token or secret_hex(16)), earlier, nobody  # last: what fails took nothing

    status, earlier, nobody = ask(home, question)

    def human() -> None:
        _say_task(task, shown)
        if earlier:
            say(earlier)
        if nobody:
            say(nobody)
        watch = f"mien-coordinator task watch {status.task_id if earlier else task.name}{home_flag(home)}"
        say(f"Task {status.task_id} is {status.state}. Follow it: {watch}")

    warning = {"warning": nobody} if nobody else {}
    shell.emit({**to_plain(status), "discloses": shown, **warning}, as_json=as_json, human=human)


def said_of_earlier(tasks: Sequence[operator_pb2.TaskStatus], task: TaskSpec, home: Path) -> str:
    """Return what there is to say of tasks of a task's name, or that ask for the same; empty where nothing.

    Raises AlreadyExistsError while one of that name goes on: people say names, and would mean either.
    """
    from mien.protocol.canonical import task_to_json

    namesakes = [other for other in tasks if other.name == task.name]
    for other in namesakes:
        if other.state not in _TASK_OVER:
            flag = home_flag(home)
            raise AlreadyExistsError(
                f"task {task.name} goes on already ({other.task_id}, {other.state}): mien-coordinator task watch "
                f"{task.name}{flag} follows it, mien-coordinator task cancel {task.name}{flag} ends it; for one more "
                "beside it write another name into the file"
            )
    for other in tasks:
        if other.state not in _TASK_OVER and other.task_json == task_to_json(replace(task, name=other.name)):
            return f"Warning: task {other.name} ({other.task_id}) asks for the same and goes on: phones do it twice."
    if not namesakes:
        return ""
    other = namesakes[-1]
    return f"An earlier task of this name is {other.state} ({other.task_id}); this is one more."


async def said_of_population(
    coordinator: Coordinator, population: str, home: Path, waits: str = "The task", end: str = "task cancel"
) -> str:
    """Return a warning where devices have called and none of a population; empty where one has, or nobody yet.

    `waits` is what waits for such phones then, and the command `end` ends it. Empty too where the coordinator stops
    answering, or is an older one: this look alone keeps nobody from submitting.
    """
    try:
        others = await coordinator.count_seen_devices()
    except (UnavailableError, VersionError):
        return ""
    if population in others or not others:
        return ""
    flag = home_flag(home)
    near = difflib.get_close_matches(population, others, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"those that called are of {', '.join(sorted(others)[:5])}."
    return (
        f"Warning: no phone of population {population!r} has called yet; {hint} {waits} waits for such phones: "
        f"mien-coordinator device invite --population {population}{flag}{operator_flag(home)} makes invites, "
        f"mien-coordinator {end} ends it."
    )


def read_task(path: Path, *, in_groups: bool = False) -> TaskSpec:
    """Return the task in a TOML file; raises ConfigError naming the wrong field and the nearest known one.

    With `in_groups` a task that says nothing of groups is dealt into some where its cohort allows it.
    """
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}; name the task's TOML file")
    values = _over_preset(read_toml(path, _MAX_TASK_BYTES, what=str(path)))
    from mien.methods import METHODS
    from mien.rounds.plan import check_tells_apart, with_median
    from mien.specs import TaskSpec

    cohort, named = values.get("cohort"), METHODS.get(str(values.get("method")))
    if named is not None and isinstance(cohort, Mapping) and "must_include" in cohort:
        check_tells_apart(named)  # before what else of it is at fault: all of that would be mended in vain
    task = from_mapping(TaskSpec, values)
    method = METHODS.get(task.method)
    if method is None:
        raise ConfigError(f"method is {task.method!r}; known methods: {', '.join(sorted(METHODS))}")
    from_mapping(method.options, task.options, where="options.")
    says_groups = not {"groups", "group_mean"}.isdisjoint(values.get("privacy", {}))
    return with_median(task, method) if in_groups and not says_groups else task


def _over_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's values over those of the preset that it names, if any; raises ConfigError for an unknown one."""
    own = dict(values)
    name = own.pop("preset", None)
    if name is None:
        return own
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"preset is {name!r}; known presets: {', '.join(sorted(PRESETS))}")
    for table, preset in PRESETS[name].items():
        said = own.get(table, {})
        if isinstance(said, Mapping):
            own[table] = {**{name: _within(name, value, said) for name, value in preset.items()}, **said}
    return own


def _within(name: str, value: float, said: Mapping[str, Any]) -> float:
    """Return a preset's value, of a soft deadline no more than the hard one that the file has in its place."""
    hard = said.get(name.replace("_soft", ""), value)
    return min(value, hard) if isinstance(hard, int | float) else value


@app.command("list")
def list_tasks(home: Home, as_json: Json = False) -> None:
    """List all tasks.

    Example: mien-coordinator task list --json
    """
    tasks = ask(home, lambda coordinator: coordinator.tasks())

    def human() -> None:
        shell.OUT.print(
            task_table(tasks, shell.OUT.width)
            if tasks
            else "There is no task yet; mien-coordinator task submit makes one."
        )

    shell.emit({"tasks": [to_plain(task) for task in tasks]}, as_json=as_json, human=human)


def task_table(tasks: Sequence[operator_pb2.TaskStatus], width: int) -> RenderableType:
    """Return tasks as a table for people, within `width` characters."""
    columns = (
        Column("task"),
        Column("name", folds=True),
        Column("state", folds=True),
        Column("rounds"),
        Column("shows in clear", 1, folds=True),
        Column("method", 2),
        Column("model", 3),
    )
    rows = [
        (
            task.task_id,
            "\n".join(_named(task)),
            "; ".join(filter(None, (f"{task.state}: {task.reason}" if task.reason else task.state, *_who_waits(task)))),
            f"{task.rounds_closed}/{task.rounds_total}",
            ", ".join(task.reveals) or "–",
            task.method,
            task.model_id[:8],
        )
        for task in tasks
    ]
    return listing(columns, rows, width)


@app.command()
def watch(task: Task, home: Home, as_json: Json = False) -> None:
    """Show a task's rounds as they happen, until it is over: a table, or a line for each change where no terminal is.

    With --json each change is one object, with the times and all metrics.

    Example: mien-coordinator task watch fedface --json
    """

    async def follow(coordinator: Coordinator) -> None:
        found = await find_task(coordinator, task)
        view = _View()
        if as_json:
            async for event in coordinator.watch(found.task_id):
                shell.emit(_event(event), as_json=True, human=lambda: None)
                sys.stdout.flush()
            return
        if not shell.OUT.is_terminal:
            async for event in coordinator.watch(found.task_id):
                if line := view.news(event):
                    shell.OUT.print(line, soft_wrap=True)
        else:
            with Live(view.draw(), console=shell.OUT, refresh_per_second=4) as live:
                async for event in coordinator.watch(found.task_id):
                    view.take(event)
                    live.update(view.draw())
        if view.task is not None and (left := await left_to_do(coordinator, view.task, home)):
            say(left)

    try:
        ask(home, follow)
    except DrainingError as error:
        raise UnreachableError("the coordinator is shutting down; watch again when it is back") from error


async def left_to_do(coordinator: Coordinator, task: operator_pb2.TaskStatus, home: Path) -> str:
    """Return what a task that ended leaves to its operator: its last model, where nobody judged or released it."""
    from mien.rounds.releases import UNJUDGED

    if task.state != "done" or not task.task_json:
        return ""
    found = {status.model_id: status for _, status in await coordinator.standings()}.get(task.model_id)
    if found is None or found.state != "candidate":  # released meanwhile, or the task went back to one in force
        return ""
    name, flag = task.model_id[:12], home_flag(home)
    release = f"mien-coordinator model release {name}{key_flag(home)}{flag}"
    if found.reason == UNJUDGED:
        return (
            f"Model {name} is not released, and {UNJUDGED}: mien-coordinator model evaluate {name} --data FACES "
            f"--keep-thresholds{flag}, then {release}"
        )
    from mien.protocol.canonical import task_from_json

    if task_from_json(task.task_json).gates.release != "manual":
        return ""
    return f"Model {name} waits for its release by hand: mien-coordinator model show {name}{flag}, then {release}"


@app.command()
def pause(task: Task, home: Home, as_json: Json = False) -> None:
    """Begin no new round; one under way goes on to its end.

    Example: mien-coordinator task pause fedface
    """
    _order(home, task, lambda coordinator, task_id: coordinator.pause(task_id), as_json, wish="paused")


@app.command()
def resume(task: Task, home: Home, as_json: Json = False) -> None:
    """Go on with a paused task.

    Example: mien-coordinator task resume fedface
    """
    _order(home, task, lambda coordinator, task_id: coordinator.resume(task_id), as_json, wish="resumed")


def check_is_not_over(status: operator_pb2.TaskStatus, wish: str) -> None:
    """Raise ConfigError for a task that is over, which cannot be paused or resumed, as was the operator's `wish`."""
    if status.state in _TASK_OVER:
        why = f" ({status.reason})" if status.reason else ""
        raise ConfigError(
            f"task {status.name} is {status.state}{why}: it is over and cannot be {wish}; begin another one with "
            "mien-coordinator task submit. Its models are still there: mien-coordinator model list"
        )


@app.command()
def cancel(task: Task, home: Home, as_json: Json = False) -> None:
    """End a task for good; a round under way is aborted, models made so far stay.

    Example: mien-coordinator task cancel fedface
    """
    _order(home, task, lambda coordinator, task_id: coordinator.cancel(task_id), as_json)


def to_plain(task: operator_pb2.TaskStatus) -> dict[str, Any]:
    """Return a task's status as plain data."""
    names = ("task_id", "name", "method", "state", "reason", "rounds_closed", "rounds_total", "model_id", "reveals")
    gathering = ("gathering_there", "gathering_wanted", "gathering_since_unix_ms", "gathering_lacks_labelled")
    not_for = ("num_cannot_train", "num_want_larger_sums", "num_used_up", "num_left_out")
    numbers = fields(task, *names, *not_for, *gathering)
    return {**numbers, "population": population_of(task)}


def population_of(task: operator_pb2.TaskStatus) -> str:
    """Return whose phones a task is for; empty of a coordinator that does not tell the task."""
    return str(json.loads(task.task_json).get("population", "")) if task.task_json else ""


def _named(task: operator_pb2.TaskStatus) -> tuple[str, ...]:
    """Return a task's name, and whose phones it is for as far as the coordinator tells it."""
    population = population_of(task)
    return (task.name, f"for {population}") if population else (task.name,)


def gathering(task: operator_pb2.TaskStatus, now_ms: int) -> str:
    """Return how many phones wait for a task's round to begin, of how many, since when; nothing while it runs."""
    if task.state != "running" or not task.gathering_wanted:
        return ""
    since_ms, lacks = task.gathering_since_unix_ms, task.gathering_lacks_labelled
    return f"gathering: {gathered(task.gathering_there, task.gathering_wanted, since_ms, now_ms, lacks)}"


def _who_waits(task: operator_pb2.TaskStatus) -> tuple[str, str]:
    """Return how many phones wait for a task, and how many it is not for."""
    return gathering(task, round(now().timestamp() * 1000)), not_chosen(task)


def not_chosen(task: operator_pb2.TaskStatus) -> str:
    """Return how many phones that called are not chosen for a task, and why; nothing for none, or once it is over."""
    if task.state in _TASK_OVER:
        return ""
    told = []
    if number := task.num_cannot_train:
        told.append(f"{_phones(number, 'cannot train its model and is', 'cannot train its model and are')} not chosen")
    if number := task.num_want_larger_sums:
        owners = "its owner wants" if number == 1 else "their owners want"
        told.append(f"{_phones(number, 'is', 'are')} not chosen: {owners} more phones in a sum than its cohort allows")
    if number := task.num_used_up:
        whose = "its pictures are" if number == 1 else "their pictures are"
        most = "in as many sums, over this model or of a day, as may be"
        told.append(f"{_phones(number, 'is', 'are')} not chosen: {whose} {most}")
    if number := task.num_left_out:
        who, them = ("it is", "it") if number == 1 else ("they are", "them")
        most = f"in as many of its sums as it may put {them} into, or sums with {them} failed"
        told.append(f"{_phones(number, 'is', 'are')} left out: {who} {most}")
    return "; ".join(told)


def _phones(number: int, one: str, several: str) -> str:
    return f"1 phone {one}" if number == 1 else f"{number} phones {several}"


def _order(
    home: Path,
    wanted: str,
    order: Callable[[Coordinator, str], Awaitable[operator_pb2.TaskStatus]],
    as_json: bool,
    wish: str = "",
) -> None:
    """Give an order about a task, and print where the task stands then; see `check_is_not_over` for `wish`."""

    async def question(coordinator: Coordinator) -> operator_pb2.TaskStatus:
        return await order(coordinator, (await find_task(coordinator, wanted)).task_id)

    task = ask(home, question)
    if wish:
        check_is_not_over(task, wish)
    shell.emit(
        to_plain(task), as_json=as_json, human=lambda: say(f"Task {task.name} ({task.task_id}) is {task.state}.")
    )


def _say_task(task: TaskSpec, shown: list[str]) -> None:
    cohort, rounds = task.cohort, several(task.rounds, "round")
    say(
        f"{task.name}: {task.method}, {rounds} of {several(cohort.size, 'phone')} (at least {cohort.min_reports}) of "
        f"population {task.population}, from model {task.model_id}."
    )
    if (mode := task.asynchronous) is not None:
        say(
            f"Asynchronous: up to {several(mode.max_concurrency, 'cohort')} in flight; one that is more than "
            f"{several(mode.max_staleness, 'model')} behind is discarded."
        )
    from mien.methods import find_method

    if caution := find_method(task.method).requirements(task).caution:
        say(f"Warning: {caution}.")
    say("What this shows the server:")
    for sentence in shown:
        say(f"  - {sentence}")


def _event(event: operator_pb2.TaskEvent) -> dict[str, Any]:
    return {"task": to_plain(event.task), "round": _report(event.round) if event.HasField("round") else None}


def is_asynchronous(task: operator_pb2.TaskStatus) -> bool:
    """Return whether several cohorts of a task may be in flight."""
    return bool(task.task_json) and "asynchronous" in json.loads(task.task_json)


def _behind(report: operator_pb2.RoundReport, task: operator_pb2.TaskStatus) -> int:
    """Return how many models were made since that of a cohort, until its own was made."""
    if "staleness" in report.metrics:
        return int(report.metrics["staleness"])
    return max(task.rounds_closed - report.base_version, 0)


def _stage_of(report: operator_pb2.RoundReport) -> str:
    """Return the stage of an attempt in a word."""
    from mien.protocol.messages import REPORTED_STAGES

    return next((stage.value for stage, number in REPORTED_STAGES.items() if number == report.stage), "unknown")


def _report(report: operator_pb2.RoundReport) -> dict[str, Any]:
    phones = ("num_selected", "num_trained", "num_reports", "started_unix_ms", "ended_unix_ms")
    return {
        **fields(report.round, "round", "attempt"),
        "duty": "validate" if report.duty == _VALIDATE else "train",
        "stage": _stage_of(report),
        **fields(report, *phones, "reason", "model_id", "upload_bytes", "metrics", "base_version"),
    }


class _View:
    """Display of `task watch`: the task's line and its newest attempts."""

    _SHOWN = 20

    def __init__(self) -> None:
        self.task: operator_pb2.TaskStatus | None = None
        self._rounds: dict[tuple[int, int], operator_pb2.RoundReport] = {}
        self._said: tuple[str, str, *tuple[int, ...]] | None = None

    def take(self, event: operator_pb2.TaskEvent) -> None:
        """Note what an event says."""
        self.task = event.task
        if event.HasField("round"):
            self._rounds[(event.round.round.round, event.round.round.attempt)] = event.round

    def news(self, event: operator_pb2.TaskEvent) -> str:
        """Return an event in one line; nothing for one that tells no more than the last.

        How many phones wait, or are not chosen, is told again once they are twice as many, not for each of them.
        """
        stages = {key: report.stage for key, report in self._rounds.items()}
        self.take(event)
        if not event.HasField("round"):
            before, task = self._said, event.task
            not_for = task.num_cannot_train, task.num_want_larger_sums, task.num_used_up, task.num_left_out
            numbers = *not_for, task.gathering_there, task.gathering_lacks_labelled
            lengths = [number.bit_length() for number in numbers]
            self._said = (task.state, task.reason, *lengths)
            return self._title() if self._said != before else ""
        if stages == {key: report.stage for key, report in self._rounds.items()}:
            return ""
        name, stage, _, loss, model = _cells(event.round)
        report, kind = event.round, "cohort" if is_asynchronous(event.task) else "round"
        what = f"{kind} {name}: {stage}; phones: {report.num_selected} asked, {report.num_trained} {self._did()}, "
        told = [f"loss {loss}"] if loss else []
        told += [f"on {self._base(report)}"] if is_asynchronous(event.task) else []
        told += [f"made model {model}"] if model else []
        return "; ".join([f"{what}{report.num_reports} sent", *told])

    def draw(self) -> Table:
        """Return the picture so far."""
        reports = [report for _, report in sorted(self._rounds.items())[-self._SHOWN :]]
        if self.task is not None and is_asynchronous(self.task):
            table = Table("cohort", "stage", f"asked, {self._did()}, sent", "loss", "model", "on", title=self._title())
            for report in reports:
                table.add_row(*_cells(report), self._base(report))
            return table
        table = Table("round", "stage", f"asked, {self._did()}, sent", "loss", "model", title=self._title())
        for report in reports:
            table.add_row(*_cells(report))
        return table

    def _did(self) -> str:
        """Return what phones do in this task before they send."""
        from coordinator.operator.disclosure import work_of

        return work_of("" if self.task is None else self.task.method)

    def _base(self, report: operator_pb2.RoundReport) -> str:
        """Return which model a cohort is on, and how stale that is."""
        assert self.task is not None
        behind = _behind(report, self.task)
        return f"model {report.base_version}" + (f", {behind} behind" if behind else "")

    def _title(self) -> str:
        if self.task is None:
            return "waiting for the coordinator"
        title = f"{' '.join(_named(self.task))}: {self.task.state}, "
        title += f"{self.task.rounds_closed}/{several(self.task.rounds_total, 'round')}"
        if is_asynchronous(self.task):
            in_flight = sum(report.stage not in _OVER for report in self._rounds.values())
            title = f"{title.rpartition(' ')[0]} models, {several(in_flight, 'cohort')} in flight"
        if told := _in_total(self._rounds.values()):
            title += f", {told}"
        why = "; ".join(filter(None, (self.task.reason, *_who_waits(self.task))))
        return title + (f" ({why})" if why else "")


def _in_total(reports: Iterable[operator_pb2.RoundReport]) -> str:
    """Return what is summed so far where cohorts add up; nothing where each round stands for itself."""
    told = [report.metrics for report in reports if "phones_in_total" in report.metrics]
    if not told:
        return ""
    newest = max(told, key=lambda metrics: metrics["phones_in_total"])
    phones = _phones(round(newest["phones_in_total"]), "", "").rstrip()
    return f"{several(round(newest['people_in_total']), 'person', 'people')} on {phones} in all cohorts"


def _cells(report: operator_pb2.RoundReport) -> tuple[str, str, str, str, str]:
    """Return what people are shown of an attempt: which, its stage, phones, mean loss before and after, the model."""
    from mien.rounds.server_step import MOVED_NOTHING

    number, attempt = report.round.round, report.round.attempt
    whose = " of validators" if report.duty == _VALIDATE else ""
    stage = _stage_of(report)
    if MOVED_NOTHING in report.metrics:
        stage = f"{stage}, but the model did not move: nobody's training changed it"
    losses = [_loss(report.metrics[name]) for name in ("loss_before", "loss_after") if name in report.metrics]
    return (
        f"{number}" if attempt == 1 else f"{number}, attempt {attempt}{whose}",
        f"{stage}: {report.reason}" if report.reason else stage,
        f"{report.num_selected}, {report.num_trained}, {report.num_reports}",
        " → ".join(losses),
        report.model_id[:12],
    )


def _loss(value: float) -> str:
    """Return a loss with three decimals; a small one by its magnitude, so that it does not look like none."""
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.0005 else f"{value:.0e}"
