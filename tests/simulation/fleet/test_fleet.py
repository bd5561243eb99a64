"""Small schedules, computed by hand; drawn fleets that are the same again, and of the size that was said."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

from mien.errors import ConfigError
from mien.protocol.rounds import Stage
from mien.specs import AsynchronousSpec, CohortSpec, DeadlineSpec, LocalSpec, MustInclude, PrivacySpec, TaskSpec
from simulation.fleet.costs import round_cost
from simulation.fleet.fleet import Fleet
from simulation.fleet.phones import DrawnPhones, Outlook
from simulation.fleet.profile import CoordinatorSettings, Profile, read_profile
from simulation.fleet.records import Fate, History
from simulation.fleet.summary import gini, summarise, time_to
from simulation.fleet.windows import End
from tests.simulation.fleet.scripted import LATENCY_S, Script, ScriptedPhones, Span

SETTINGS = CoordinatorSettings(20.0, 5.0, 50.0, 5, 0.0, 0.0)
PLAIN = TaskSpec(
    "plain",
    method="fedavg",
    rounds=1,
    cohort=CohortSpec(2, 2, 1.5),
    deadlines=DeadlineSpec(60.0, 100.0, upload_s=30.0),
    local=LocalSpec(steps=10, batch_size=8),
    privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
)
MASKED = replace(PLAIN, cohort=CohortSpec(5, 3, 1.2), privacy=PrivacySpec(min_cohort=3))


def phone(
    training_s: float, start_s: float = 1.0, end_s: float = 5000.0, *, offline: bool = False, **more: float
) -> Script:
    """Return a phone that is there once, with answers that take 5 s."""
    return Script(
        (Span(start_s, end_s, End.OFFLINE if offline else End.IN_USE),),
        (Outlook(training_s),),
        more.get("stage_s", 5.0),
    )


def run(task: TaskSpec, *scripts: Script, settings: CoordinatorSettings = SETTINGS, until_s: float = 5000.0) -> History:
    return Fleet(task, ScriptedPhones(task, scripts), settings, until_s=until_s).run()


def test_a_round_ends_when_enough_have_trained_and_uploaded() -> None:
    """Chosen at 1, trained at 11 and 21: the third is not needed. Two uploads of 5 s end the round at 26."""
    history = run(PLAIN, phone(10), phone(20), phone(30))
    (attempt,) = history.attempts
    assert [(str(stage), at_s) for stage, at_s in attempt.stages] == [("training", 1), ("upload", 21), ("closed", 26)]
    assert attempt.fates == {Fate.COUNTED: 2, Fate.SPARE: 1}
    assert (attempt.worked_s, attempt.wasted_s) == (10 + 5 + 20 + 5 + 20, 20)
    assert (attempt.received_bytes, attempt.sent_bytes) == (3 * 10_000 + 2 * 1000, 2 * 500)
    assert (history.state, history.rounds_closed, history.ended_s) == ("done", 1, 26)


def test_at_the_deadline_of_training_the_slow_are_late() -> None:
    task = replace(PLAIN, cohort=CohortSpec(3, 2), deadlines=DeadlineSpec(60.0, 25.0, upload_s=30.0))
    (attempt,) = run(task, phone(10), phone(20), phone(30)).attempts
    assert attempt.fates == {Fate.COUNTED: 2, Fate.SLOW: 1}
    assert dict(attempt.stages)[Stage.UPLOAD] == 26


def test_too_few_at_a_deadline_abort_the_attempt_and_the_round_is_tried_again() -> None:
    task = replace(PLAIN, deadlines=DeadlineSpec(60.0, 15.0, upload_s=30.0))
    attempts = run(task, phone(10), phone(20), phone(30), until_s=30.0).attempts
    assert attempts[0].reason == "1 devices trained within 15 s; 2 are needed"
    assert attempts[0].fates == {Fate.ABORTED: 3}
    assert [(each.round, each.attempt) for each in attempts[:2]] == [(1, 1), (1, 2)]


def test_a_round_begins_with_the_source_and_waits_for_its_training() -> None:
    """Phone 0, the source, is there from 50 on and trains for 60 s; the others from 1 on, and for 10 s."""
    cohort = CohortSpec(3, 2, must_include=MustInclude())
    task = replace(PLAIN, method="fedfr_uda", cohort=cohort)
    scripts = [phone(60, start_s=50.0), phone(10), phone(10), phone(10)]
    phones = ScriptedPhones(task, scripts, num_labelled=1)
    history = Fleet(task, phones, SETTINGS, until_s=5000.0).run()
    assert [len(attempt.fates) for attempt in history.attempts] == [1]
    (attempt,) = history.attempts
    began_s, upload_s = (at_s for _, at_s in attempt.stages[:2])
    assert 50 <= began_s < 60
    assert upload_s == pytest.approx(began_s + 60)
    assert attempt.fates == {Fate.COUNTED: 3}
    assert (history.state, history.rounds_closed) == ("done", 1)


def test_a_fleet_whose_source_stays_away_is_not_paused() -> None:
    task = replace(
        PLAIN,
        method="fedfr_uda",
        cohort=CohortSpec(2, 2, must_include=MustInclude()),
        deadlines=DeadlineSpec(10.0, 100.0, upload_s=30.0),
    )
    late = ScriptedPhones(task, [phone(10, start_s=300.0), phone(10), phone(10)], num_labelled=1)
    history = Fleet(task, late, SETTINGS, until_s=5000.0).run()
    waited = [each.reason for each in history.attempts[:-1]]
    assert len(waited) > SETTINGS.max_aborted
    assert set(waited) == {"0 labelled devices checked in within 10 s; cohort.must_include asks for 1"}
    assert (history.state, history.rounds_closed, history.pauses) == ("done", 1, ())


def test_a_fleet_without_a_source_is_refused_where_the_task_must_include_one() -> None:
    task = replace(PLAIN, method="fedfr_uda", cohort=CohortSpec(2, 2, must_include=MustInclude()))
    with pytest.raises(ConfigError, match=r"of these phones 0 are labelled.*work\.labelled"):
        run(task, phone(10), phone(10))


def test_after_five_aborted_attempts_the_task_is_paused_until_somebody_resumes_it() -> None:
    task = replace(PLAIN, deadlines=DeadlineSpec(10.0, 100.0, upload_s=30.0))
    alone = run(task, phone(10))
    assert (alone.state, len(alone.attempts)) == ("paused", 5)
    assert "5 attempts in a row were aborted" in alone.pauses[0][1]
    resumed = run(task, phone(10), settings=replace(SETTINGS, resume_after_s=100.0), until_s=1000.0)
    assert len(resumed.pauses) > 2
    assert len(resumed.attempts) >= 5 * len(resumed.pauses)


def test_a_phone_in_use_pauses_and_goes_on_in_the_same_round() -> None:
    """It trains from 1 to 11, is in use until 31, and needs 5 s more; the other waits for it from 11 on."""
    paused = Script((Span(1, 11), Span(31, 5000)), (Outlook(15.0),), 5.0)
    task = replace(PLAIN, cohort=CohortSpec(2, 2))
    (attempt,) = run(task, phone(10), paused).attempts
    assert dict(attempt.stages)[Stage.UPLOAD] == 36
    assert attempt.fates == {Fate.COUNTED: 2}
    assert attempt.worked_s == 10 + 15 + 5 + 5


def test_a_phone_that_stays_in_use_is_lost() -> None:
    task = replace(PLAIN, cohort=CohortSpec(3, 2))
    (attempt,) = run(task, phone(10), phone(20), phone(50, end_s=30.0)).attempts
    assert attempt.fates == {Fate.COUNTED: 2, Fate.IN_USE: 1}


def test_a_phone_that_loses_its_network_keeps_a_stage_until_its_deadline() -> None:
    task = replace(PLAIN, cohort=CohortSpec(3, 2))
    scripts = phone(10), phone(20), phone(15, end_s=24.0, offline=True)
    (attempt,) = run(task, *scripts).attempts
    assert attempt.fates == {Fate.COUNTED: 2, Fate.OFFLINE: 1}
    assert dict(attempt.stages)[Stage.CLOSING if Stage.CLOSING in dict(attempt.stages) else Stage.CLOSED] == 21 + 30


def test_a_phone_whose_system_stops_the_app_leaves_at_once_but_for_what_it_trained() -> None:
    """Stopped at 16 in training, it says so, and the others do not wait; trained at 11 it sends on its next start."""
    task = replace(PLAIN, cohort=CohortSpec(3, 2))
    stopped = Script((Span(1, 16, End.STOPPED),), (Outlook(50.0),), 5.0)
    (attempt,) = run(task, phone(10), phone(20), stopped).attempts
    assert attempt.fates == {Fate.COUNTED: 2, Fate.STOPPED: 1}
    assert dict(attempt.stages)[Stage.UPLOAD] == 21
    trained = Script((Span(1, 16, End.STOPPED), Span(25, 5000)), (Outlook(10.0),), 5.0)
    (attempt,) = run(replace(PLAIN, cohort=CohortSpec(2, 2)), trained, phone(20)).attempts
    assert attempt.fates == {Fate.COUNTED: 2}
    assert dict(attempt.stages)[Stage.CLOSED] == 30, "it uploads from 25 to 30"


def test_keys_that_were_spoken_of_are_gone_with_the_app() -> None:
    """All have trained by 20, keys take 5 s and shares 5 more, in the midst of which one is stopped, at 27."""
    stopped = Script((Span(1, 27, End.STOPPED), Span(28, 5000)), (Outlook(10.0),), 5.0)
    (attempt, *_) = run(MASKED, *(phone(10 + i) for i in range(4)), stopped, phone(20), until_s=300.0).attempts
    assert attempt.fates[Fate.STOPPED] == 1
    assert not attempt.is_closed, "of five none may be lost"


@pytest.mark.parametrize("tells", [True, False])
def test_a_phone_that_fails_leaves_or_is_missed(tells: bool) -> None:
    """Told, the stage ends with the last of the others at 21; untold it waits for its deadline at 101."""
    failing = Script((Span(1, 5000),), (Outlook(50.0, fails_after_s=5.0, tells=tells),))
    task = replace(PLAIN, cohort=CohortSpec(3, 2))
    (attempt,) = run(task, phone(10), phone(20), failing, until_s=200.0).attempts
    assert dict(attempt.stages)[Stage.UPLOAD] == (21 if tells else 101)
    assert attempt.fates == {Fate.COUNTED: 2, Fate.FAILED: 1}


def test_a_private_sum_goes_through_all_its_stages() -> None:
    """Six have trained at 7; each stage then waits for its slowest answer, 6 s, but the last one.

    There five of six release four shares of each secret, which is enough (t = 4).
    """
    task = replace(MASKED, cohort=CohortSpec(6, 3, 1.1))
    (attempt,) = run(task, *[phone(training, stage_s=float(training)) for training in range(1, 8)]).attempts
    assert [(str(stage), at_s) for stage, at_s in attempt.stages] == [
        ("training", 1),
        ("keys", 7),
        ("shares", 13),
        ("upload", 19),
        ("consistency", 25),
        ("unmask", 31),
        ("closed", 36),
    ]
    assert attempt.fates == {Fate.COUNTED: 6, Fate.SPARE: 1}


def test_too_many_lost_before_the_vectors_leave_secrets_without_holders() -> None:
    """Of six, t = 4 neighbours must hold each secret: with two survivors beside each, nothing can be opened."""
    task = replace(MASKED, cohort=CohortSpec(6, 3), deadlines=DeadlineSpec(60.0, 100.0, 20.0, 20.0, 20.0, 20.0, 20.0))
    gone = [phone(5, end_s=12.5, offline=True, stage_s=3.0) for _ in range(3)]
    (attempt, *_) = run(task, *[phone(5, stage_s=3.0) for _ in range(3)], *gone, until_s=100.0).attempts
    assert not attempt.is_closed
    assert "hold shares" in attempt.reason


def test_a_cohort_is_as_stale_as_others_made_it() -> None:
    """The slow pair, chosen at 2 on model 0, is done at 57; by then the fast one has made models at 16, 31 and 46."""
    spec = AsynchronousSpec(max_concurrency=2)
    task = replace(PLAIN, rounds=4, cohort=CohortSpec(2, 2), asynchronous=spec)
    history = run(task, phone(10), phone(10), phone(50, 2.0), phone(50, 2.0))
    closed = [each for each in history.attempts if each.is_closed]
    ended = sorted((each.ended_s, each.staleness) for each in closed)
    assert ended == [(16, 0), (31 + LATENCY_S, 0), (46 + 2 * LATENCY_S, 0), (57, 3)]


def test_what_is_too_stale_is_given_up() -> None:
    spec = AsynchronousSpec(max_concurrency=2, max_staleness=1)
    task = replace(PLAIN, rounds=4, cohort=CohortSpec(2, 2), asynchronous=spec)
    history = run(task, phone(10), phone(10), phone(50, 2.0), phone(50, 2.0))
    given_up = [each for each in history.attempts if not each.is_closed and each.ended_s is not None]
    assert given_up[0].ended_s == 31 + LATENCY_S
    assert "max_staleness" in given_up[0].reason


# Fleets that are drawn


@pytest.fixture(scope="module")
def profile() -> Profile:
    return read_profile(None)


def drawn(profile: Profile, task: TaskSpec, num: int, seed: int, until_s: float) -> tuple[History, DrawnPhones]:
    phones = DrawnPhones(profile, task, round_cost(task, profile.work), num, seed)
    return Fleet(task, phones, profile.coordinator, until_s=until_s, seed=seed).run(), phones


def test_a_seed_gives_the_same_fleet_again(profile: Profile) -> None:
    task = replace(PLAIN, rounds=10_000, cohort=CohortSpec(10, 8, 1.3))
    one, two = (drawn(profile, task, 300, 5, 900.0)[0] for _ in range(2))
    assert one.attempts == two.attempts
    assert np.array_equal(one.phones.counted, two.phones.counted)
    assert len(one.attempts) > 5
    assert drawn(profile, task, 300, 6, 900.0)[0].attempts != one.attempts


def test_drop_out_lies_where_it_was_observed(profile: Profile) -> None:
    """6 to 10 % of a cohort, by Bonawitz et al.; chance may take this small fleet a little beyond either end."""
    task = replace(MASKED, rounds=10_000, cohort=CohortSpec(40, 30))
    history, phones = drawn(profile, task, 1000, 1, 1800.0)
    summary = summarise(history, phones)
    lost = sum(summary.lost[str(fate)] for fate in (Fate.FAILED, Fate.IN_USE, Fate.OFFLINE, Fate.SLOW))
    assert summary.rounds_closed > 10
    assert 0.03 < lost < 0.13


def test_a_million_registered_phones_cost_what_those_that_are_there_cost(profile: Profile) -> None:
    rare = replace(profile.availability, night_share=0.002, day_charges=0.01)
    task = replace(PLAIN, rounds=10_000, cohort=CohortSpec(20, 15, 1.2))
    gc.collect()
    before = len(gc.get_objects())
    phones = DrawnPhones(replace(profile, availability=rare), task, round_cost(task, profile.work), 1_000_000, 0)
    fleet = Fleet(task, phones, profile.coordinator, until_s=1800.0)
    history = fleet.run()
    assert len(history.phones.counted) == 1_000_000
    assert history.rounds_closed > 5
    assert len(gc.get_objects()) - before < 100_000


def test_contributions_are_told_by_tier_and_how_evenly_phones_share_them() -> None:
    history = run(replace(PLAIN, rounds=2), phone(10), phone(20), phone(300, 1.0, 100.0))
    summary = summarise(history, ScriptedPhones(PLAIN, [phone(1)] * 3))
    assert history.phones.counted.tolist() == [2, 2, 0]
    assert summary.gini == pytest.approx(1 / 3)
    assert [(tier.of_phones, tier.of_contributions) for tier in summary.tiers] == [(1.0, 1.0)]
    assert summary.chosen_share == 1.0
    assert summary.counted_share == pytest.approx(2 / 3)
    assert time_to(history, 1) == 26
    assert time_to(history, 3) is None


@pytest.mark.parametrize(("counts", "expected"), [([1, 1, 1, 1], 0.0), ([0, 0, 0, 4], 0.75), ([0, 0], 0.0)])
def test_gini(counts: list[int], expected: float) -> None:
    assert gini(np.array(counts, np.int32)) == pytest.approx(expected)


def test_where_sums_add_up_a_phone_is_counted_once_and_waiting_pauses_nothing() -> None:
    """Seven phones make two cohorts of three; the seventh gathers alone for the rest of the time."""
    privacy = PrivacySpec(min_cohort=3, max_weight=1, reveals=("class_moment",))
    options = {"min_people": 3, "max_people": 1}
    task = replace(MASKED, method="statistics", rounds=9, trainable=("adapter.*",), options=options, privacy=privacy)
    task = replace(task, cohort=CohortSpec(3, 3, 1.0))
    history = run(task, *(phone(10, 1.0 + number) for number in range(7)))
    closed = [attempt for attempt in history.attempts if attempt.is_closed]
    assert [len(attempt.devices) for attempt in closed] == [3, 3]
    assert history.phones.counted.tolist().count(1) == 6
    assert max(history.phones.counted) == 1
    assert len(history.attempts) > 10
    assert (history.state, history.pauses) == ("running", ())


def test_an_adapters_statistics_cost_what_one_update_of_it_does() -> None:
    """16,643 numbers of four bytes and three more lanes, one way; whatever part the profile's training has."""
    privacy = PrivacySpec(min_cohort=3, max_weight=1, reveals=("class_moment",))
    task = replace(MASKED, method="statistics", trainable=("adapter.*",), options={"min_people": 3}, privacy=privacy)
    statistics = round_cost(task, read_profile(None).work)
    update = round_cost(replace(task, method="fedavg", options={}), read_profile(None).work)
    assert 66_000 < update.stages[Stage.UPLOAD].sent < statistics.stages[Stage.UPLOAD].sent < 68_000
