"""Training that stops: the round is over, went on, or the owner took the phone away."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from device_sdk.client import ClientSettings, CoordinatorClient, RoundRef
from device_sdk.conditions import StatedConditions
from device_sdk.keystore import FileKeyStore
from device_sdk.participate import Counted, NotCounted
from device_sdk.watch import LOOK_EVERY_S, TrainingWatch
from mien.errors import LateError
from mien.wire.v1 import rounds_pb2
from tests.device_sdk.bench import Bench, engine, open_bench, stages
from tests.device_sdk.clocks import ShiftedClock
from tests.device_sdk.scripted import BrokenConnectionError, Fleet, Script, scripted_coordinator

REF = RoundRef("t1", 2, 1)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet.create()


@dataclass
class Look:
    script: Script
    clock: ShiftedClock
    client: CoordinatorClient

    def watch(self, conditions: Any = None) -> TrainingWatch:
        return TrainingWatch(self.client, REF, conditions or StatedConditions(), self.clock)

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


def test_conditions_that_end_stop_it_without_asking_the_coordinator(look: Look) -> None:
    watch = look.watch(StatedConditions(charging=False))
    look.later()
    assert watch()
    assert watch.reason == "the phone is no longer charging; it leaves the round"
    assert look.script.calls == []


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
