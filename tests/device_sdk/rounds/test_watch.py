"""Training that stops: the round is over, went on, or the owner took the phone away."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from device_sdk.rounds.budget import TrainingBudget
from device_sdk.rounds.conditions import StatedConditions
from device_sdk.rounds.participate import Counted, Failed, NotCounted
from device_sdk.rounds.watch import LOOK_EVERY_S, UNTOLD_PAUSE_S, TrainingWatch
from device_sdk.server.client import ClientSettings, CoordinatorClient
from device_sdk.storage.keystore import FileKeyStore
from mien.errors import ConfigError, LateError
from mien.protocol.rounds import RoundRef
from mien.protocol.v1 import rounds_pb2
from tests.device_sdk.bench import Bench, engine, open_bench, stages
from tests.device_sdk.clocks import HandClock, ShiftedClock
from tests.device_sdk.scripted import BrokenConnectionError, Fleet, Script, scripted_coordinator

pytestmark = pytest.mark.usefixtures("patient_glances")

REF = RoundRef("t1", 2, 1)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet.create()


@dataclass
class Look:
    script: Script
    clock: ShiftedClock
    client: CoordinatorClient

    def watch(self, conditions: Any = None, **options: Any) -> TrainingWatch:
        return TrainingWatch(self.client, REF, conditions or StatedConditions(), self.clock, **options)

    def later(self) -> None:
        self.clock.sleep(LOOK_EVERY_S)


@pytest.fixture
def look(fleet: Fleet) -> Iterator[Look]:
    script, clock = Script(), ShiftedClock()
    with (
        scripted_coordinator(fleet, script) as address,
        CoordinatorClient(fleet.identity(address), clock, random.Random(0), ClientSettings()) as client,
    ):
        yield Look(script, clock, client)


def test_it_looks_every_quarter_of_a_minute_and_not_at_every_step(look: Look) -> None:
    look.script.follow = stages(rounds_pb2.TRAINING)
    watch = look.watch()
    assert not any(watch() for _ in range(50))
    assert look.script.calls == []
    look.later()
    assert not any(watch() for _ in range(50))
    assert look.script.calls == ["follow"]


@pytest.mark.parametrize(
    ("follow", "words"),
    [
        (stages(rounds_pb2.ABORTED, reason="too few"), r"went on without this phone \(too few\)"),
        (stages(rounds_pb2.CLOSED), "went on without this phone"),
        (stages(rounds_pb2.KEYS), "went on without this phone"),
        (stages(rounds_pb2.UPLOAD), "went on without this phone"),
    ],
)
def test_a_round_that_is_past_training_stops_it_for_good(
    look: Look, follow: Callable[[], Iterable[rounds_pb2.StageEvent]], words: str
) -> None:
    look.script.follow = follow
    watch = look.watch()
    look.later()
    assert watch()
    look.script.follow = stages(rounds_pb2.TRAINING)
    look.later()
    assert watch()
    assert look.script.calls == ["follow"]
    with pytest.raises(LateError, match=words):
        raise LateError(watch.reason)


def test_a_coordinator_that_does_not_answer_is_no_reason_to_stop(look: Look) -> None:
    def broken() -> Iterable[rounds_pb2.StageEvent]:
        raise BrokenConnectionError

    look.script.follow = broken
    watch = look.watch()
    look.later()
    assert not watch()
    look.script.follow = look.script.fails_first(1, LateError("this round is over"), ())
    look.later()
    assert watch()
    assert watch.reason == "this round is over"


# --- conditions that end ---


class Unplugged:
    """Conditions that do not hold for so many looks, then hold again."""

    def __init__(self, looks: int, *missing: str) -> None:
        self.looks, self.missing = looks, missing or ("charging",)

    def unmet(self) -> tuple[str, ...]:
        self.looks -= 1
        return self.missing if self.looks >= 0 else ()


def training(remaining_s: float) -> Callable[[], Iterable[rounds_pb2.StageEvent]]:
    event = rounds_pb2.StageEvent(stage=rounds_pb2.TRAINING, remaining_ms=int(remaining_s * 1000))
    return lambda: [event]


def test_training_pauses_while_the_phone_may_not_work_and_goes_on(look: Look) -> None:
    look.script.follow = training(3600.0)
    told: list[tuple[str, str]] = []
    watch = look.watch(Unplugged(4), tell=lambda kind, text: told.append((kind, text)))
    look.later()
    before_s = watch.trained_s
    assert not watch()
    assert watch.reason == ""
    assert [kind for kind, _ in told] == ["paused", "continued"]
    assert told[0][1].startswith("The phone is no longer charging: training pauses")
    # Seen missing at the first look and at three more, a quarter of a minute apart.
    assert look.clock.pauses == [LOOK_EVERY_S] * 4
    assert watch.trained_s - before_s < LOOK_EVERY_S  # the pause is no training


def test_a_pause_ends_with_the_round(look: Look) -> None:
    look.script.follow = training(40.0)
    watch = look.watch(Unplugged(10**9, "idle", "charging"))
    look.later()
    look.script.follow = _then(training(40.0), stages(rounds_pb2.KEYS))
    assert watch()
    assert watch.reason == (
        "the phone is no longer idle and charging, and the round went on without this phone; nothing is lost"
    )
    assert isinstance(watch.error, LateError)


def test_a_pause_ends_at_the_deadline_if_nobody_answers(look: Look) -> None:
    look.script.follow = _then(training(40.0), _broken)
    watch = look.watch(Unplugged(10**9))
    look.later()
    assert watch()
    assert watch.reason == "the phone is no longer charging, and the round waits no longer; it leaves the round"
    assert sum(look.clock.pauses[1:]) == pytest.approx(40.0, abs=10.0)


def test_a_pause_for_a_round_that_nobody_knows_of_ends_too(look: Look) -> None:
    look.script.follow = _broken
    watch = look.watch(Unplugged(10**9))
    look.later()
    assert watch()
    assert sum(look.clock.pauses[1:]) <= UNTOLD_PAUSE_S


def _broken() -> Iterable[rounds_pb2.StageEvent]:
    raise BrokenConnectionError


def _then(
    first: Callable[[], Iterable[rounds_pb2.StageEvent]], later: Callable[[], Iterable[rounds_pb2.StageEvent]]
) -> Callable[[], Iterable[rounds_pb2.StageEvent]]:
    calls = iter([first])
    return lambda: next(calls, later)()


# --- a budget of time ---


class _Unasked:
    """A coordinator that is not to be asked."""

    def glance(self, _ref: RoundRef) -> Any:
        raise AssertionError


def timed(clock: HandClock, max_training_s: float) -> TrainingWatch:
    client = cast("CoordinatorClient", _Unasked())
    watch = TrainingWatch(client, REF, StatedConditions(), clock, max_training_s=max_training_s)
    watch._next_look_s = 1e9  # the budget alone is looked at here
    return watch


def test_training_that_cannot_end_in_time_ends_at_half_of_it() -> None:
    clock = HandClock()
    watch = timed(clock, 100.0)
    for done in range(5):
        assert not watch(40 - done)
        clock.advance(10.0)  # 40 steps of 10 s: 400 s; seen at half of the budget
    assert watch(35)
    assert isinstance(watch.error, ConfigError)
    assert "participation.max_training_s (1 min 40 s) allows: 50 s spent, 35 steps left" in watch.reason


@pytest.mark.parametrize(("last_step_s", "stops"), [(24.5, False), (25.5, True)])
def test_the_fastest_step_decides_what_is_still_possible(last_step_s: float, stops: bool) -> None:
    clock = HandClock()
    watch = timed(clock, 100.0)
    for steps_left, step_s in ((11, 30.0), (10, 5.0), (9, last_step_s)):  # the first looks the features up
        assert not watch(steps_left)
        clock.advance(step_s)
    assert watch(8) is stops  # 60 s are spent, and 8 steps take 5 s each at best


def test_training_that_ends_in_time_is_left_alone() -> None:
    clock = HandClock()
    watch = timed(clock, 100.0)
    for done in range(10):
        assert not watch(10 - done)
        clock.advance(10.0)
    clock.advance(0.5)
    assert watch(1)


# --- in a round ---


class Slow:
    """The real engine on a slow phone: every look at the clock finds half a minute gone."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.steps = bench, 0

    def embed(self, *args: Any) -> Any:
        return engine().embed(*args)

    def train(self, *args: Any) -> Any:
        *given, should_stop = args

        def later() -> bool:
            self.steps += 1
            self.bench.participant.clock.sleep(30.0)
            return bool(should_stop())

        return engine().train(*given, later)


@pytest.fixture
def bench(tmp_path: Path, key_store: FileKeyStore, fleet: Fleet) -> Iterator[Bench]:
    with open_bench(tmp_path / "home", key_store, fleet) as made:
        made.keep_old_state()
        yield made


@pytest.mark.parametrize("stage", [rounds_pb2.ABORTED, rounds_pb2.UPLOAD])
def test_a_phone_does_not_train_to_the_end_of_a_round_that_is_over(bench: Bench, stage: int) -> None:
    slow = Slow(bench)
    bench.participant = replace(bench.participant, runtime_for=lambda _model: slow)
    bench.script.follow = stages(stage)
    outcome = bench.participant.step()
    assert isinstance(outcome, NotCounted)
    assert "went on without this phone" in outcome.reason
    assert slow.steps == 1
    assert bench.script.left_with == ["late"]
    assert bench.state_is_old()
    assert bench.gallery.pending() is None


def test_a_slow_phone_that_is_in_time_counts(bench: Bench) -> None:
    slow = Slow(bench)
    bench.participant = replace(bench.participant, runtime_for=lambda _model: slow)
    assert isinstance(bench.participant.step(), Counted)
    assert slow.steps > 0


def test_a_phone_out_of_its_time_budget_leaves_and_says_which_limit(bench: Bench) -> None:
    slow = Slow(bench)
    budget = TrainingBudget(max_training_s=20.0)
    bench.participant = replace(bench.participant, runtime_for=lambda _model: slow, budget=budget)
    outcome = bench.participant.step()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, ConfigError)
    assert "participation.max_training_s (20 s)" in outcome.error.message
    assert bench.script.left_with == ["config"]
    assert bench.state_is_old()
    assert bench.gallery.pending() is None


def test_a_phone_that_is_plugged_in_again_counts(bench: Bench) -> None:
    """The step asks before it checks in and before it trains; then the cable is out for two looks."""
    slow = Slow(bench)
    looks = iter([(), (), ("charging",), ("charging",)])

    class Cable:
        def unmet(self) -> tuple[str, ...]:
            return next(looks, ())

    bench.participant = replace(bench.participant, runtime_for=lambda _model: slow, conditions=Cable())
    assert isinstance(bench.participant.step(), Counted)
    kinds = [event.kind for event in bench.events]
    assert kinds.index("training") < kinds.index("paused") < kinds.index("continued") < kinds.index("trained")


def test_progress_is_told_every_few_seconds_to_the_end(bench: Bench) -> None:
    slow = Slow(bench)
    bench.participant = replace(bench.participant, runtime_for=lambda _model: slow)
    assert isinstance(bench.participant.step(), Counted)
    told = [event.facts for event in bench.events if event.kind == "progress"]
    assert told
    assert told[-1]["steps_done"] == told[-1]["steps"] == slow.steps
