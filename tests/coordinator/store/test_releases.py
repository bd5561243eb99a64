"""Releases, verdicts and retention as transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from coordinator.store.database import migrate, open_engine, sqlite_url
from coordinator.store.store import MIGRATIONS, Store
from mien.errors import ConfigError, NotFoundError
from mien.protocol.rounds import BlobId, Stage
from mien.rounds.machine import RoundState
from mien.rounds.records import BundleRecord, CandidateRecord, CandidateState, EvaluationRecord, RoundChange, TaskState
from mien.rounds.rollouts import RollOutSpec, RollOutState
from mien.rounds.verdicts import Decision, Verdict
from mien.shell.clock import Clock
from tests.coordinator.store.test_store import model, of_replicas_at_once, task

A, B, C = (letter * 64 for letter in "abc")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store.open(database_url, Clock())
    store.add_model(model("a"), actor="alice")
    store.release(A, population=None, actor="alice")
    store.add_task(task())
    yield store
    store.close()


def close_round(store: Store, name: str, number: int, state: CandidateState | None, **candidate: Any) -> None:
    """Close a round of task t1 with that model, as a candidate of that state if one is given."""
    record = store.open_attempt(store.task("t1"), round_number=number, attempt=1, deadline=1.0)
    made = replace(model(name, population="default"), task_id="t1", round=number, parent_model_id=A)
    after = replace(store.task("t1"), rounds_closed=number, model_id=made.model_id)
    offered = None if state is None else CandidateRecord(made.model_id, "t1", number, state, 1, **candidate)
    state_ = RoundState(Stage.CLOSED, 1.0)
    store.save_round(RoundChange(record, state_, model=made, task=after, candidate=offered))


def judge(store: Store, verdict: CandidateState, reason: str = "", **changes: Any) -> None:
    """Save a verdict on the candidate of task t1 that waits; `changes` are those of what is decided and of the task."""
    waiting = store.candidate("t1", CandidateState.WAITING)
    assert waiting is not None
    candidate = replace(waiting, state=verdict, reason=reason, decided_ms=5)
    evaluations = changes.pop("evaluations", ())
    share = changes.pop("release_share", 0.0)
    decision = Decision(replace(store.task("t1"), **changes), candidate, share)
    store.save_verdict(decision, Verdict(waiting, evaluations=evaluations, spec_json=b'{"spec":1}'))


def test_roll_out_and_back(store: Store) -> None:
    store.add_model(model("b"), actor="alice")
    store.release(B, population=None, actor="alice", share=0.5)
    ids = [f"{i:032x}" for i in range(40)]
    found = {release.model_id for device in ids if (release := store.released("default", device)) is not None}
    assert found == {A, B}
    base = store.released("default")
    assert base is not None
    assert base.model_id == A
    assert store.released_ids() == {A, B}
    assert store.roll_back("default", actor="bob").model_id == A
    assert store.released_ids() == {A}
    with pytest.raises(NotFoundError, match="no earlier release"):
        store.roll_back("default", actor="bob")
    assert [event[1:] for event in store.events(A)][-1] == ("bob", "model.rollback")


def in_force(store: Store, *populations: str | None) -> list[str]:
    """Return the first letters of the models that all phones of these populations have, - for none."""
    found = [store.released(population) for population in populations]
    return ["-" if release is None else release.model_id[0] for release in found]


@pytest.mark.parametrize("asked", [None, "alpha", "beta", "gamma"])
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_a_roll_back_for_all_gives_each_population_what_it_had_itself(
    store: Store, asked: str | None, share: float
) -> None:
    everyone = (None, "alpha", "beta", "gamma")
    for name in "bde":
        store.add_model(model(name), actor="alice")
    store.release("d" * 64, population="alpha", actor="alice")
    store.release("e" * 64, population="beta", actor="alice")
    store.release(B, population=None, actor="alice", share=share)
    back = {None: A, "alpha": "d" * 64, "beta": "e" * 64, "gamma": A}
    assert set(store.ways_back(asked)) == {(B, model_id) for model_id in back.values()}
    assert store.roll_back(asked, actor="bob").model_id == back[asked]
    assert in_force(store, *everyone) == ["a", "d", "e", "a"]
    assert store.released_ids() == set(back.values())
    assert store.standings()[B].state == "retired"
    newest = [store.newest_release(population) for population in everyone]
    assert [release.share for release in newest if release] == [1.0] * 4
    assert store.roll_back("alpha", actor="bob").model_id == A  # one further concerns alpha's own release only
    assert in_force(store, *everyone) == ["a", "a", "e", "a"]


def test_a_roll_back_for_all_leaves_what_a_population_was_released_since(store: Store) -> None:
    for name in "bdef":
        store.add_model(model(name), actor="alice")
    store.release(B, population=None, actor="alice")
    store.release("d" * 64, population="alpha", actor="alice")
    store.release("e" * 64, population="beta", actor="alice", share=0.1)
    store.release(A, population="delta", actor="alice")
    assert set(store.ways_back("gamma")) == {(B, A)}
    assert store.roll_back("gamma", actor="bob").model_id == A
    assert in_force(store, None, "alpha", "beta", "gamma", "delta") == ["a", "d", "a", "a", "a"]
    newest = store.newest_release("beta")
    assert newest is not None
    assert (newest.model_id, newest.population, newest.share) == ("e" * 64, "beta", 0.1)
    assert store.roll_back("alpha", actor="bob").model_id == A  # B, which was rolled back from, does not come back
    assert in_force(store, None, "alpha", "beta") == ["a", "a", "a"]


def test_where_the_others_have_nothing_to_go_back_to_a_population_goes_back_alone(database_url: str) -> None:
    store = Store.open(database_url, Clock())
    for name in "bd":
        store.add_model(model(name), actor="alice")
    store.release("d" * 64, population="alpha", actor="alice")
    store.release(B, population=None, actor="alice")
    with pytest.raises(NotFoundError, match="no earlier release"):
        store.roll_back("gamma", actor="bob")
    assert store.roll_back("alpha", actor="bob").model_id == "d" * 64
    assert in_force(store, None, "alpha", "gamma") == ["b", "d", "b"]
    store.close()


def test_a_share_needs_a_model_for_the_others(tmp_path: Path) -> None:
    store = Store.open(sqlite_url(tmp_path / "other.db"), Clock())
    store.add_model(model("a"), actor="alice")
    with pytest.raises(ConfigError, match="release one first"):
        store.release(A, population=None, actor="alice", share=0.1)
    with pytest.raises(ConfigError, match=r"share is 1\.5"):
        store.release(A, population=None, actor="alice", share=1.5)
    store.close()


def test_what_gates_rejected_or_have_not_judged_is_not_released_by_accident(store: Store) -> None:
    close_round(store, "b", 1, CandidateState.WAITING)
    with pytest.raises(ConfigError, match="have not decided"):
        store.release(B, population="default", actor="alice")
    judge(store, CandidateState.FAILED, why := "too weak" * 51)
    with pytest.raises(ConfigError, match="failed its gates: too weak"):
        store.release(B, population="default", actor="alice")
    assert store.standings()[B].reason == why[:399] + "…"
    store.release(B, population="default", actor="alice", despite_gates=True)
    assert store.standings()[B].state == "released"


def test_a_verdict_its_release_and_its_records_are_one_transaction(store: Store) -> None:
    close_round(store, "b", 1, CandidateState.WAITING)
    evaluation = EvaluationRecord(B, b'{"eer":0.1}', 5, "coordinator")
    changes: dict[str, Any] = {"state": TaskState.DONE, "evaluations": (evaluation,)}
    with pytest.raises(ConfigError):
        judge(store, CandidateState.PASSED, **changes, release_share=2.0)
    assert store.candidate("t1", CandidateState.WAITING) is not None
    assert (store.task("t1").state, store.evaluations(B)) == (TaskState.RUNNING, [])
    judge(store, CandidateState.PASSED, **changes, release_share=1.0)
    assert store.model(B).spec_json == b'{"spec":1}'
    release = store.released("default")
    assert release is not None
    assert (release.model_id, release.released_by) == (B, "system:coordinator")
    assert (store.task("t1").state, store.evaluations(B)) == (TaskState.DONE, [evaluation])


def test_the_state_to_go_back_to_is_kept_for_the_last_that_passed(store: Store) -> None:
    close_round(store, "b", 1, CandidateState.WAITING, arrays_sha256="1" * 64)
    assert store.state_blobs() == {"1" * 64}
    judge(store, CandidateState.PASSED)
    close_round(store, "c", 2, CandidateState.WAITING, arrays_sha256="2" * 64, revealed_sha256="3" * 64)
    assert store.state_blobs() == {"1" * 64, "2" * 64, "3" * 64}
    judge(store, CandidateState.FAILED)
    assert store.state_blobs() == {"1" * 64}
    passed = store.candidate("t1", CandidateState.PASSED)
    assert passed is not None
    assert (passed.model_id, passed.arrays_sha256) == (B, "1" * 64)


def test_retention_gives_up_only_what_nothing_needs(store: Store) -> None:
    for number, name in enumerate("bcdef", start=1):
        close_round(store, name, number, CandidateState.UNCHECKED if name == "c" else None)
    store.release("b" * 64, population="default", actor="alice")
    gone = store.forget_round_models("t1", keep=1)
    assert gone == {"d" * 64, "e" * 64}  # b was released, c is a candidate, f is the newest and the task's own
    assert store.model_blobs() == {name * 64 for name in "abcf"}
    assert store.model("d" * 64).removed_ms is not None
    assert not store.may_read_model("d" * 64, "default")
    assert store.may_read_blob("d" * 64, None) is None
    with pytest.raises(NotFoundError):
        store.release("d" * 64, population="default", actor="alice")
    assert store.forget_round_models("t1", keep=1) == set()
    store.add_model(model("d"), actor="alice")  # brought back
    assert store.may_read_blob("d" * 64, None) == BlobId("d" * 64, 400)


def signed(model_id: str, sequence: int, manifest: bytes = b"{}") -> BundleRecord:
    return BundleRecord(sequence, model_id, manifest, b"signature", b'{"signed":1}')


def test_bundles_are_kept_with_their_release_in_the_order_of_their_numbers(store: Store) -> None:
    store.add_model(model("b"), actor="alice")
    assert store.bundle(B) is None
    store.release(B, population=None, actor="alice", bundle=signed(B, 5))
    store.release(B, population=None, actor="alice", bundle=signed(B, 5))  # the same again
    with pytest.raises(ConfigError, match="sequence number 5, an earlier one had 5"):
        store.release(A, population=None, actor="alice", bundle=signed(A, 5, b"[]"))
    assert store.ways_back("default") == [(B, A)]
    store.release(B, population=None, actor="alice", bundle=signed(B, 6, b"[]"))
    kept = store.bundle(B)
    assert kept is not None
    assert (kept.sequence, kept.spec_json, kept.added_by) == (6, b'{"signed":1}', "alice")
    assert "model.bundle" in [event[2] for event in store.events(B)]


def test_releases_of_an_older_database_were_to_everybody(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "old.db")
    engine = open_engine(url)
    migrate(engine, MIGRATIONS, "0003")
    with engine.begin() as db:
        db.execute(
            sa.text(
                "INSERT INTO models (model_id, spec_json, layout_sha256, theta_sha256, theta_bytes, created_ms) "
                f"VALUES ('{A}', x'7b7d', '1', '2', 4, 0)"
            )
        )
        db.execute(sa.text(f"INSERT INTO releases (model_id, released_ms, released_by) VALUES ('{A}', 0, 'x')"))
    engine.dispose()
    store = Store.open(url, Clock())
    release = store.released("default", "0" * 32)
    assert release is not None
    assert (release.model_id, release.share, release.is_rollback) == (A, 1.0, False)
    store.close()


def test_a_model_that_is_being_released_is_not_given_up(postgres_url: str) -> None:
    """One replica takes it while another, whose task made it, tidies up: phones would find nothing to fetch."""
    store = Store.open(postgres_url, Clock())
    store.add_model(model("a"), actor="alice")
    store.add_task(task())
    for number, name in enumerate("bc", start=1):
        close_round(store, name, number, None)

    def release(replica: Store) -> set[str]:
        replica.release(B, population=None, actor="alice")
        return set()

    found = of_replicas_at_once(postgres_url, release, lambda replica: replica.forget_round_models("t1", keep=1))
    assert found == [set(), set()]
    assert store.model(B).removed_ms is None
    store.close()


def test_replicas_that_begin_a_roll_out_at_once_begin_one(postgres_url: str) -> None:
    store = Store.open(postgres_url, Clock())
    store.add_model(model("a"), actor="alice")
    store.add_model(model("b"), actor="alice")
    store.release(A, population=None, actor="alice")

    def begin(replica: Store) -> str:
        return replica.start_roll_out(B, RollOutSpec(), population=None, actor="alice").state

    first, second = of_replicas_at_once(postgres_url, begin, begin)
    assert first == RollOutState.EVALUATING
    assert isinstance(second, ConfigError)
    assert "being rolled out already" in second.message
    assert len(store.roll_outs()) == 1
    store.close()


def test_a_bundle_that_another_replica_overtakes_is_not_released(postgres_url: str) -> None:
    """What phones took the newer one of would refuse it."""
    store = Store.open(postgres_url, Clock())
    for name in "abc":
        store.add_model(model(name), actor="alice")

    def releases(model_id: str, sequence: int) -> Callable[[Store], str]:
        bundle = BundleRecord(sequence, model_id, str(sequence).encode(), b"", b"{}")
        return lambda replica: str(replica.release(model_id, population=None, actor="alice", bundle=bundle))

    first, second = of_replicas_at_once(postgres_url, releases(B, 6), releases(C, 5))
    assert first == "None"
    assert isinstance(second, ConfigError)
    assert "sequence number 5" in second.message
    assert store.released_ids() == {B}
    store.close()


def test_a_model_that_gates_let_pass_while_an_operator_rolls_it_out_has_one_roll_out(postgres_url: str) -> None:
    store = Store.open(postgres_url, Clock())
    store.add_model(model("a"), actor="alice")
    store.release(A, population=None, actor="alice")
    store.add_task(task())
    close_round(store, "b", 1, CandidateState.WAITING)
    waiting = store.candidate("t1", CandidateState.WAITING)
    assert waiting is not None
    passed = Decision(store.task("t1"), replace(waiting, state=CandidateState.PASSED, decided_ms=5), 0.1, RollOutSpec())

    def judge(replica: Store) -> str:
        replica.save_verdict(passed, Verdict(waiting, spec_json=b'{"spec":1}'))
        return "judged"

    def begin(replica: Store) -> str:
        spec, by = RollOutSpec(), "alice"
        return replica.start_roll_out(B, spec, population="default", actor=by, despite_gates=True).state

    first, second = of_replicas_at_once(postgres_url, judge, begin)
    assert first == "judged"
    assert isinstance(second, ConfigError)
    assert "being rolled out already" in second.message
    assert [each.started_by for each in store.roll_outs()] == ["system:coordinator"]
    store.close()
