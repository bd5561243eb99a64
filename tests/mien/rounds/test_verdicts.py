"""What verdicts make of tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mien.errors import ConfigError
from mien.protocol.rounds import BlobId, Role
from mien.rounds.records import CandidateRecord, CandidateState, ModelRecord, TaskRecord, TaskState
from mien.rounds.verdicts import Decision, Verdict, after_abort, after_round, decide, offered, resumed
from mien.specs import CohortSpec, GateSpec, PrivacySpec, TaskSpec

A, B, C = (letter * 64 for letter in "abc")
SPEC = TaskSpec("spring", rounds=4, gates=GateSpec(every=2))
TASK = TaskRecord(
    *("t1", "spring", "default", b"{}", "token", TaskState.CHECKING, A, B, "alice"),
    created_ms=1,
    rounds_closed=2,
    arrays_sha256="2" * 64,
)
OFFER = CandidateRecord(B, "t1", 2, CandidateState.WAITING, 5, arrays_sha256="2" * 64)
PASSED = CandidateRecord(C, "t1", 1, CandidateState.PASSED, 3, arrays_sha256="1" * 64, revealed_sha256="3" * 64)


def model(model_id: str) -> ModelRecord:
    return ModelRecord(model_id, b"{}", "1" * 64, BlobId(model_id, 4), 0, task_id="t1")


def with_gates(**changes: object) -> TaskSpec:
    return replace(SPEC, gates=replace(SPEC.gates, **changes))  # type: ignore[arg-type]


def judged(
    *reasons: str, spec: TaskSpec = SPEC, task: TaskRecord = TASK, passed: CandidateRecord | None = None
) -> Decision:
    return decide(spec, task, Verdict(replace(OFFER, round=task.rounds_closed), reasons=reasons), passed, 9)


class TestAfterAnAbort:
    def test_a_task_goes_on_until_too_many_in_a_row(self) -> None:
        task = replace(TASK, state=TaskState.RUNNING)
        for count in (1, 2):
            task = after_abort(task, "nobody came", role=Role.TRAIN, max_aborted=3)
            assert (task.state, task.aborted_in_a_row, task.reason) == (TaskState.RUNNING, count, "")
        task = after_abort(task, "nobody came", role=Role.VALIDATE, max_aborted=3)
        assert task.state is TaskState.PAUSED
        assert task.reason == (
            "3 attempts of validators in a row were aborted, the last because nobody came; mend that, then task resume"
        )

    def test_a_task_that_is_over_or_paused_stays_so(self) -> None:
        paused = replace(TASK, state=TaskState.PAUSED, reason="by alice", aborted_in_a_row=9)
        after = after_abort(paused, "nobody came", role=Role.TRAIN, max_aborted=3)
        assert (after.state, after.reason, after.aborted_in_a_row) == (TaskState.PAUSED, "by alice", 10)


class TestAfterARound:
    @pytest.mark.parametrize(
        ("closed", "has_gates", "state", "offer"),
        [
            (1, True, TaskState.RUNNING, None),
            (2, True, TaskState.CHECKING, CandidateState.WAITING),
            (2, False, TaskState.RUNNING, CandidateState.UNCHECKED),
            (4, True, TaskState.CHECKING, CandidateState.WAITING),
            (4, False, TaskState.DONE, CandidateState.UNCHECKED),
        ],
    )
    def test_due_models_are_offered_and_held(
        self, closed: int, has_gates: bool, state: TaskState, offer: CandidateState | None
    ) -> None:
        task = replace(TASK, state=TaskState.RUNNING, rounds_closed=closed)
        candidate = offered(SPEC, task, model(B), has_gates=has_gates, now_ms=5)
        assert (candidate.state if candidate else None) == offer
        if candidate is not None:
            assert (candidate.round, candidate.arrays_sha256) == (closed, "2" * 64)
        assert after_round(SPEC, task, candidate, 5).state is state

    def test_a_model_that_was_only_measured_is_no_candidate(self) -> None:
        task = replace(TASK, state=TaskState.RUNNING, rounds_closed=4)
        elsewhere = replace(model(B), task_id=None)
        assert offered(SPEC, task, elsewhere, has_gates=True, now_ms=5) is None
        assert after_round(SPEC, task, None, 5).state is TaskState.DONE

    def test_a_paused_task_stays_paused_and_is_judged_when_it_is_resumed(self) -> None:
        task = replace(TASK, state=TaskState.PAUSED)
        assert after_round(SPEC, task, OFFER, 5) == task
        assert resumed(OFFER) is TaskState.CHECKING
        assert resumed(None) is TaskState.RUNNING


class TestPassed:
    def test_the_task_goes_on_and_the_model_is_released(self) -> None:
        decision = judged()
        assert (decision.task.state, decision.task.model_id, decision.release_share) == (TaskState.RUNNING, B, 1.0)
        assert decision.candidate == replace(OFFER, state=CandidateState.PASSED, decided_ms=9)

    def test_manual_release_and_a_share(self) -> None:
        assert judged(spec=with_gates(release="manual")).release_share == 0.0
        assert judged(spec=with_gates(share=0.1)).release_share == 0.1

    def test_stages_begin_a_roll_out_that_phones_judge_as_the_gates_did(self) -> None:
        decision = judged(spec=with_gates(stages=(0.01, 1.0), delta=0.02, fmr=1e-4))
        assert decision.release_share == 0.01
        assert decision.roll_out is not None
        assert (decision.roll_out.stages, decision.roll_out.cohort, decision.roll_out.min_cohort) == (
            (0.01, 1.0),
            SPEC.cohort,
            16,
        )
        assert (decision.roll_out.gates.delta, decision.roll_out.gates.fmr) == (0.02, 1e-4)

    def test_stages_that_cannot_be_are_refused_when_the_task_is(self) -> None:
        for wrong in (
            {"stages": (1.0,)},
            {"stages": (0.1, 1.0), "share": 0.5},
            {"stages": (0.1,), "release": "manual"},
        ):
            with pytest.raises(ConfigError, match="stages"):
                with_gates(**wrong)
        with pytest.raises(ConfigError, match="3 or more"):
            replace(
                with_gates(stages=(0.1, 1.0)),
                cohort=CohortSpec(2, 2),
                privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
            )

    def test_after_the_last_round_the_task_is_done(self) -> None:
        after = judged(task=replace(TASK, rounds_closed=4)).task
        assert (after.state, after.ended_ms, after.arrays_sha256) == (TaskState.DONE, 9, None)

    def test_only_the_verdict_on_the_last_rounds_model_ends_the_task(self) -> None:
        for reasons in ((), ("too weak",)):
            after = decide(SPEC, replace(TASK, rounds_closed=4), Verdict(OFFER, reasons=reasons), None, 9).task
            assert not after.state.is_over

    def test_a_task_paused_meanwhile_stays_so(self) -> None:
        assert judged(task=replace(TASK, state=TaskState.PAUSED)).task.state is TaskState.PAUSED


class TestFailed:
    def test_it_pauses_with_every_reason(self) -> None:
        decision = judged("too weak", "collapsed")
        assert decision.task.state is TaskState.PAUSED
        assert decision.task.reason.startswith(f"model {B[:12]} of round 2 failed its gates: too weak; collapsed")
        assert decision.candidate is not None
        assert (decision.candidate.state, decision.candidate.reason) == (CandidateState.FAILED, "too weak; collapsed")
        assert (decision.task.model_id, decision.release_share) == (B, 0.0)

    def test_at_the_end_there_is_nothing_to_resume(self) -> None:
        after = judged("too weak", task=replace(TASK, rounds_closed=4)).task
        assert after.state is TaskState.FAILED
        assert "resume" not in after.reason

    def test_it_goes_back_to_what_passed_with_its_server_state(self) -> None:
        after = judged("too weak", spec=with_gates(on_failure="rollback"), passed=PASSED).task
        assert (after.state, after.model_id, after.rounds_closed) == (TaskState.RUNNING, C, 2)
        assert (after.arrays_sha256, after.revealed_sha256) == ("1" * 64, "3" * 64)
        assert after.reason.endswith(f"went back to model {C[:12]} of round 1")

    def test_or_to_the_first_model(self) -> None:
        spec = with_gates(on_failure="rollback")
        after = judged("too weak", spec=spec).task
        assert (after.model_id, after.arrays_sha256, after.revealed_sha256) == (A, None, None)
        over = judged("too weak", spec=spec, task=replace(TASK, rounds_closed=4)).task
        assert (over.state, over.model_id) == (TaskState.DONE, A)


class TestSumsThatAddUp:
    """A task of statistics: all its cohorts are of its first model, and gates take nothing of the total back."""

    SPEC = replace(with_gates(on_failure="rollback"), method="statistics")
    SUMMED = replace(TASK, model_id=TASK.base_model_id)

    def test_a_model_that_fails_leaves_the_total(self) -> None:
        after = judged("too weak", spec=self.SPEC, task=self.SUMMED, passed=PASSED).task
        assert (after.state, after.model_id) == (TaskState.RUNNING, self.SUMMED.base_model_id)
        assert after.state_blobs == self.SUMMED.state_blobs
        assert after.reason.endswith("went back to waiting for more phones, whose sums add up")

    def test_at_the_end_its_model_is_what_passed(self) -> None:
        over = judged("too weak", spec=self.SPEC, task=replace(self.SUMMED, rounds_closed=4), passed=PASSED).task
        assert (over.state, over.model_id, over.state_blobs) == (TaskState.DONE, C, set())

    def test_a_candidate_keeps_no_total_to_go_back_to(self) -> None:
        model = ModelRecord(B, b"", "", BlobId("0" * 64, 1), 1, task_id=TASK.task_id)
        task = replace(TASK, rounds_closed=4, revealed_sha256="4" * 64)
        kept = [offered(spec, task, model, has_gates=True, now_ms=1) for spec in (self.SPEC, SPEC)]
        assert [each and each.revealed_sha256 for each in kept] == [None, "4" * 64]

    def test_too_poor_a_total_fails_at_the_end_only(self) -> None:
        early, late = (after_round(SPEC, replace(TASK, rounds_closed=n), None, 9, "too poor") for n in (3, 4))
        assert not early.state.is_over
        assert (late.state, late.reason, late.ended_ms) == (TaskState.FAILED, "too poor", 9)


def test_what_cannot_be_checked_waits_and_says_why() -> None:
    decision = decide(SPEC, TASK, Verdict(OFFER, problem="there is no folder"), None, 9)
    assert (decision.candidate, decision.task.state) == (None, TaskState.PAUSED)
    assert "could not be checked: there is no folder; mend that, then task resume" in decision.task.reason
