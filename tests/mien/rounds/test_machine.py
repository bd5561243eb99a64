"""The round's state machine: hand-made stories, and laws that hold whatever devices do."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mien.errors import LateError, MienError, NotFoundError, RateLimitedError, ViolationError
from mien.protocol.rounds import Stage
from mien.rounds.machine import (
    COUNTED,
    MASKED,
    MASKED_CURIOUS,
    PLAIN,
    BecameLate,
    Cancelled,
    CheckedIn,
    Dropped,
    Event,
    Left,
    Resumed,
    RoundRules,
    RoundState,
    Selected,
    StageEntered,
    Step,
    Stepped,
    SumFailed,
    Summed,
    SumWanted,
    TimePassed,
    Trained,
    Uploaded,
    Withdrew,
    advance,
    choose,
    lacking,
    open_round,
    wakes_at,
)
from mien.specs import CohortSpec, DeadlineSpec, PrivacySpec, TaskSpec

STAGES_S = {
    Stage.TRAINING: 100.0,
    Stage.KEYS: 5.0,
    Stage.SHARES: 6.0,
    Stage.UPLOAD: 20.0,
    Stage.CONSISTENCY: 7.0,
    Stage.UNMASK: 8.0,
}
RULES = RoundRules(num_selected=4, size=3, min_reports=2, selecting_s=10, stages_s=STAGES_S, seed=1)


def after(rules: RoundRules, *events: tuple[float, Event]) -> RoundState:
    """Return the state of a round that opened at 0, after events at their times."""
    state, _ = open_round(rules, 0.0)
    for now, event in events:
        state, _ = advance(rules, state, event, now)
    return state


def in_training(rules: RoundRules = RULES) -> RoundState:
    return after(rules, (1.0, CheckedIn(frozenset("abcd"))))


def in_upload() -> RoundState:
    state = in_training()
    for device in "abc":
        state, _ = advance(RULES, state, Trained(device), 2.0)
    return state


def test_a_round_from_first_check_in_to_closed() -> None:
    state, effects = open_round(RULES, 0.0)
    assert effects == (StageEntered(Stage.SELECTING, 10.0),)
    state, effects = advance(RULES, state, CheckedIn(frozenset("ab")), 1.0)
    assert (state.stage, effects) == (Stage.SELECTING, ())
    state, effects = advance(RULES, state, CheckedIn(frozenset("cd")), 2.0)
    assert effects == (Selected(("a", "b", "c", "d"), ()), StageEntered(Stage.TRAINING, 102.0))
    state, effects = advance(RULES, state, Trained("a"), 3.0)
    state, effects = advance(RULES, state, Trained("b"), 4.0)
    assert effects == ()
    state, effects = advance(RULES, state, Trained("c"), 5.0)  # the third of `size` 3: d is late
    assert effects == (StageEntered(Stage.UPLOAD, 25.0), BecameLate(("d",)))
    for device in "ab":
        state, effects = advance(RULES, state, Uploaded(device), 6.0)
        assert effects == ()
    state, effects = advance(RULES, state, Uploaded("c"), 7.0)
    assert (state.stage, effects) == (Stage.CLOSING, (SumWanted(("a", "b", "c")),))
    state, effects = advance(RULES, state, Summed(), 8.0)
    assert (state.stage, effects) == (Stage.CLOSED, (StageEntered(Stage.CLOSED, math.inf),))


def test_late_devices_are_told_so() -> None:
    state = in_upload()
    with pytest.raises(LateError, match="nothing is lost"):
        advance(RULES, state, Trained("d"), 3.0)
    with pytest.raises(LateError):
        advance(RULES, state, Uploaded("d"), 3.0)


def test_strangers_are_refused() -> None:
    with pytest.raises(NotFoundError):
        advance(RULES, in_training(), Trained("x"), 3.0)
    with pytest.raises(NotFoundError):
        advance(RULES, in_upload(), Uploaded("x"), 3.0)


def test_an_upload_before_its_stage_may_come_again() -> None:
    state, _ = advance(RULES, in_training(), Trained("a"), 2.0)
    with pytest.raises(RateLimitedError) as refusal:
        advance(RULES, state, Uploaded("a"), 3.0)
    assert refusal.value.retry_after_s == 1.0
    assert refusal.value.is_expected  # it happens in every healthy round


def test_selecting_goes_on_at_its_deadline_with_the_quorum_or_aborts() -> None:
    some = after(RULES, (1.0, CheckedIn(frozenset("ab"))), (10.0, TimePassed()))
    assert (some.stage, some.devices(Step.SELECTED)) == (Stage.TRAINING, ("a", "b"))
    one = after(RULES, (1.0, CheckedIn(frozenset("a"))), (10.0, TimePassed()))
    assert (one.stage, one.reason) == (Stage.ABORTED, "1 devices checked in within 10 s; 2 are needed")


def test_candidates_that_fell_silent_or_hung_up_are_not_chosen() -> None:
    rules = RoundRules(num_selected=4, size=3, min_reports=2, selecting_s=100, stages_s=STAGES_S, lease_s=30)
    state = after(
        rules,
        (0.0, CheckedIn(frozenset("ab"))),
        (60.0, CheckedIn(frozenset("cde"))),
        (61.0, Withdrew("e")),
        (100.0, TimePassed()),
    )
    assert state.stage is Stage.ABORTED  # c and d were last heard of 40 s ago
    state = after(rules, (0.0, CheckedIn(frozenset("ab"))), (80.0, CheckedIn(frozenset("bc"))), (100.0, TimePassed()))
    assert state.devices(Step.SELECTED) == ("b", "c")


def test_training_ends_early_when_nobody_else_can_come() -> None:
    state = in_training()
    for event in (Trained("a"), Trained("b"), Left("c", "low_quality"), Left("d", "low_quality")):
        state, _ = advance(RULES, state, event, 5.0)
    assert state.stage is Stage.UPLOAD


def test_a_round_that_cannot_reach_its_quorum_aborts_at_once() -> None:
    state = in_training()
    for device in "abc":
        state, _ = advance(RULES, state, Left(device, "low_quality"), 5.0)
    assert (state.stage, state.reason) == (Stage.ABORTED, "1 devices are left; 2 are needed")


def test_upload_closes_at_its_deadline_with_the_quorum() -> None:
    state = in_upload()
    state, _ = advance(RULES, state, Uploaded("a"), 3.0)
    aborted, _ = advance(RULES, state, TimePassed(), 22.0)
    assert aborted.stage is Stage.ABORTED
    state, _ = advance(RULES, state, Uploaded("b"), 3.0)
    state, effects = advance(RULES, state, TimePassed(), 22.0)
    assert effects == (BecameLate(("c",)), SumWanted(("a", "b")))


def test_one_refused_contribution_does_not_stop_the_round() -> None:
    state = in_upload()
    for event in (Left("b", "non_finite"), Uploaded("a"), Uploaded("c")):
        state, effects = advance(RULES, state, event, 3.0)
    assert effects == (SumWanted(("a", "c")),)


# Masked sums: the same stories with the stages of secure aggregation in between.

SECURE = replace(RULES, path=MASKED)
STEPS = (Stage.KEYS, Stage.SHARES, Stage.UPLOAD, Stage.CONSISTENCY, Stage.UNMASK)


def did(device: str, stage: Stage) -> Event:
    return Uploaded(device) if stage is Stage.UPLOAD else Stepped(device, stage)


def at(stage: Stage, devices: str = "abc", rules: RoundRules = SECURE) -> RoundState:
    """Return a masked round at a stage that these devices have reached."""
    state = in_training(rules)
    for device in "abc":
        state, _ = advance(rules, state, Trained(device), 2.0)
    for earlier in rules.path[1 : rules.path.index(stage)]:
        for device in devices:
            state, _ = advance(rules, state, did(device, earlier), 2.0)
        if state.stage is earlier:
            state, _ = advance(rules, state, TimePassed(), state.deadline)
    assert state.stage is stage
    return state


@pytest.mark.parametrize("path", [MASKED, MASKED_CURIOUS])
def test_a_masked_round_goes_through_its_stages(path: tuple[Stage, ...]) -> None:
    rules, seen = replace(RULES, path=path), [Stage.TRAINING]
    state = in_training(rules)
    for device in "abc":
        state, _ = advance(rules, state, Trained(device), 2.0)
    while state.stage is not Stage.CLOSING:
        seen.append(state.stage)
        assert state.deadline == 2.0 + STAGES_S[state.stage]
        for device in "abc":
            state, effects = advance(rules, state, did(device, seen[-1]), 2.0)
    assert tuple(seen) == path
    assert effects == (SumWanted(("a", "b", "c")),)


@pytest.mark.parametrize("stage", [Stage.KEYS, Stage.SHARES, Stage.UPLOAD])
def test_a_device_lost_before_its_upload_is_late_and_the_round_goes_on(stage: Stage) -> None:
    state = at(stage)
    for device in "ab":
        state, _ = advance(SECURE, state, did(device, stage), 3.0)
    state, effects = advance(SECURE, state, TimePassed(), state.deadline)
    assert (state.stage, state.devices(Step.LATE)) == (SECURE.after(stage), ("c", "d"))
    assert BecameLate(("c",)) in effects
    with pytest.raises(LateError):
        advance(SECURE, state, did("c", stage), 4.0)


@pytest.mark.parametrize("stage", [Stage.KEYS, Stage.SHARES, Stage.UPLOAD])
def test_too_few_for_a_stage_abort_the_round(stage: Stage) -> None:
    state, _ = advance(SECURE, at(stage), did("a", stage), 3.0)
    state, _ = advance(SECURE, state, TimePassed(), state.deadline)
    assert (state.stage, "2 are needed" in state.reason) == (Stage.ABORTED, True)


@pytest.mark.parametrize("stage", [Stage.CONSISTENCY, Stage.UNMASK])
def test_a_device_lost_after_its_upload_stays_counted(stage: Stage) -> None:
    state = at(stage)
    state, _ = advance(SECURE, state, Left("c", "violation"), 3.0)
    for device in "ab":
        state, _ = advance(SECURE, state, did(device, stage), 3.0)
    assert state.stage is SECURE.after(stage), "nobody waits for the one that left"
    assert "c" in state.devices(*COUNTED)
    again = advance(SECURE, state, did("c", stage), 3.0)
    assert again == (state, ())


def test_unmasking_ends_as_soon_as_the_sum_can_be_opened() -> None:
    _, effects = advance(SECURE, at(Stage.UNMASK), Stepped("a", Stage.UNMASK, is_enough=True), 3.0)
    assert effects == (SumWanted(("a", "b", "c")),)


def test_what_silent_devices_left_undone_after_the_upload_is_the_drivers_to_judge() -> None:
    state = at(Stage.CONSISTENCY)
    state, _ = advance(SECURE, state, TimePassed(), state.deadline)
    assert (state.stage, state.devices(*COUNTED)) == (Stage.UNMASK, ("a", "b", "c"))
    state, effects = advance(SECURE, state, TimePassed(), state.deadline)
    assert effects == (SumWanted(("a", "b", "c")),)


def test_steps_out_of_turn_are_refused() -> None:
    for stage in STEPS[1:]:
        with pytest.raises(RateLimitedError):
            advance(SECURE, at(Stage.KEYS), did("a", stage), 3.0)
    with pytest.raises(ViolationError):
        advance(RULES, in_upload(), Stepped("a", Stage.KEYS), 3.0)
    with pytest.raises(LateError):
        advance(SECURE, at(Stage.UPLOAD, "ab"), Stepped("c", Stage.SHARES), 3.0)


def test_devices_without_a_part_are_dropped_and_the_quorum_still_holds() -> None:
    rules = replace(SECURE, size=4, num_selected=4)
    state = in_training(rules)
    for device in "abcd":
        state, _ = advance(rules, state, Trained(device), 2.0)
    state, effects = advance(rules, state, Dropped(frozenset("ad")), 3.0)
    assert (state.stage, state.devices(Step.LATE), effects) == (Stage.KEYS, ("a", "d"), (BecameLate(("a", "d")),))
    state, _ = advance(rules, state, Dropped(frozenset("b")), 3.0)
    assert state.stage is Stage.ABORTED


@pytest.mark.parametrize("stage", [Stage.CONSISTENCY, Stage.UNMASK])
def test_what_a_device_says_after_it_left_takes_nothing_out_of_the_sum(stage: Stage) -> None:
    gone, _ = advance(SECURE, at(stage), Left("a", "draining"), 3.0)
    for event in (Trained("a"), Uploaded("a"), Left("a", "draining")):
        assert advance(SECURE, gone, event, 4.0) == (gone, ())


@pytest.mark.parametrize("stage", [Stage.CONSISTENCY, Stage.UNMASK])
def test_a_dropped_device_that_had_left_does_not_count(stage: Stage) -> None:
    state, _ = advance(SECURE, at(stage), Left("a", "draining"), 3.0)
    assert state.devices(Step.GONE) == ("a",)
    state, _ = advance(SECURE, state, Dropped(frozenset("a")), 3.0)
    assert state.devices(*COUNTED) == ("b", "c")
    assert state.participants["a"] is Step.LATE


@pytest.mark.parametrize("stage", [Stage.CONSISTENCY, Stage.UNMASK])
def test_the_quorum_holds_when_devices_are_dropped_after_their_upload(stage: Stage) -> None:
    state, _ = advance(SECURE, at(stage), Dropped(frozenset("ab")), 3.0)
    assert (state.stage, state.reason) == (Stage.ABORTED, "1 devices are left in the sum; 2 are needed")


def test_leaving_after_an_upload_does_not_take_it_back() -> None:
    state, _ = advance(RULES, in_upload(), Uploaded("a"), 3.0)
    again, effects = advance(RULES, state, Left("a", "draining"), 4.0)
    assert (again, effects) == (state, ())


def test_restart_gives_time_and_asks_for_the_sum_again() -> None:
    state, effects = advance(RULES, in_upload(), Resumed(30.0), 500.0)
    assert effects == (StageEntered(Stage.UPLOAD, 520.0),)  # the stage's 20 s are shorter than the grace
    for device in "abc":
        state, _ = advance(RULES, state, Uploaded(device), 501.0)
    again, effects = advance(RULES, state, Resumed(30.0), 502.0)
    assert (again, effects) == (state, (SumWanted(("a", "b", "c")),))


def test_a_clock_that_was_put_back_while_the_driver_was_away_stretches_no_stage() -> None:
    """The deadline was written by a clock ten minutes ahead: the stage ends after its own 20 s all the same."""
    state = in_upload()
    later, effects = advance(RULES, state, Resumed(5.0), state.deadline - 600.0)
    assert later.deadline == state.deadline - 600.0 + 20.0
    assert effects == (StageEntered(Stage.UPLOAD, later.deadline),)


def test_failed_sum_and_cancellation_abort_with_their_reasons() -> None:
    state = in_upload()
    for device in "abc":
        state, _ = advance(RULES, state, Uploaded(device), 3.0)
    assert advance(RULES, state, SumFailed("norm"), 4.0)[0].reason == "norm"
    assert advance(RULES, in_training(), Cancelled("by the operator"), 4.0)[0].stage is Stage.ABORTED


def test_the_subset_is_seeded_and_fair() -> None:
    devices = [f"{i:02d}" for i in range(10)]
    assert choose(devices, 3, seed=7) == choose(reversed(devices), 3, seed=7)
    counts = Counter(device for seed in range(4000) for device in choose(devices, 3, seed))
    # Binomial(4000, 0.3): sd 29; five of them.
    assert all(abs(counts[device] - 1200) < 145 for device in devices)


def test_more_candidates_than_needed_are_passed_over() -> None:
    state, _ = open_round(RULES, 0.0)
    _, (selected, _) = advance(RULES, state, CheckedIn(frozenset("abcdefgh")), 1.0)
    assert isinstance(selected, Selected)
    assert len(selected.device_ids) == len(selected.passed_over) == 4
    assert set(selected.device_ids) | set(selected.passed_over) == set("abcdefgh")


def test_rules_of_a_task() -> None:
    task = TaskSpec(
        "t",
        cohort=CohortSpec(size=10, min_reports=8, over_selection=1.25),
        deadlines=DeadlineSpec(selecting_s=1.0, training_s=2.0, upload_s=3.0, unmask_s=4.0),
        privacy=PrivacySpec(min_cohort=8),
    )
    first = RoundRules.of(task, task_id="x", round_number=1, attempt=1)
    assert (first.num_selected, first.size, first.min_reports) == (13, 10, 8)
    assert (first.selecting_s, first.stages_s[Stage.UPLOAD], first.stages_s[Stage.UNMASK]) == (1.0, 3.0, 4.0)
    assert first.path == MASKED, "sums are masked unless a task says otherwise"
    assert first == RoundRules.of(task, task_id="x", round_number=1, attempt=1)
    assert first.seed != RoundRules.of(task, task_id="x", round_number=1, attempt=2).seed


SOFT = replace(RULES, soft_s={Stage.SELECTING: 4.0, Stage.TRAINING: 30.0, Stage.UPLOAD: 8.0})
"""Two of four are the quorum: enough from 4 s, 30 s and 8 s of these stages on."""


def test_from_its_soft_deadline_on_selecting_takes_the_quorum() -> None:
    two = after(SOFT, (1.0, CheckedIn(frozenset("ab"))), (3.9, TimePassed()))
    assert (two.stage, wakes_at(SOFT, two, 3.9)) == (Stage.SELECTING, 4.0)
    state, _ = advance(SOFT, two, TimePassed(), 4.0)
    assert (state.stage, state.devices(Step.SELECTED)) == (Stage.TRAINING, ("a", "b"))
    one = after(SOFT, (1.0, CheckedIn(frozenset("a"))), (4.0, TimePassed()))
    assert (one.stage, wakes_at(SOFT, one, 4.0)) == (Stage.SELECTING, 10.0)
    state, _ = advance(SOFT, one, CheckedIn(frozenset("b")), 5.0)
    assert state.stage is Stage.TRAINING


def test_from_its_soft_deadline_on_training_waits_for_nobody_beyond_the_quorum() -> None:
    state = in_training(SOFT)
    for device in "ab":
        state, _ = advance(SOFT, state, Trained(device), 2.0)
    assert (state.stage, wakes_at(SOFT, state, 2.0)) == (Stage.TRAINING, 31.0)
    state, effects = advance(SOFT, state, TimePassed(), 31.0)
    assert (state.stage, state.deadline) == (Stage.UPLOAD, 51.0)
    assert BecameLate(("c", "d")) in effects


def test_past_the_soft_deadline_the_one_that_makes_the_quorum_ends_the_stage() -> None:
    state, _ = advance(SOFT, in_training(SOFT), Trained("a"), 2.0)
    state, effects = advance(SOFT, state, TimePassed(), 31.0)
    assert (state.stage, effects, wakes_at(SOFT, state, 31.0)) == (Stage.TRAINING, (), 101.0)
    state, _ = advance(SOFT, state, Trained("d"), 40.0)
    assert (state.stage, state.devices(Step.TRAINED)) == (Stage.UPLOAD, ("a", "d"))


def test_uploads_have_one_too_and_a_restart_moves_it_with_the_deadline() -> None:
    state = in_training(SOFT)
    for device in "abc":
        state, _ = advance(SOFT, state, Trained(device), 2.0)
    for device in "ab":
        state, _ = advance(SOFT, state, Uploaded(device), 3.0)
    assert (state.stage, wakes_at(SOFT, state, 3.0)) == (Stage.UPLOAD, 10.0)
    resumed, _ = advance(SOFT, state, Resumed(20.0), 9.0)
    assert (resumed.deadline, wakes_at(SOFT, resumed, 9.0)) == (29.0, 17.0)
    closing, effects = advance(SOFT, state, TimePassed(), 10.0)
    assert closing.stage is Stage.CLOSING
    assert SumWanted(("a", "b")) in effects


@pytest.mark.parametrize("grace_s", [0.0, 30.0])
def test_a_soft_deadline_that_passed_while_the_driver_was_away_is_not_lost(grace_s: float) -> None:
    state = in_training(SOFT)
    for device in "ab":
        state, _ = advance(SOFT, state, Trained(device), 2.0)
    resumed, _ = advance(SOFT, state, Resumed(grace_s), 40.0)
    assert wakes_at(SOFT, resumed, 40.0) == 40.0
    went_on, _ = advance(SOFT, resumed, TimePassed(), 40.0)
    assert (went_on.stage, went_on.devices(Step.TRAINED)) == (Stage.UPLOAD, ("a", "b"))
    alone = replace(state, participants={**state.participants, "b": Step.SELECTED})
    assert wakes_at(SOFT, alone, 40.0) == 101.0, "the quorum is not there"


def test_without_a_soft_deadline_time_changes_nothing_before_the_hard_one() -> None:
    assert wakes_at(RULES, in_training(), 2.0) == 101.0
    rules = RoundRules.of(
        TaskSpec("t", deadlines=DeadlineSpec(training_soft_s=60.0)), task_id="t", round_number=1, attempt=1
    )
    assert rules.soft_s == {Stage.TRAINING: 60.0}


SOURCE = replace(RULES, min_labelled=1)
"""A cohort is nothing without a labelled device."""


def with_source(rules: RoundRules = SOURCE) -> RoundState:
    """Return a round in training, of whose devices d is labelled."""
    return after(rules, (1.0, CheckedIn(frozenset("abcd"), frozenset("d"))))


def test_a_cohort_waits_for_its_labelled_device_and_asks_it_whatever_chance_says() -> None:
    waiting = after(SOURCE, (1.0, CheckedIn(frozenset("abcdefgh"))))
    assert (waiting.stage, lacking(SOURCE, waiting, 1.0)) == (Stage.SELECTING, 1)
    for seed in range(20):
        rules = replace(SOURCE, seed=seed)
        state, (selected, _) = advance(rules, waiting, CheckedIn(frozenset("s"), frozenset("s")), 2.0)
        assert isinstance(selected, Selected)
        assert len(selected.device_ids) == 4
        assert "s" in selected.device_ids
        assert (state.stage, state.labelled) == (Stage.TRAINING, {"s"})


def test_a_cohort_that_waits_for_a_source_remembers_four_times_those_that_it_asks() -> None:
    """Whoever comes to a task without a source would fill the memory else; who comes first, or often, gains nothing."""
    crowd = [f"{number:02}" for number in range(40)]
    at_once = after(SOURCE, (1.0, CheckedIn(frozenset(crowd))))
    for order in (crowd, crowd[::-1], crowd[20:] + crowd[:20]):
        state, _ = open_round(SOURCE, 0.0)
        for number, device in enumerate(order):
            state, _ = advance(SOURCE, state, CheckedIn(frozenset({device})), 0.1 * number)
            state, _ = advance(SOURCE, state, CheckedIn(frozenset({order[0]})), 0.1 * number)
            assert len(state.candidates) <= 16
        assert state.candidates.keys() == at_once.candidates.keys()
    again, _ = advance(SOURCE, state, CheckedIn(frozenset(crowd)), 5.0)
    assert again.candidates.keys() == at_once.candidates.keys()
    assert set(again.candidates.values()) == {5.0}
    came, (selected, _) = advance(SOURCE, again, CheckedIn(frozenset("s"), frozenset("s")), 6.0)
    assert isinstance(selected, Selected)
    assert (came.stage, came.labelled, "s" in selected.device_ids) == (Stage.TRAINING, {"s"}, True)
    silent = replace(SOURCE, lease_s=2.0)
    late = sorted(set(crowd) - again.candidates.keys())[:10]
    others, _ = advance(silent, again, CheckedIn(frozenset(late)), 7.5)
    assert set(others.candidates) == set(late), "places of silent devices are free"
    plain = after(replace(RULES, num_selected=50), (1.0, CheckedIn(frozenset(crowd))))
    assert len(plain.candidates) == 40


def test_chance_and_no_id_says_which_phones_of_a_crowd_wait_for_a_source() -> None:
    crowd = [f"d{number:02}" for number in range(40)]
    waited = set[str]()
    for seed in range(30):
        state = after(replace(SOURCE, seed=seed), (1.0, CheckedIn(frozenset(crowd))))
        assert len(state.candidates) == 16
        waited |= state.candidates.keys()
    assert waited == set(crowd)


def test_a_labelled_device_that_comes_again_without_labels_counts_as_any_other() -> None:
    state = after(SOURCE, (1.0, CheckedIn(frozenset("as"), frozenset("s"))), (2.0, CheckedIn(frozenset("s"))))
    assert lacking(SOURCE, state, 2.0) == 1
    silent = after(replace(SOURCE, lease_s=5.0), (1.0, CheckedIn(frozenset("s"), frozenset("s"))))
    assert [lacking(replace(SOURCE, lease_s=5.0), silent, now) for now in (6.0, 6.1)] == [0, 1]


def test_without_its_labelled_device_no_deadline_of_selecting_makes_a_cohort() -> None:
    soft = replace(SOURCE, soft_s={Stage.SELECTING: 4.0})
    waiting = after(soft, (1.0, CheckedIn(frozenset("abcde"))), (5.0, TimePassed()))
    assert (waiting.stage, wakes_at(soft, waiting, 5.0)) == (Stage.SELECTING, 10.0)
    came, _ = advance(soft, waiting, CheckedIn(frozenset("s"), frozenset("s")), 6.0)
    assert came.stage is Stage.TRAINING
    over, _ = advance(soft, waiting, TimePassed(), 10.0)
    why = "0 labelled devices checked in within 10 s; cohort.must_include asks for 1"
    assert (over.stage, over.reason) == (Stage.ABORTED, why)


def test_training_waits_for_the_labelled_device_and_keeps_a_place_for_it() -> None:
    """Targets are done long before a source with many pictures; three may report, and one of them must be it."""
    state = with_source()
    for device in "ab":
        state, _ = advance(SOURCE, state, Trained(device), 2.0)
    state, effects = advance(SOURCE, state, Trained("c"), 3.0)
    assert (state.stage, effects) == (Stage.TRAINING, (BecameLate(("c",)),))
    state, effects = advance(SOURCE, state, Trained("d"), 90.0)
    assert (state.stage, state.devices(Step.TRAINED)) == (Stage.UPLOAD, ("a", "b", "d"))


def test_from_its_soft_deadline_on_training_still_waits_for_the_labelled_device() -> None:
    soft = replace(SOURCE, size=4, soft_s={Stage.TRAINING: 30.0})
    state = with_source(soft)
    for device in "abc":
        state, _ = advance(soft, state, Trained(device), 2.0)
    state, _ = advance(soft, state, TimePassed(), 31.0)
    assert (state.stage, wakes_at(soft, state, 31.0)) == (Stage.TRAINING, 101.0)
    done, _ = advance(soft, state, Trained("d"), 40.0)
    assert done.stage is Stage.UPLOAD
    over, _ = advance(soft, state, TimePassed(), 101.0)
    why = "0 labelled devices trained within 100 s; cohort.must_include asks for 1"
    assert (over.stage, over.reason) == (Stage.ABORTED, why)


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.KEYS, Stage.SHARES, Stage.UPLOAD])
def test_a_round_whose_labelled_device_leaves_before_its_vector_is_given_up(stage: Stage) -> None:
    rules = replace(SOURCE, size=4, path=MASKED)
    state = with_source(rules)
    while state.stage is not stage:
        event = Trained if state.stage is Stage.TRAINING else None
        asked = state.devices(rules.asked(state.stage))
        now, at = 2.0, state.stage
        for device in asked:
            state, _ = advance(rules, state, event(device) if event else Stepped(device, at), now)
    state, _ = advance(rules, state, Left("d", "low_quality"), 3.0)
    why = "0 labelled devices are left; cohort.must_include asks for 1"
    assert (state.stage, state.reason) == (Stage.ABORTED, why)


def test_a_labelled_device_whose_vector_is_in_the_sum_may_leave_but_not_be_dropped_from_it() -> None:
    rules = replace(SOURCE, size=4, path=MASKED)
    participants = dict.fromkeys("abcd", Step.UPLOADED)
    summed = RoundState(Stage.CONSISTENCY, 50.0, {}, participants, labelled=frozenset("d"))
    gone, _ = advance(rules, summed, Left("d", ""), 3.0)
    assert (gone.stage, gone.participants["d"]) == (Stage.CONSISTENCY, Step.GONE)
    dropped, _ = advance(rules, summed, Dropped(frozenset("d")), 3.0)
    why = "0 labelled devices are left in the sum; cohort.must_include asks for 1"
    assert (dropped.stage, dropped.reason) == (Stage.ABORTED, why)


def test_labelled_devices_are_drawn_first_and_all_others_by_the_same_chance() -> None:
    candidates, labelled = "abcdefgh", frozenset("gh")
    drawn = Counter(choose(candidates, 3, seed, labelled, 1) for seed in range(4000))
    assert all(labelled.intersection(chosen) for chosen in drawn)
    each = Counter(device for chosen, times in drawn.items() for device in chosen for _ in range(times))
    others = [each[device] / 4000 for device in "abcdef"]
    assert max(abs(share - 2 / 7) for share in others) < 0.03, "two of the seven that are left"
    assert choose(candidates, 3, 5) == choose(candidates, 3, 5, labelled, 0), "a draw without them is as it was"


DEVICES = st.sampled_from([f"d{i}" for i in range(7)])
EVENTS = st.one_of(
    st.builds(CheckedIn, st.frozensets(DEVICES, min_size=1), st.frozensets(DEVICES)),
    st.builds(Withdrew, DEVICES),
    st.builds(Trained, DEVICES),
    st.builds(Uploaded, DEVICES),
    st.builds(Stepped, DEVICES, st.sampled_from(list(MASKED)), st.booleans()),
    st.builds(Dropped, st.frozensets(DEVICES, max_size=2)),
    st.builds(Left, DEVICES, st.just("low_quality")),
    st.builds(TimePassed),
    st.builds(Resumed, st.floats(0, 60)),
)
STORIES = st.lists(st.tuples(st.floats(0, 40), EVENTS), max_size=60)


@st.composite
def any_rules(draw: st.DrawFn) -> RoundRules:
    min_reports = draw(st.integers(1, 4))
    size = draw(st.integers(min_reports, 5))
    selected = draw(st.integers(size, 7))
    times = st.floats(1, 100)
    stages_s = {stage: draw(times) for stage in STAGES_S}
    path = draw(st.sampled_from([PLAIN, MASKED, MASKED_CURIOUS]))
    soft = st.sampled_from([Stage.SELECTING, Stage.TRAINING, Stage.UPLOAD])
    rules = RoundRules(selected, size, min_reports, draw(times), stages_s, path, draw(st.integers(0, 99)))
    rules = replace(rules, min_labelled=draw(st.integers(0, min(min_reports, 2))))
    return replace(
        rules, soft_s={stage: draw(st.floats(0.1, 1.0)) * rules.whole_s(stage) for stage in draw(st.sets(soft))}
    )


@settings(max_examples=300, deadline=None)
@given(any_rules(), STORIES, st.booleans())
def test_laws(rules: RoundRules, story: list[tuple[float, Event]], sum_succeeds: bool) -> None:
    """No stuck state, no lost upload, no round below its quorum, and every event is idempotent."""
    order = list(Stage)
    now = 0.0
    state, _ = open_round(rules, now)
    for pause_s, event in story:
        now += pause_s
        before = state
        try:
            state, effects = advance(rules, state, event, now)
        except MienError:
            assert state == before
            continue
        assert order.index(state.stage) >= order.index(before.stage)
        assert len(state.participants) <= rules.num_selected
        if not isinstance(event, Dropped):
            assert set(before.devices(*COUNTED)) <= set(state.devices(*COUNTED))
        for effect in effects:
            if isinstance(effect, SumWanted):
                assert effect.device_ids == state.devices(*COUNTED)
                assert rules.min_reports <= len(effect.device_ids) <= rules.size
                assert len(state.labelled.intersection(effect.device_ids)) >= rules.min_labelled
        moved, _ = advance(rules, state, TimePassed(), now)
        assert (wakes_at(rules, state, now) <= now) == (moved != state), "whoever sleeps until then misses nothing"
        if not isinstance(event, Resumed):
            repeated, again = _repeat(rules, state, event, now)
            assert repeated == state
            assert again == ()
    for _ in range(1 + len(rules.path)):  # nobody does anything any more: one deadline after another passes
        if state.stage not in (Stage.CLOSING, Stage.CLOSED, Stage.ABORTED):
            assert math.isfinite(state.deadline)
            now = max(now, state.deadline)
            state, _ = advance(rules, state, TimePassed(), now)
    assert state.stage in (Stage.CLOSING, Stage.ABORTED)
    state, _ = advance(rules, state, Summed() if sum_succeeds else SumFailed("norm"), now)
    assert state.stage.is_over


def _repeat(rules: RoundRules, state: RoundState, event: Event, now: float) -> tuple[RoundState, tuple[object, ...]]:
    try:
        return advance(rules, state, event, now)
    except MienError:
        return state, ()
