"""The ledger in a real database: in one transaction with a round, whole after kill -9, stopped by a change."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.store import account
from coordinator.store.database import sqlite_url
from coordinator.store.report import report
from coordinator.store.store import Store
from coordinator.store.tables import PRIVACY_EVENTS
from mien.dp.accountant import Release, epsilon_rdp
from mien.dp.ledger import Opening
from mien.errors import BudgetExceededError, CorruptDataError, ReplayError
from mien.protocol.canonical import task_to_json
from mien.protocol.rounds import BlobId, Stage
from mien.rounds.machine import RoundState, Step
from mien.rounds.records import ModelRecord, RoundChange, TaskRecord, TaskState
from mien.shell.clock import Clock
from mien.specs import CohortSpec, DpSpec, PrivacySpec, TaskSpec

ROOT = Path(__file__).resolve().parents[3]
DP = DpSpec("central_gaussian", 30.0, epsilon=8.0, delta=1e-5, max_participations=4, min_separation=2)
RELEASE = Release("central_gaussian", 30.0, 2.0**16, 1000)


def spec(dp: DpSpec = DP) -> TaskSpec:
    return TaskSpec(
        "demo",
        trainable=("head*",),
        cohort=CohortSpec(20, 16),
        privacy=PrivacySpec(max_weight=1 if dp.is_on else 64, dp=dp),
    )


def opening(round_: int = 1, *, task: str = "t1", dp: DpSpec = DP, attempt: int = 1) -> Opening:
    return Opening(task, round_, attempt, "c" * 64, 1.0, dp, RELEASE if dp.is_on else None, num_survivors=3)


def devices(round_: int) -> list[str]:
    """Three devices that take turns, so that no cap stops a long run."""
    return [f"{round_:04d}{k}" for k in range(3)]


def add_task(store: Store, task_id: str, dp: DpSpec = DP) -> TaskRecord:
    model = ModelRecord("a" * 64, b"{}", "1" * 64, BlobId("a" * 64, 400), 1000)
    store.add_model(model, actor="alice")
    record = TaskRecord(
        *(
            task_id,
            f"demo-{task_id}",
            "default",
            task_to_json(spec(dp)),
            task_id,
            TaskState.RUNNING,
            "a" * 64,
            "a" * 64,
            "alice",
        ),
        created_ms=1,
    )
    return store.add_task(record)


def record(store: Store, made: Opening, ids: list[str] | None = None) -> None:
    ids = devices(made.round) if ids is None else ids
    store.privacy(lambda db: account.record_opening(db, "default", made, ids))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store.open(sqlite_url(path), Clock())
    add_task(store, "t1")
    yield store
    store.close()


def test_an_event_outlives_the_process(store: Store, path: Path) -> None:
    record(store, opening(1))
    record(store, opening(2))
    head = store.privacy(lambda db: account.load(db, "default")).head
    store.close()
    again = Store.open(sqlite_url(path), Clock())
    ledger = again.privacy(lambda db: account.load(db, "default"))
    again.close()
    assert ledger.head == head
    assert ledger.epsilon(1e-5) == pytest.approx(epsilon_rdp([(RELEASE, 1)], 1e-5))  # rounds 1 and 2 lie too close


def test_an_event_is_committed_with_its_transition_or_not_at_all(store: Store) -> None:
    with pytest.raises(ReplayError, match="another sum"):
        store.privacy(
            lambda db: (
                account.record_opening(db, "default", opening(1), devices(1)),
                account.record_opening(db, "default", replace(opening(1), num_survivors=2), devices(1)),
            )
        )
    assert store.privacy(account.populations) == []


def test_the_same_attempt_again_is_the_same_event(store: Store) -> None:
    record(store, opening(1))
    record(store, opening(1))
    assert len(store.privacy(lambda db: account.load(db, "default")).events) == 1


def test_the_budget_stops_attempts_and_openings(store: Store) -> None:
    tight = replace(DP, epsilon=epsilon_rdp([(RELEASE, 1)], 1e-5) + 1e-9, min_separation=0)
    record(store, opening(1, dp=tight))
    with pytest.raises(BudgetExceededError):
        store.privacy(lambda db: account.before_attempt(db, "default", opening(2, dp=tight)))
    with pytest.raises(BudgetExceededError):
        record(store, opening(2, dp=tight))
    store.privacy(lambda db: account.before_attempt(db, "another population", opening(2, dp=tight)))
    assert len(store.privacy(lambda db: account.load(db, "default")).events) == 1


def test_caps_of_devices_hold(store: Store) -> None:
    for round_ in (1, 3, 5):
        record(store, opening(round_), ["alice", "bob"])
    record(store, opening(7), ["alice"])

    assert store.privacy(lambda db: account.barred(db, "t1", DP, 9)) == {"alice"}
    assert store.privacy(lambda db: account.barred(db, "t1", DP, 7)) == {"alice"}
    assert store.privacy(lambda db: account.barred(db, "t1", DP, 6)) == {"alice", "bob"}
    with pytest.raises(BudgetExceededError, match="1 devices of this sum"):
        record(store, opening(9), ["alice", "bob"])


def test_sums_without_noise_are_events_too(store: Store) -> None:
    add_task(store, "t2", DpSpec())
    record(store, opening(1, task="t2", dp=DpSpec()))
    with pytest.raises(BudgetExceededError, match="unbounded"):
        store.privacy(lambda db: account.before_attempt(db, "default", opening(1)))


def test_rounds_that_closed_without_an_event_void_every_promise(store: Store) -> None:
    task = add_task(store, "t2", DpSpec())
    begun = store.open_attempt(task, round_number=1, attempt=1, deadline=10.0)
    store.save_round(RoundChange(begun, RoundState(Stage.CLOSED, 0.0)))
    assert store.privacy(lambda db: account.unrecorded_rounds(db, "default")) == 1
    with pytest.raises(BudgetExceededError, match="closed without an event"):
        store.privacy(lambda db: account.before_attempt(db, "default", opening(1)))


def test_an_adaptive_clip_follows_the_rounds(store: Store) -> None:
    adaptive = spec(replace(DP, target_quantile=0.5))

    def clip(round_: int, task: TaskSpec = adaptive) -> float:
        return store.privacy(lambda db: account.clip_for(db, "t1", task, round_))

    assert clip(1) == 10.0
    store.privacy(lambda db: account.keep_clip(db, "t1", 1, 7.5))
    store.privacy(lambda db: account.keep_clip(db, "t1", 2, 6.5))
    store.privacy(lambda db: account.keep_clip(db, "t1", 2, 6.25))
    assert [clip(1), clip(2), clip(3), clip(9)] == [10.0, 7.5, 6.25, 6.25]
    assert clip(9, spec()) == 10.0


def tamper(store: Store, statement: sa.Update | sa.Delete) -> None:
    store.privacy(lambda db: db.execute(statement))


def test_a_changed_database_stops_its_population(store: Store) -> None:
    for round_ in (1, 2, 3):
        record(store, opening(round_))
    second = PRIVACY_EVENTS.c.position == 1
    row = store.privacy(lambda db: db.execute(sa.select(PRIVACY_EVENTS).where(second)).one())
    forged = row.event_json.replace(b'"noise_multiplier":30.0', b'"noise_multiplier":90.0')
    assert forged != row.event_json
    for statement in (
        sa.update(PRIVACY_EVENTS).where(second).values(event_json=forged),
        sa.update(PRIVACY_EVENTS).where(second).values(attempt=7),
        sa.delete(PRIVACY_EVENTS).where(second),
    ):
        tamper(store, statement)
        for refused in (account.load, lambda db, name: account.before_attempt(db, name, opening(4))):
            with pytest.raises(CorruptDataError, match="open no more sums"):
                store.privacy(lambda db, call=refused: call(db, "default"))
        (found,) = store.privacy(report)
        assert not found.verifies
        assert "ledger was changed" in found.problem
        values = {column: getattr(row, column) for column in ("event_json", "attempt")}
        if not isinstance(statement, sa.Delete):
            tamper(store, sa.update(PRIVACY_EVENTS).where(second).values(**values))
            store.privacy(lambda db: account.load(db, "default"))


def test_the_report_says_what_is_spent_by_task_and_round(store: Store) -> None:
    for round_ in (1, 3, 5):
        record(store, opening(round_), ["alice", "bob"])
    (found,) = store.privacy(report)
    expected = epsilon_rdp([(RELEASE, 3)], 1e-5)
    (budget,), (task,) = found.budgets, found.tasks
    assert found.verifies
    assert (found.num_sums, found.num_sums_without_noise, found.num_rounds_without_event) == (3, 0, 0)
    assert (budget.epsilon, budget.delta) == (8.0, 1e-5)
    assert budget.spent_rdp == pytest.approx(expected)
    assert budget.spent_pld is not None
    assert 0 < budget.spent_pld < expected
    assert budget.epsilon_replace == pytest.approx(epsilon_rdp([(RELEASE.replaced, 3)], 1e-5))
    assert (task.most_participations, task.max_participations) == (3, 4)
    assert [each["round"] for each in task.sums] == [1, 3, 5]
    assert task.sums[-1]["epsilon_after"] == pytest.approx(expected)
    assert "epsilon 8 at delta 1e-05" in task.guarantee[0]


def test_the_account_is_whole_after_kill_9(store: Store, path: Path) -> None:
    """Whatever a process said was committed is there after it was killed, and the chain goes on from it."""
    store.close()
    told = 0
    for _ in range(2):
        command = [sys.executable, "-m", "tests.coordinator.store.writer", str(path), str(told + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            for line in process.stdout:
                told = int(line)
                if told % 4 == 0:
                    process.send_signal(signal.SIGKILL)
                    break
            told = max([told, *(int(line) for line in process.stdout)])
        again = Store.open(sqlite_url(path), Clock())
        (found,) = again.privacy(report)
        again.close()
        assert found.verifies
        assert told <= found.num_sums <= told + 1
        told = found.num_sums
    assert told >= 8


def test_where_a_device_counts_once_an_opened_sum_keeps_it_out_for_good(store: Store) -> None:
    """Without noise too, and asked for a few devices or for all."""
    off = DpSpec()
    plain = replace(opening(1, dp=off), release=None)
    store.privacy(lambda db: account.record_opening(db, "default", plain, ["alice", "bob"], counts_once=True))
    barred = partial(account.barred, task_id="t1", dp=off, round_=2, counts_once=True)
    assert store.privacy(lambda db: barred(db)) == {"alice", "bob"}
    assert store.privacy(lambda db: barred(db, among=["bob", "carol"])) == {"bob"}
    assert store.privacy(lambda db: barred(db, among=["bob", *map(str, range(500))])) == {"bob"}
    assert store.privacy(lambda db: account.barred(db, "t2", off, 2, counts_once=True)) == frozenset()
    assert store.privacy(lambda db: account.barred(db, "t1", off, 2)) == frozenset()
    again = replace(plain, round=2)
    with pytest.raises(BudgetExceededError, match="1 devices of this sum took part once, as its sums add up"):
        store.privacy(lambda db: account.record_opening(db, "default", again, ["bob", "carol"], counts_once=True))


def test_a_device_that_says_it_is_counted_is_believed(store: Store) -> None:
    """Its own log outlives a coordinator that was restored from an older backup."""
    task = store.task("t1")
    record = store.open_attempt(task, round_number=1, attempt=1, deadline=9.0)
    state = RoundState(Stage.TRAINING, 9.0, {}, {"alice": Step.LEFT, "bob": Step.LEFT})
    codes = {"alice": BudgetExceededError.code, "bob": "late"}
    store.save_round(RoundChange(record, state, steps=state.participants, error_codes=codes))
    found = store.privacy(lambda db: account.barred(db, "t1", DpSpec(), 1, counts_once=True))
    assert found == {"alice"}
