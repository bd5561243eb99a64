"""What `task watch` says of a round: every stage by its name, and whose attempt it is."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from rich.console import Console

from coordinator.commands import tasks
from coordinator.commands.common import key_flag
from coordinator.commands.quickstart import TASK
from coordinator.commands.tasks import (
    _event,
    _say_task,
    _View,
    check_is_not_over,
    gathering,
    left_to_do,
    not_chosen,
    read_task,
    said_of_earlier,
    said_of_population,
    to_plain,
)
from mien.errors import AlreadyExistsError, ConfigError, MienError, UnreachableError, VersionError
from mien.protocol.canonical import task_to_json
from mien.protocol.messages import REPORTED_STAGES
from mien.protocol.rounds import Stage
from mien.protocol.v1 import models_pb2, operator_pb2, rounds_pb2
from mien.rounds.records import TaskState
from mien.rounds.releases import UNJUDGED, ModelState
from mien.specs import GateSpec, TaskSpec

if TYPE_CHECKING:
    from coordinator.operator.client import Coordinator


def event(
    stage: rounds_pb2.Stage, *, duty: rounds_pb2.Duty = rounds_pb2.TRAIN, attempt: int = 1
) -> operator_pb2.TaskEvent:
    ref = rounds_pb2.RoundRef(task_id="t", round=3, attempt=attempt)
    report = operator_pb2.RoundReport(round=ref, stage=stage, duty=duty)
    return operator_pb2.TaskEvent(task=operator_pb2.TaskStatus(name="silos", state="running"), round=report)


@pytest.mark.parametrize("state", list(TaskState))
@pytest.mark.parametrize("wish", ["paused", "resumed"])
def test_what_is_over_is_not_paused_or_resumed_in_silence(state: TaskState, wish: str) -> None:
    status = operator_pb2.TaskStatus(name="spring", state=state, reason="model 3f0c failed")
    if not state.is_over:
        check_is_not_over(status, wish)
        return
    with pytest.raises(ConfigError, match=rf"spring is {state} \(model 3f0c failed\): .* {wish}; .* task submit"):
        check_is_not_over(status, wish)


@pytest.fixture(name="fleet")
def a_folder_with_settings(tmp_path: Path) -> Path:
    """A coordinator's folder, whose path a shell takes for one word, of a fleet without a release key."""
    folder = tmp_path / "fleet"
    folder.mkdir()
    (folder / "coordinator.toml").write_text('address = "127.0.0.1:7443"\n')
    return folder


class _Standings:
    """A coordinator whose one model stands so."""

    def __init__(self, state: str, reason: str = "") -> None:
        self._status = operator_pb2.ModelStatus(model_id="ab" * 32, state=state, reason=reason)

    async def standings(self) -> list[tuple[models_pb2.ModelManifest, operator_pb2.ModelStatus]]:
        return [(models_pb2.ModelManifest(model_id=self._status.model_id), self._status)]


@pytest.mark.parametrize("state", list(TaskState))
@pytest.mark.parametrize("gates", [GateSpec(release="manual"), GateSpec()])
@pytest.mark.parametrize("model", list(ModelState))
def test_a_model_that_waits_for_its_release_by_hand_is_named_at_the_end(
    fleet: Path, state: TaskState, gates: GateSpec, model: ModelState
) -> None:
    task = task_to_json(TaskSpec("spring", gates=gates))
    status = operator_pb2.TaskStatus(name="spring", state=state, model_id="ab" * 32, task_json=task)
    told = asyncio.run(left_to_do(cast("Coordinator", _Standings(model)), status, fleet))
    waits = (state, gates.release, model) == (TaskState.DONE, "manual", ModelState.CANDIDATE)
    assert (f"mien-coordinator model release abababababab --home {fleet}" in told) == waits
    assert bool(told) == waits


@pytest.mark.parametrize("gates", [GateSpec(release="manual"), GateSpec()])
@pytest.mark.parametrize("state", list(ModelState))
def test_a_model_that_no_gate_judged_is_named_at_the_end_with_what_is_next(
    fleet: Path, gates: GateSpec, state: ModelState
) -> None:
    task = task_to_json(TaskSpec("spring", gates=gates))
    status = operator_pb2.TaskStatus(name="spring", state="done", model_id="ab" * 32, task_json=task)
    told = asyncio.run(left_to_do(cast("Coordinator", _Standings(state, UNJUDGED)), status, fleet))
    steps = "model evaluate {0} --data FACES --keep-thresholds {1}, then mien-coordinator model release {0} {1}"
    steps = steps.format("ab" * 6, f"--home {fleet}")
    assert (steps in told) == bool(told) == (state is ModelState.CANDIDATE)


@pytest.mark.parametrize("is_beside", [True, False])
def test_where_releases_are_signed_the_next_command_names_the_key(fleet: Path, is_beside: bool) -> None:
    settings = fleet / "coordinator.toml"
    settings.write_text(f'{settings.read_text()}release_key = "{"c" * 64}"\n')
    key = fleet.parent / "release.key"
    if is_beside:
        key.touch()
    assert key_flag(fleet) == (f" --key {shlex.quote(str(key))}" if is_beside else " --key release.key")


def test_every_stage_has_a_name() -> None:
    names = {stage: _event(event(told))["round"]["stage"] for stage, told in REPORTED_STAGES.items()}
    assert names == {stage: stage.value for stage in Stage}


def test_validators_attempts_are_told_from_trainers() -> None:
    trained, judged = event(rounds_pb2.CLOSED), event(rounds_pb2.KEYS, duty=rounds_pb2.VALIDATE, attempt=2)
    assert [_event(each)["round"]["duty"] for each in (trained, judged)] == ["train", "validate"]
    view, console = _View(), Console(width=160, record=True)
    for each in (trained, judged):
        view.take(each)
    with console.capture() as drawn:
        console.print(view.draw())
    assert "3, attempt 2 of validators" in drawn.get()


@pytest.mark.parametrize(("method", "did"), [("fedface", "trained"), ("statistics", "computed"), ("mine", "trained")])
def test_of_phones_that_train_nothing_it_is_not_said_that_they_trained(method: str, did: str) -> None:
    told = event(rounds_pb2.CLOSED)
    told.task.method, told.round.num_trained = method, 4
    assert f"4 {did}, " in _View().news(told)


def test_without_a_terminal_each_change_is_a_line_and_a_repetition_is_none() -> None:
    view = _View()
    closed = event(rounds_pb2.CLOSED)
    closed.round.num_selected, closed.round.num_trained, closed.round.num_reports = 5, 4, 4
    closed.round.metrics["loss_before"], closed.round.metrics["loss_after"] = 2.0, 0.0003
    closed.round.model_id = "ab" * 32
    told = [view.news(each) for each in (event(rounds_pb2.TRAINING), event(rounds_pb2.TRAINING), closed)]
    assert told == [
        "round 3: training; phones: 0 asked, 0 trained, 0 sent",
        "",
        "round 3: closed; phones: 5 asked, 4 trained, 4 sent; loss 2.000 → 3e-04; made model abababababab",
    ]
    over = operator_pb2.TaskEvent(task=operator_pb2.TaskStatus(name="silos", state="done", rounds_total=3))
    assert view.news(over) == "silos: done, 0/3 rounds"
    over.task.task_json = b'{"population":"evening"}'
    assert _View().news(over) == "silos for evening: done, 0/3 rounds"
    assert to_plain(over.task)["population"] == "evening"


def test_a_round_that_moved_nothing_is_told_of() -> None:
    view, closed = _View(), event(rounds_pb2.CLOSED)
    closed.round.metrics["moved_nothing"] = 1.0
    assert "closed, but the model did not move: nobody's training changed it" in view.news(closed)


def test_phones_that_cannot_train_are_told_of_whatever_the_rounds_do_and_not_one_by_one() -> None:
    def called(number: int) -> operator_pb2.TaskEvent:
        return operator_pb2.TaskEvent(
            task=operator_pb2.TaskStatus(name="silos", state="running", rounds_total=3, num_cannot_train=number)
        )

    view = _View()
    assert view.news(called(0)) == "silos: running, 0/3 rounds"
    aborted = event(rounds_pb2.ABORTED)
    aborted.task.CopyFrom(called(1).task)
    assert view.news(aborted).startswith("round 3: aborted"), "the round's own line"
    told = [number for number in range(1, 100) if view.news(called(number))]
    assert told == [1, 2, 4, 8, 16, 32, 64]
    assert view.news(called(64)) == view.news(called(65)) == ""
    assert view.news(called(128)).endswith("(128 phones cannot train its model and are not chosen)")
    assert view.news(called(0)) == "silos: running, 0/3 rounds", "the operator has mended it"


@pytest.mark.parametrize(("rounds", "words"), [(1, "fedavg, 1 round of"), (2, "fedavg, 2 rounds of")])
def test_a_task_is_told_with_as_many_rounds(rounds: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    _say_task(TaskSpec(name="spring", method="fedavg", rounds=rounds), [])
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cannot", "want_more", "used_up", "left_out", "words"),
    [
        (1, 0, 0, 0, "1 phone cannot train its model and is not chosen"),
        (2, 0, 0, 0, "2 phones cannot train its model and are not chosen"),
        (0, 1, 0, 0, "1 phone is not chosen: its owner wants more phones in a sum"),
        (1, 2, 0, 0, "is not chosen; 2 phones are not chosen: their owners want more phones in a sum than its cohort"),
        (0, 0, 1, 0, "1 phone is not chosen: its pictures are in as many sums, over this model or of a day, as may be"),
        (0, 1, 2, 0, "than its cohort allows; 2 phones are not chosen: their pictures are in as many sums"),
        (0, 0, 0, 1, "1 phone is left out: it is in as many of its sums as it may put it into, or sums with it failed"),
        (0, 0, 1, 2, "as may be; 2 phones are left out: they are in as many of its sums as it may put them into, or"),
    ],
)
def test_who_is_not_chosen_is_counted_with_the_reason(
    cannot: int, want_more: int, used_up: int, left_out: int, words: str
) -> None:
    task = operator_pb2.TaskStatus(state="running", num_cannot_train=cannot, num_want_larger_sums=want_more)
    task.num_used_up, task.num_left_out = used_up, left_out
    assert words in not_chosen(task)
    task.state = "done"
    assert not_chosen(task) == ""


@pytest.mark.parametrize(
    ("state", "wanted", "since_ms", "lacks", "said"),
    [
        ("running", 20, 1_000_000, 0, "gathering: 3 of 20, since 2 min"),
        ("running", 20, 1_119_000, 0, "gathering: 3 of 20"),
        ("running", 20, 0, 0, "gathering: 3 of 20"),
        ("running", 20, 1_000_000, 1, "gathering: 3 of 20, since 2 min; waiting for a labelled source"),
        ("running", 20, 0, 2, "gathering: 3 of 20; waiting for 2 labelled sources"),
        ("running", 0, 0, 1, ""),
        ("paused", 20, 1_000_000, 0, ""),
    ],
)
def test_how_many_phones_wait_is_told_while_a_round_gathers(
    state: str, wanted: int, since_ms: int, lacks: int, said: str
) -> None:
    task = operator_pb2.TaskStatus(
        state=state,
        gathering_there=3,
        gathering_wanted=wanted,
        gathering_since_unix_ms=since_ms,
        gathering_lacks_labelled=lacks,
    )
    assert gathering(task, 1_120_000) == said
    assert (said and "gathering: 3 of 20") in (_View().news(operator_pb2.TaskEvent(task=task)))


def test_who_watches_hears_when_the_source_that_a_round_waits_for_comes() -> None:
    view, task = _View(), operator_pb2.TaskStatus(state="running", gathering_there=3, gathering_wanted=4)
    task.gathering_lacks_labelled = 1
    assert "waiting for a labelled source" in view.news(operator_pb2.TaskEvent(task=task))
    task.gathering_lacks_labelled = 0
    said = view.news(operator_pb2.TaskEvent(task=task))
    assert "gathering: 3 of 4" in said
    assert "labelled" not in said


def test_phones_that_want_larger_sums_are_a_line_of_their_own() -> None:
    view = _View()
    event_of = [
        operator_pb2.TaskEvent(task=operator_pb2.TaskStatus(state="running", num_want_larger_sums=number))
        for number in (0, 1, 2, 3)
    ]
    assert [bool(view.news(each)) for each in event_of] == [True, True, True, False]


def test_the_table_fits_an_ordinary_terminal() -> None:
    view, console = _View(), Console(width=80, record=True)
    closed = event(rounds_pb2.CLOSED)
    closed.round.num_selected = closed.round.num_trained = closed.round.num_reports = 200
    closed.round.metrics["loss_before"], closed.round.metrics["loss_after"] = 12.0, 11.5
    closed.round.model_id = "ab" * 32
    view.take(closed)
    with console.capture() as drawn:
        console.print(view.draw())
    text = drawn.get()
    assert "…" not in text
    assert all(words in text for words in ("asked, trained, sent", "200, 200, 200", "12.000 → 11.500", "abababababab"))


def test_cohorts_in_flight_say_which_model_they_are_on() -> None:
    """Cohort 2 made the first model while cohort 1, on none, still trains; cohort 3 begins on that model."""
    task = operator_pb2.TaskStatus(
        name="overlap",
        state="running",
        rounds_closed=1,
        rounds_total=5,
        task_json=b'{"asynchronous":{},"name":"overlap"}',
    )
    cohorts = [
        operator_pb2.RoundReport(round=rounds_pb2.RoundRef(round=2, attempt=1), stage=rounds_pb2.CLOSED),
        operator_pb2.RoundReport(round=rounds_pb2.RoundRef(round=1, attempt=1), stage=rounds_pb2.TRAINING),
        operator_pb2.RoundReport(
            round=rounds_pb2.RoundRef(round=3, attempt=1), stage=rounds_pb2.SELECTING, base_version=1
        ),
    ]
    cohorts[0].metrics["staleness"] = 0
    view = _View()
    events = [operator_pb2.TaskEvent(task=task, round=cohort) for cohort in cohorts]
    lines = [view.news(event) for event in events]
    assert lines[1] == "cohort 1: training; phones: 0 asked, 0 trained, 0 sent; on model 0, 1 behind"
    assert lines[2] == "cohort 3: selecting; phones: 0 asked, 0 trained, 0 sent; on model 1"
    table = view.draw()
    assert table.title == "overlap: running, 1/5 models, 2 cohorts in flight"
    assert [column.header for column in table.columns][-1] == "on"
    assert list(table.columns[-1].cells) == ["model 0, 1 behind", "model 0", "model 1"]
    assert _event(events[1])["round"]["base_version"] == 0


def test_a_task_whose_cohorts_add_up_tells_how_many_people_and_phones_are_in_its_total() -> None:
    view = _View()
    task = operator_pb2.TaskStatus(name="sums", state="running", rounds_closed=2, rounds_total=9)
    for number, phones in ((1, 100), (2, 203)):
        report = operator_pb2.RoundReport(stage=REPORTED_STAGES[Stage.CLOSED])
        report.round.round, report.round.attempt = number, 1
        report.metrics["people_in_total"], report.metrics["phones_in_total"] = 1.5 * phones, phones
        view.take(operator_pb2.TaskEvent(task=task, round=report))
    assert view._title() == "sums: running, 2/9 rounds, 304 people on 203 phones in all cohorts"


def test_the_preset_of_phones_gives_way_to_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "night.toml"
    text = 'name = "night"\npreset = "{}"\n[cohort]\nsize = 30\n[deadlines]\nkeys_s = 40\n'
    file.write_text(text.format("phones"))
    task = read_task(file)
    assert (task.cohort.size, task.cohort.over_selection, task.deadlines.keys_s) == (30, 1.2, 40.0)
    file.write_text(text.format("phones").replace("keys_s = 40", ""))
    deadlines = read_task(file).deadlines
    after_the_choice = ("training_s", "keys_s", "shares_s", "upload_s", "consistency_s", "unmask_s")
    assert sum(getattr(deadlines, name) for name in after_the_choice) < 600, "it ends within one job of Android's"
    file.write_text(text.format("phones").replace("keys_s = 40", "training_s = 100\nupload_s = 20"))
    deadlines = read_task(file).deadlines  # a soft deadline of the preset's does not outlast the file's own
    assert (deadlines.training_s, deadlines.training_soft_s, deadlines.upload_soft_s) == (100.0, 100.0, 20.0)
    file.write_text(text.format("fones"))
    with pytest.raises(ConfigError, match="preset is 'fones'; known presets: phones"):
        read_task(file)
    file.write_text('name = "night"\npreset = "phones"\ndeadlines = 3\n')
    with pytest.raises(ConfigError, match="deadlines"):
        read_task(file)


@dataclass
class _Counts:
    """A coordinator that says of which populations devices have called, or why it does not say."""

    populations: tuple[str, ...]
    error: MienError | None = None

    async def count_seen_devices(self) -> dict[str, int]:
        if self.error is not None:
            raise self.error
        return dict(Counter(self.populations))


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ((), ""),
        (("beta", "default"), ""),
        (("beta", "defualt"), "no phone of population 'default' has called yet; did you mean 'defualt'?"),
        (("b", "a", "b"), "those that called are of a, b. The task waits"),
    ],
)
def test_a_population_of_which_no_phone_has_called_is_named(seen: tuple[str, ...], said: str) -> None:
    """A wrong name would be a task that waits without end and without a word."""

    found = asyncio.run(said_of_population(cast("Coordinator", _Counts(seen)), "default", Path("fleet")))
    assert said in found
    assert bool(said) == bool(found)
    assert not found or "device invite --population default --home fleet" in found


def test_the_way_to_invites_names_the_operators_folder_that_a_quick_start_made(tmp_path: Path) -> None:
    devices = cast("Coordinator", _Counts(("other",)))
    home, operator = tmp_path / "coordinator", tmp_path / "operator"
    assert "--operator" not in asyncio.run(said_of_population(devices, "default", home))
    operator.mkdir()
    (operator / "registrar.toml").write_text("")
    told = asyncio.run(said_of_population(devices, "default", home))
    assert f"device invite --population default --home {home} --operator {operator} makes invites" in told


def test_a_method_that_tells_no_labelled_devices_is_the_first_thing_said(tmp_path: Path) -> None:
    """Of such a task nothing else need be mended: sums in groups, or more reports, would not help."""
    file = tmp_path / "task.toml"
    text = 'name = "a"\nmethod = "{}"\n[cohort]\nsize = 4\nmin_reports = 4\n[cohort.must_include]\nlabelled = 9\n'
    file.write_text(text.format("fedavg"))
    with pytest.raises(ConfigError, match="method fedavg trains all of its devices alike; leave it out"):
        read_task(file)
    file.write_text(text.format("fedfr_uda"))
    with pytest.raises(ConfigError, match="labelled is 9"):
        read_task(file)


def test_a_task_that_is_submitted_is_said_to_be_so_also_where_no_phones_can_be_asked_for() -> None:
    for error in (UnreachableError("the coordinator does not answer"), VersionError("it is an older one")):
        found = said_of_population(cast("Coordinator", _Counts(("other",), error)), "default", Path("fleet"))
        assert asyncio.run(found) == ""


def test_a_task_that_goes_on_is_not_submitted_twice_in_silence() -> None:
    task = TaskSpec("spring")

    def said(*tasks: tuple[str, str, TaskSpec]) -> str:
        statuses = [
            operator_pb2.TaskStatus(task_id=task_id, name=spec.name, state=state, task_json=task_to_json(spec))
            for task_id, state, spec in tasks
        ]
        return said_of_earlier(statuses, task, Path("fleet"))

    with pytest.raises(AlreadyExistsError, match=r"\(aa, paused\).* task cancel spring --home fleet ends it"):
        said(("bb", "running", TaskSpec("copy")), ("aa", "paused", task))
    assert "copy (aa) asks for the same" in said(("aa", "running", TaskSpec("copy")))
    assert "is done (aa); this is one more" in said(("aa", "done", task), ("bb", "done", TaskSpec("copy")))
    assert not said(("aa", "running", TaskSpec("other", rounds=3)), ("bb", "done", TaskSpec("copy")))


class _Refuses:
    """A coordinator that takes no task."""

    async def tasks(self) -> list[operator_pb2.TaskStatus]:
        return []

    async def count_seen_devices(self) -> dict[str, int]:
        return {"default": 1}

    async def submit(self, *_: object) -> operator_pb2.TaskStatus:
        raise ConfigError("the released model has no part adapter.*")


def test_of_a_task_that_is_refused_nothing_is_said_but_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "task.toml"
    file.write_text(TASK.format(phones=5))
    monkeypatch.setattr(tasks, "ask", lambda _home, question: asyncio.run(question(_Refuses())))
    with pytest.raises(ConfigError, match="has no part"):
        tasks.submit(file, tmp_path)
    assert capsys.readouterr().out == ""
