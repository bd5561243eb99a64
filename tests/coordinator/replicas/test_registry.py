"""Leases on a real PostgreSQL: one owner at a time, by the database's clock, and no commit of an earlier one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from coordinator.replicas.fencing import FencedStore
from coordinator.replicas.registry import (
    Registry,
    Replica,
    limit_idle_transactions,
    listed,
    refuse_beside_replicas,
)
from mien.errors import ConfigError, DrainingError, UnreachableError
from mien.protocol.rounds import BlobId, Stage
from mien.rounds.machine import RoundState
from mien.rounds.records import ModelRecord, RoundChange, RoundRecord, TaskRecord, TaskState
from mien.shell.clock import Clock

LONG_S, SHORT_S = 60.0, 0.3
MODEL = ModelRecord("a" * 64, b"{}", "b" * 64, BlobId("c" * 64, 4), created_ms=1)
TASK = TaskRecord(
    task_id="1" * 16,
    name="task",
    population="east",
    task_json=b"{}",
    idempotency_token="token",
    state=TaskState.RUNNING,
    base_model_id=MODEL.model_id,
    model_id=MODEL.model_id,
    submitted_by="someone",
    created_ms=1,
)

Join = Callable[..., Registry]


@pytest.fixture
def store(postgres_url: str) -> Iterator[FencedStore]:
    """A database with one task, and no replica yet."""
    store = FencedStore.open(postgres_url, Clock())
    store.add_model(MODEL, actor="someone")
    store.add_task(TASK)
    yield store
    store.close()


@pytest.fixture
def join(postgres_url: str, store: FencedStore) -> Iterator[Join]:
    """Make one more replica; however short its lease is, its transactions may take their time."""
    made: list[Registry] = []

    def make(name: str, lease_s: float = LONG_S) -> Registry:
        replica = Replica(name, "host", f"{name}.example:1", "mien", 1)
        registry = Registry(postgres_url, replica, lease_s=lease_s)
        limit_idle_transactions(registry._engine, LONG_S)
        made.append(registry)
        registry.enter()
        registry.register()
        return registry

    yield make
    for registry in made:
        registry.close()


def test_the_first_has_the_lease_and_others_know_where_it_is(join: Join) -> None:
    first, second = join("first"), join("second")
    assert first.beat().held == {"east": 1}
    view = second.beat()
    assert view.held == {}
    assert view.owners == {"east": "first"}
    assert view.addresses == {"first": "first.example:1", "second": "second.example:1"}
    assert first.beat().held == {"east": 1}, "a lease that is renewed keeps its epoch"


def test_a_lease_that_ran_out_is_taken_with_a_new_epoch(join: Join) -> None:
    first, second = join("first", SHORT_S), join("second")
    assert first.beat().held == {"east": 1}
    time.sleep(2 * SHORT_S)
    assert second.beat().held == {"east": 2}
    assert first.beat().held == {}
    time.sleep(2 * SHORT_S)
    assert first.beat().held == {}, "the second one's lease is long"


def test_a_lease_that_ran_out_and_that_nobody_took_is_still_its_owners(join: Join) -> None:
    first = join("first", SHORT_S)
    first.beat()
    time.sleep(2 * SHORT_S)
    assert first.look().owners == {"east": ""}
    assert first.beat().held == {"east": 1}


def test_a_replica_that_leaves_waits_for_nobody(join: Join) -> None:
    first, second = join("first"), join("second")
    first.beat()
    first.leave()
    assert second.look().owners == {"east": ""}
    assert second.beat().held == {"east": 2}
    with second._transaction() as db:
        assert [replica.replica_id for replica in listed(db, LONG_S)] == ["second"]


def test_one_that_starts_again_at_the_same_address_waits_for_nobody(join: Join) -> None:
    join("first").beat()
    again = join("again")
    again.replica = replace(again.replica, address="first.example:1")
    again.register()
    assert again.beat().held == {"east": 2}


def test_a_retiring_replica_takes_nothing_but_what_nobody_attends_to_is_taken(join: Join) -> None:
    first, second = join("first"), join("second")
    assert first.beat(takes=False).held == {}
    assert second.claim("west").held == {"west": 1}
    assert second.beat().held == {"east": 1, "west": 1}
    assert first.claim("west").owners["west"] == "second"


def test_only_the_first_is_alone(postgres_url: str, store: FencedStore) -> None:
    replicas = [Replica(name, "host", f"{name}:1", "mien", 1) for name in ("first", "second")]
    first, second = (Registry(postgres_url, replica, lease_s=LONG_S) for replica in replicas)
    assert first.enter()
    first.register()
    assert not second.enter()
    for registry in (first, second):
        registry.close()


def test_what_is_listed(join: Join, store: FencedStore) -> None:
    join("first").beat()
    join("second", SHORT_S)
    time.sleep(5 * SHORT_S)
    first, second = store.privacy(lambda db: listed(db, SHORT_S))
    assert (first.replica_id, first.populations, first.is_alive) == ("first", ("east",), False)
    assert (second.replica_id, second.populations, second.address) == ("second", (), "second.example:1")
    assert second.silent_s >= 4 * SHORT_S
    assert not any(each.is_alive for each in store.privacy(lambda db: listed(db, 4 * SHORT_S))), "their leases ran out"


def test_a_coordinator_that_knows_of_no_replicas_does_not_serve_beside_them(join: Join, store: FencedStore) -> None:
    store.privacy(lambda db: refuse_beside_replicas(db, LONG_S))
    join("first")
    with pytest.raises(ConfigError, match=r"1 replicas share this database, the first at first\.example:1"):
        store.privacy(lambda db: refuse_beside_replicas(db, LONG_S))


def opened(store: FencedStore, held: dict[str, int], attempt: int = 1) -> RoundRecord:
    store.held = dict(held)
    return store.open_attempt(TASK, round_number=1, attempt=attempt, deadline=100.0)


def test_an_owner_commits(join: Join, store: FencedStore) -> None:
    held = join("first").beat().held
    record = opened(store, dict(held))
    after = store.save_round(RoundChange(record, RoundState(Stage.ABORTED, 0.0, reason="test")))
    assert after.stage is Stage.ABORTED
    store.save_task(replace(TASK, state=TaskState.PAUSED), actor="someone", action="task.paused")
    assert store.task(TASK.task_id).state is TaskState.PAUSED


def test_an_earlier_owner_commits_nothing(join: Join, store: FencedStore) -> None:
    first, second = join("first", SHORT_S), join("second")
    record = opened(store, dict(first.beat().held))
    lost: list[str] = []
    store.on_lost = lost.append
    time.sleep(2 * SHORT_S)
    assert second.beat().held == {"east": 2}
    for commit in (
        lambda: store.save_round(RoundChange(record, RoundState(Stage.ABORTED, 0.0, reason="test"))),
        lambda: store.save_task(replace(TASK, state=TaskState.PAUSED), actor="someone", action="task.paused"),
        lambda: store.open_attempt(TASK, round_number=1, attempt=2, deadline=100.0),
    ):
        with pytest.raises(DrainingError, match="another replica runs this task"):
            commit()
    assert lost == ["east"] * 3
    assert store.last_round(TASK.task_id) == record
    assert store.task(TASK.task_id).state is TaskState.RUNNING


def test_a_take_over_waits_for_a_commit_that_has_begun_but_not_for_one_that_was_stopped(
    join: Join, store: FencedStore
) -> None:
    """The lease is read under a lock that lasts as long as the transaction, and the server ends a silent client's."""
    first, second = join("first", SHORT_S), join("second")
    store.limit_idle(1.0)
    store.held = dict(first.beat().held)
    time.sleep(2 * SHORT_S)

    def stop_in_the_middle() -> None:
        with store._transaction(TASK.task_id):
            assert second.beat().held == {"east": 2}

    with pytest.raises(UnreachableError):  # the stopped replica's transaction was in the way, and was ended
        stop_in_the_middle()


def test_replicas_share_no_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'test.db'}"
    with pytest.raises(ConfigError, match="replicas can only share PostgreSQL"):
        FencedStore.open(url, Clock())
    with pytest.raises(ConfigError, match="replicas can only share PostgreSQL"):
        Registry(url, Replica("first", "host", "first:1", "mien", 1), lease_s=LONG_S)
