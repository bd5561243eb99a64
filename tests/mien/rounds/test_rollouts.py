"""Staged roll-outs: what an answer makes of one, and that store and release move together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from coordinator.store.store import Store
from mien.errors import ConfigError, CorruptDataError, LateError, NotFoundError
from mien.evaluation.fleet import Estimate, FleetFigures, FleetMonitors, ModelFigures
from mien.evaluation.rollout_spec import RollOutSpec
from mien.methods.federated_evaluation import options_of
from mien.protocol.canonical import model_to_json, task_from_json, task_to_json
from mien.protocol.rounds import BlobId
from mien.rounds.plan import plan_task
from mien.rounds.records import CandidateRecord, CandidateState, ModelRecord, TaskRecord, TaskState
from mien.rounds.rollouts import (
    Move,
    RollOutRecord,
    RollOutState,
    answered,
    continued,
    evaluation_task,
    held,
    spec_from_json,
    spec_to_json,
    task_name,
    task_token,
    threshold_for,
    widened,
)
from mien.rounds.verdicts import Decision, Verdict, roll_out_of
from mien.shell.clock import Clock
from mien.specs import CohortSpec, GateSpec, MustInclude, TaskSpec, Threshold
from simulation.testing import LAYOUT, SPEC
from tests.tiny import SHARD

A, B, C = (letter * 64 for letter in "abc")
STAGES = RollOutSpec((0.01, 0.1, 1.0))
FIGURES = FleetFigures(
    num_phones=16,
    num_mated_phones=15,
    num_mated=75,
    num_non_mated=4000,
    model=ModelFigures(
        0.5, Estimate(0.97, 0.95, 0.99), Estimate(0.001, 0.0, 0.002), 0.02, (), FleetMonitors(0.05, 40.0), (), ()
    ),
    tar_drop=Estimate(-0.001, -0.004, 0.002),
)


def record(spec: RollOutSpec = STAGES, **changes: Any) -> RollOutRecord:
    made = RollOutRecord(3, B, A, "default", spec_to_json(spec), RollOutState.EVALUATING, 0, 1, 5, "alice", 5, "t1")
    return replace(made, **changes)


class TestMoves:
    def test_what_holds_goes_to_the_next_share(self) -> None:
        move = answered(record(), FIGURES, ())
        assert (move.after.state, move.after.share, move.widens) == (RollOutState.EVALUATING, 0.1, True)
        assert (move.after.task_id, move.after.attempt, move.after.figures["tar"]) == (None, 1, 0.97)

    def test_the_last_stage_needs_no_answer_where_it_is_everybody(self) -> None:
        move = answered(record(stage=1), FIGURES, ())
        assert (move.after.state, move.after.share, move.widens) == (RollOutState.DONE, 1.0, True)
        assert move.after.reason == "done; all phones have it"

    def test_a_last_stage_below_everybody_is_judged(self) -> None:
        move = answered(record(RollOutSpec((0.01, 0.1)), stage=1), FIGURES, ())
        assert (move.after.state, move.after.share, move.widens) == (RollOutState.DONE, 0.1, False)

    def test_what_does_not_hold_goes_back(self) -> None:
        move = answered(record(), FIGURES, ("TAR dropped", "x" * 500))
        assert (move.after.state, move.rolls_back, move.widens) == (RollOutState.ROLLED_BACK, True, False)
        assert move.after.reason.startswith("phones say: TAR dropped; ")
        assert len(move.after.reason) == 400

    def test_by_hand_it_waits_for_a_word(self) -> None:
        passed = answered(record(replace(STAGES, widen="manual")), FIGURES, ())
        assert (passed.after.state, passed.widens) == (RollOutState.PASSED, False)
        go = continued(passed.after)
        assert (go.after.state, go.after.share, go.widens) == (RollOutState.EVALUATING, 0.1, True)

    def test_what_is_held_is_asked_again_under_another_token(self) -> None:
        before = record()
        waiting = held(before, "phones cannot be asked").after
        assert (waiting.state, waiting.share, waiting.state.is_over) == (RollOutState.HELD, 0.01, False)
        again = continued(waiting)
        assert (again.after.state, again.after.attempt, again.widens) == (RollOutState.EVALUATING, 2, False)
        assert task_token(again.after) != task_token(before)
        assert task_name(again.after) != task_name(before)

    @pytest.mark.parametrize("state", [s for s in RollOutState if s not in (RollOutState.PASSED, RollOutState.HELD)])
    def test_what_waits_for_nobody_cannot_be_continued(self, state: RollOutState) -> None:
        with pytest.raises(ConfigError, match="waits for you"):
            continued(record(state=state))

    def test_a_description_travels_and_a_wrong_one_is_named(self) -> None:
        assert spec_from_json(spec_to_json(STAGES)) == STAGES
        with pytest.raises(ConfigError, match=r"roll-out\.stagse"):
            spec_from_json(b'{"stagse":[0.1]}')
        with pytest.raises(CorruptDataError):
            spec_from_json(b"\xff")

    def test_phones_that_compare_models_are_asked_for_no_labels(self) -> None:
        """Nor where the task that made the model needs a source in each of its cohorts."""
        with pytest.raises(ConfigError, match=r"cohort\.must_include is for training"):
            RollOutSpec(cohort=CohortSpec(must_include=MustInclude()))
        cohort = CohortSpec(size=18, must_include=MustInclude())
        task = TaskSpec("uda", method="fedfr_uda", cohort=cohort, gates=GateSpec(stages=(0.1, 1.0)))
        assert roll_out_of(task).cohort == CohortSpec(size=18)


class TestTheTask:
    def threshold(self, value: float, fmr: float, model_id: str = B) -> Threshold:
        return Threshold(value, fmr, "public", 100, 30_000, model_id, "2026-01-01")

    def test_the_threshold_is_the_one_that_phones_use(self) -> None:
        known = (self.threshold(0.4, 1e-2), self.threshold(0.5, 9e-4), self.threshold(0.6, 1e-4))
        described = model_to_json(replace(SPEC, thresholds=known), LAYOUT)
        assert threshold_for(described, B, 1e-3).value == 0.5
        assert threshold_for(described, B, 1e-4).value == 0.6
        with pytest.raises(ConfigError, match="no threshold"):
            threshold_for(described, A, 1e-3)  # another model's thresholds do not count

    def test_a_stage_asks_for_both_models_on_its_share(self) -> None:
        task = evaluation_task(
            RollOutSpec(cohort=CohortSpec(40, 16)),
            name=task_name(record()),
            model_id=B,
            threshold=0.5,
            reference=(A, 0.4),
            share=0.01,
        )
        again = task_from_json(task_to_json(task))
        assert type(again) is TaskSpec
        assert again == task
        assert (options_of(again).reference, options_of(again).share) == (A, 0.01)
        plan = plan_task(again, model_to_json(SPEC, LAYOUT), public_shard=SHARD)
        assert (plan.requirements.share, plan.task.privacy.min_cohort, plan.task.deadlines.selecting_s) == (
            0.01,
            16,
            86400.0,
        )
        with pytest.raises(ConfigError, match="needs public faces"):
            plan_task(again, model_to_json(SPEC, LAYOUT), public_shard=None)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store.open(database_url, Clock())
    for model_id in (A, B, C):
        opened.add_model(ModelRecord(model_id, b"{}", "1" * 64, BlobId(model_id, 4), 0), actor="alice")
    opened.release(A, population=None, actor="alice")
    yield opened
    opened.close()


def started(store: Store, model_id: str = B, spec: RollOutSpec = STAGES) -> RollOutRecord:
    return store.start_roll_out(model_id, spec, population=None, actor="alice")


class TestInTheStore:
    def test_it_begins_with_a_release_to_the_first_share(self, store: Store) -> None:
        made = started(store)
        assert store.roll_outs() == store.active_roll_outs() == store.newest_roll_outs() == [made]
        assert (made.reference_model_id, made.share) == (A, 0.01)
        newest = store.newest_release("default")
        assert newest is not None
        assert (newest.model_id, newest.share) == (B, 0.01)

    def test_it_goes_from_a_model_of_all_to_another_one_and_not_twice(self, store: Store) -> None:
        with pytest.raises(ConfigError, match="another one"):
            started(store, A)
        started(store)
        with pytest.raises(ConfigError, match="being rolled out already"):
            started(store)

    @pytest.mark.parametrize("first", ["default", "alpha"])
    @pytest.mark.parametrize("second", ["default", "alpha", "beta"])
    @pytest.mark.parametrize("is_taken_back", [False, True])
    def test_a_model_has_one_roll_out_at_a_time_whoever_is_asked(
        self, store: Store, first: str, second: str, is_taken_back: bool
    ) -> None:
        made = started(store, spec=replace(STAGES, population=first))
        if is_taken_back:
            store.roll_back(None, actor="bob")
            assert store.active_roll_outs() == []
        else:
            before = store.newest_release()
            with pytest.raises(ConfigError, match="being rolled out already"):
                started(store, spec=replace(STAGES, population=second))
            assert (store.active_roll_outs(), store.newest_release()) == ([made], before)
            store.move_roll_out(made, Move(replace(made, state=RollOutState.STOPPED)), actor="bob")
        again = started(store, spec=replace(STAGES, population=second))
        store.move_roll_out(again, answered(again, FIGURES, ("worse",)), actor="system:coordinator")
        release = store.newest_release(first)
        assert release is not None
        assert (release.model_id, release.is_rollback) == (A, True)

    def test_gates_that_pass_what_an_operator_rolls_out_leave_it_to_that_roll_out(self, store: Store) -> None:
        task = TaskRecord("t1", "spring", "default", b"{}", "token", TaskState.CHECKING, A, B, "alice", 1)
        store.add_task(task)
        made = store.start_roll_out(B, STAGES, population="default", actor="alice")
        made = store.move_roll_out(made, widened(made), actor="system:coordinator")
        candidate = CandidateRecord(B, "t1", 2, CandidateState.PASSED, 5)
        done = replace(task, state=TaskState.DONE)
        store.save_verdict(Decision(done, candidate, 0.01, STAGES), Verdict(candidate))
        assert (store.roll_outs(), store.task("t1").state) == ([made], TaskState.DONE)
        back = store.move_roll_out(made, answered(made, FIGURES, ("worse",)), actor="system:coordinator")
        assert back.state is RollOutState.ROLLED_BACK

    def test_it_widens_with_its_release(self, store: Store) -> None:
        made = store.move_roll_out(started(store), widened(started_of(store)), actor="system:coordinator")
        done = store.move_roll_out(made, widened(made), actor="system:coordinator")
        assert (made.share, done.share, done.state) == (0.1, 1.0, RollOutState.DONE)
        release = store.released("default")
        assert release is not None
        assert (release.model_id, release.released_by) == (B, "system:coordinator")
        assert [action for _, _, action in store.events(B)] == [
            "model.import",
            "model.release",
            "rollout.start",
            "model.release",
            "rollout.evaluating",
            "model.release",
            "rollout.done",
        ]

    def test_it_goes_back_with_its_release(self, store: Store) -> None:
        made = started(store)
        back = store.move_roll_out(made, answered(made, FIGURES, ("worse",)), actor="system:coordinator")
        assert back.state is RollOutState.ROLLED_BACK
        assert store.roll_out(made.id) == back
        release = store.newest_release("default")
        assert release is not None
        assert (release.model_id, release.is_rollback, release.share) == (A, True, 1.0)
        assert store.active_roll_outs() == []

    def test_the_word_of_one_population_gives_no_other_one_its_model(self, store: Store) -> None:
        store.release(C, population="alpha", actor="alice")
        made = started(store, spec=replace(STAGES, population="alpha"))
        assert made.reference_model_id == C
        store.move_roll_out(made, answered(made, FIGURES, ("worse",)), actor="system:coordinator")
        found = {name: store.released(name) for name in ("alpha", "gamma", None)}
        assert {name: release and release.model_id for name, release in found.items()} == {
            "alpha": C,
            "gamma": A,
            None: A,
        }
        assert store.standings()[B].state == "retired"

    @pytest.mark.parametrize(
        ("by", "why"),
        [
            ("release", f"bob released model {C[:12]} in its place"),
            ("roll_back", "rolled back by bob"),
            ("share", "bob released the model to 0.5 of the phones"),
            ("roll_out", f"bob released model {C[:12]} in its place"),
            ("gates", f"system:coordinator released model {C[:12]} in its place"),
        ],
    )
    def test_what_takes_its_place_ends_it_at_once_and_nothing_is_undone(self, store: Store, by: str, why: str) -> None:
        made = started(store)
        if by == "release":
            store.release(C, population=None, actor="bob")
        elif by == "roll_back":
            store.roll_back("default", actor="bob")
        elif by == "share":
            store.release(B, population=None, actor="bob", share=0.5)
        elif by == "roll_out":
            store.start_roll_out(C, STAGES, population=None, actor="bob")
        else:
            task = TaskRecord("t1", "spring", "default", b"{}", "token", TaskState.CHECKING, A, C, "alice", 1)
            store.add_task(task)
            candidate = CandidateRecord(C, "t1", 2, CandidateState.PASSED, 5)
            store.save_verdict(Decision(task, candidate, 1.0), Verdict(candidate))
        after = store.roll_out(made.id)
        assert (after.state, after.reason) == (RollOutState.REPLACED, why)
        assert made.id not in [each.id for each in store.active_roll_outs()]
        assert "rollout.replaced" in [action for _, _, action in store.events(B)]
        before = store.newest_release("default")
        for move in (widened(made), answered(made, FIGURES, ("worse",))):  # what was read before that comes too late
            with pytest.raises(LateError):
                store.move_roll_out(made, move, actor="system:coordinator")
            assert store.newest_release("default") == before

    def test_a_roll_back_ends_the_roll_outs_of_other_populations_that_it_takes_along(self, store: Store) -> None:
        made = started(store, spec=replace(STAGES, population="alpha"))
        store.roll_back("beta", actor="bob")
        assert store.roll_out(made.id).reason == "rolled back by bob"

    @pytest.mark.parametrize("widens", [True, False])
    def test_one_for_all_that_widens_ends_a_populations_own_and_one_that_goes_back_does_not(
        self, store: Store, widens: bool
    ) -> None:
        made = started(store)
        own = store.start_roll_out(C, replace(STAGES, population="alpha"), population="alpha", actor="alice")
        assert [each.id for each in store.active_roll_outs()] == [made.id, own.id]
        move = widened(made) if widens else answered(made, FIGURES, ("worse",))
        store.move_roll_out(made, move, actor="system:coordinator")
        assert (store.roll_out(own.id).state is RollOutState.REPLACED) == widens

    @pytest.mark.parametrize("is_known", [True, False])  # False: died between submitting it and noting so
    def test_an_evaluation_ends_with_its_roll_out(self, store: Store, is_known: bool) -> None:
        made = started(store)
        task = TaskRecord(
            "t1", "stage", "default", b"{}", task_token(made), TaskState.RUNNING, B, B, "system:coordinator", 1
        )
        store.add_task(task)
        store.add_task(replace(task, task_id="t2", name="mine", idempotency_token="token"))
        store.add_task(replace(task, task_id="t3", name="theirs", idempotency_token="roll-out/1", submitted_by="bob"))
        if is_known:
            store.move_roll_out(made, Move(replace(made, task_id="t1")), actor="system:coordinator")
        assert store.idle_evaluations() == []
        store.roll_back("default", actor="bob")
        assert store.idle_evaluations() == [("t1", "default")]
        store.save_task(task.ended(TaskState.CANCELLED, "", 5), actor="system:coordinator", action="task.cancelled")
        assert store.idle_evaluations() == []

    def test_a_candidate_that_passed_begins_one(self, store: Store) -> None:
        spec = RollOutSpec((0.1, 1.0), "default")
        task = TaskRecord("t1", "spring", "default", b"{}", "token", TaskState.CHECKING, A, B, "alice", 1)
        store.add_task(task)
        candidate = CandidateRecord(B, "t1", 2, CandidateState.PASSED, 5)
        decision = Decision(task, candidate, 0.1, spec)
        store.save_verdict(decision, Verdict(replace(candidate, state=CandidateState.WAITING)))
        (made,) = store.roll_outs()
        assert (made.model_id, made.reference_model_id, made.share) == (B, A, 0.1)
        assert (made.started_by, made.state) == ("system:coordinator", RollOutState.EVALUATING)

    def test_the_first_model_of_all_has_nothing_to_be_compared_with(self, database_url: str) -> None:
        empty = Store.open(database_url, Clock())
        empty.add_model(ModelRecord(B, b"{}", "1" * 64, BlobId(B, 4), 0), actor="alice")
        task = TaskRecord("t1", "spring", "default", b"{}", "token", TaskState.CHECKING, B, B, "alice", 1)
        empty.add_task(task)
        candidate = CandidateRecord(B, "t1", 2, CandidateState.PASSED, 5)
        empty.save_verdict(Decision(task, candidate, 0.1, RollOutSpec((0.1, 1.0))), Verdict(candidate))
        (made,) = empty.roll_outs()
        assert (made.state, made.share) == (RollOutState.DONE, 1.0)
        empty.close()

    def test_two_movers_do_not_both_move_it(self, store: Store) -> None:
        made = started(store)
        store.move_roll_out(made, widened(made), actor="one")
        with pytest.raises(LateError):
            store.move_roll_out(made, Move(replace(made, reason="late")), actor="two")
        with pytest.raises(NotFoundError):
            store.roll_out(99)


def started_of(store: Store) -> RollOutRecord:
    (only,) = store.roll_outs()
    return only
