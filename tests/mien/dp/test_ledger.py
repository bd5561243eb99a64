"""The account stops before a budget is exceeded, and shows if it was changed."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mien.dp.accountant import Release, epsilon_rdp
from mien.dp.ledger import (
    GENESIS,
    Event,
    Ledger,
    Opening,
    check_device,
    may_take_part,
    most_apart,
)
from mien.errors import BudgetExceededError, CorruptDataError, ReplayError
from mien.specs import DpSpec

DP = DpSpec("central_gaussian", 2.0, epsilon=8.0, delta=1e-5, max_participations=3)
RELEASE = Release("central_gaussian", 2.0, 2.0**16, 1000)


def opening(round_: int = 1, *, task: str = "t1", dp: DpSpec = DP, attempt: int = 1) -> Opening:
    release = replace(RELEASE, noise_multiplier=dp.noise_multiplier) if dp.is_on else None
    return Opening(task, round_, attempt, "c" * 64, 1.0, dp, release, num_survivors=20)


def ledger_of(*openings: Opening) -> Ledger:
    ledger = Ledger("default")
    for each in openings:
        ledger = ledger.plus(ledger.check(each))
    return ledger


def test_epsilon_grows_until_every_device_has_reached_its_cap() -> None:
    ledger = ledger_of(*(opening(r) for r in range(1, 8)))
    expected = [epsilon_rdp([(RELEASE, min(r, 3))], 1e-5) for r in range(1, 8)]
    assert [event.epsilon_after for event in ledger.events] == pytest.approx(expected)
    assert [event.epsilon_before for event in ledger.events] == pytest.approx([0.0, *expected[:-1]])


def test_tasks_of_a_population_add_up() -> None:
    other = replace(DP, noise_multiplier=4.0, max_participations=2)
    ledger = ledger_of(opening(1), opening(1, task="t2", dp=other), opening(2, task="t2", dp=other))
    quiet = replace(RELEASE, noise_multiplier=4.0)
    assert ledger.epsilon(1e-5) == pytest.approx(epsilon_rdp([(RELEASE, 1), (quiet, 2)], 1e-5))
    assert ledger.composition(of_task="t2") == [(quiet, 2)]


def test_a_failed_attempt_that_was_opened_counts() -> None:
    once, twice = ledger_of(opening(1)), ledger_of(opening(1), opening(1, attempt=2))
    assert twice.epsilon(1e-5) > once.epsilon(1e-5)
    with pytest.raises(ReplayError):
        twice.check(opening(1, attempt=2))


def test_rounds_that_lie_too_close_for_one_device_are_not_charged_to_it_twice() -> None:
    apart = replace(DP, min_separation=3)
    ledger = ledger_of(*(opening(r, dp=apart) for r in (1, 2, 3, 4)))
    assert ledger.composition() == [(RELEASE, 2)]
    assert most_apart([1, 2, 3, 4, 4, 7], 3) == 3
    assert most_apart([1, 1, 2], 0) == 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 30)), min_size=1, max_size=30, unique=True),
    st.floats(0.5, 30.0),
    st.floats(0.5, 10.0),
)
def test_no_event_ever_exceeds_a_budget(rounds: list[tuple[str, int]], epsilon: float, z: float) -> None:
    """Whatever is asked for, in whatever order: what is let through is within the budget, what is not would exceed."""
    dp = replace(DP, epsilon=epsilon, noise_multiplier=z, max_participations=4)
    ledger, sums = Ledger("default"), dict.fromkeys("abc", 0)
    for task, round_ in rounds:
        charged = sum(min(4, sums[name] + (name == task)) for name in sums)
        would_be = epsilon_rdp([(replace(RELEASE, noise_multiplier=z), charged)], dp.delta)
        try:
            event = ledger.check(opening(round_, task=task, dp=dp))
        except BudgetExceededError:
            assert would_be > epsilon
            continue
        assert would_be <= epsilon
        assert event.epsilon_after == pytest.approx(would_be)
        ledger, sums[task] = ledger.plus(event), sums[task] + 1
    ledger.verify()


def test_the_refusal_comes_before_the_release() -> None:
    tight = replace(DP, epsilon=epsilon_rdp([(RELEASE, 2)], 1e-5) + 1e-9)
    ledger = ledger_of(opening(1, dp=tight), opening(2, dp=tight))
    with pytest.raises(BudgetExceededError, match="round 3 would bring population default to epsilon"):
        ledger.check(opening(3, dp=tight))
    assert len(ledger.events) == 2


def test_a_budget_binds_for_good() -> None:
    tight = replace(DP, epsilon=epsilon_rdp([(RELEASE, 1)], 1e-5) + 1e-9)
    ledger = ledger_of(opening(1, dp=tight))
    with pytest.raises(BudgetExceededError):
        ledger.check(opening(1, task="generous", dp=replace(DP, epsilon=1000.0)))
    assert ledger.budgets == ((tight.epsilon, 1e-5),)


def test_budgets_at_two_deltas_both_hold() -> None:
    ledger = ledger_of(opening(1), opening(1, task="t2", dp=replace(DP, epsilon=20.0, delta=1e-9)))
    assert ledger.budgets == ((8.0, 1e-5), (20.0, 1e-9))
    strict = replace(DP, epsilon=ledger.epsilon(1e-9) / 2, delta=1e-9)
    with pytest.raises(BudgetExceededError, match="delta 1e-09"):
        ledger.check(opening(1, task="t3", dp=strict))


def test_noise_and_no_noise_do_not_mix_in_a_population() -> None:
    plain = opening(1, dp=DpSpec())
    with pytest.raises(BudgetExceededError, match="without noise would break that"):
        ledger_of(opening(1)).check(replace(plain, task_id="t2"))
    bare = ledger_of(plain)
    assert bare.epsilon(1e-5) == math.inf
    assert bare.events[0].epsilon_after is None
    with pytest.raises(BudgetExceededError, match="unbounded"):
        bare.check(opening(1, task="t2"))


def test_events_survive_their_bytes() -> None:
    ledger = ledger_of(opening(1), opening(2))
    again = Ledger("default", tuple(Event.from_json(event.to_json()) for event in ledger.events))
    assert again == ledger
    assert again.head == ledger.head != GENESIS
    assert again.check(opening(3)) == ledger.check(opening(3))


@pytest.mark.parametrize("name", [f.name for f in fields(Event)])
def test_a_changed_field_is_found(name: str) -> None:
    ledger = ledger_of(opening(1), opening(2), opening(3))
    event = ledger.events[1]
    value = getattr(event, name)
    other = value + "0" if isinstance(value, str) else (value or 0) + 1
    forged = Ledger("default", (ledger.events[0], replace(event, **{name: other}), ledger.events[2]))
    with pytest.raises(CorruptDataError, match="does not follow"):
        forged.verify()


def test_dropped_swapped_and_inserted_events_are_found() -> None:
    one, two, three = ledger_of(opening(1), opening(2), opening(3)).events
    for events in ((one, three), (two, three), (two, one, three), (one, two, two, three), (one, one, two)):
        with pytest.raises(CorruptDataError, match="restore the database"):
            Ledger("default", events).verify()
    with pytest.raises(CorruptDataError):
        Ledger("default", (one,)).plus(three)
    with pytest.raises(CorruptDataError):
        Ledger("other", (one, two)).verify()


def test_cut_off_events_show_in_the_head() -> None:
    ledger = ledger_of(opening(1), opening(2))
    shorter = Ledger("default", ledger.events[:1])
    shorter.verify()
    assert shorter.head != ledger.head


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"population": "x"}', b"\xff", b"3"])
def test_damaged_bytes_are_no_event(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        Event.from_json(data)


def test_bytes_in_another_form_are_no_event() -> None:
    data = ledger_of(opening(1)).events[0].to_json()
    with pytest.raises(CorruptDataError, match="canonical"):
        Event.from_json(data.replace(b":", b": ", 1))


# One device


def test_caps_of_one_device() -> None:
    apart = replace(DP, min_separation=5)
    assert may_take_part(apart, [], 1)
    assert not may_take_part(apart, [3], 7)
    assert may_take_part(apart, [3], 8)
    assert not may_take_part(apart, [1, 6, 11], 30)
    assert may_take_part(DP, [3], 3)  # no separation: a failed attempt may ask again
    assert may_take_part(DpSpec(), [1] * 100, 1)


def test_a_device_keeps_its_own_count() -> None:
    total = check_device([RELEASE, RELEASE], RELEASE, max_epsilon=8.0, delta=1e-5)
    assert total == pytest.approx(epsilon_rdp([(RELEASE, 3)], 1e-5))
    with pytest.raises(BudgetExceededError, match="owner's limit is 4"):
        check_device([RELEASE, RELEASE], RELEASE, max_epsilon=4.0, delta=1e-5)


def test_a_sum_without_noise_exceeds_every_limit() -> None:
    with pytest.raises(BudgetExceededError, match="more than any epsilon"):
        check_device([], None, max_epsilon=1000.0)
    with pytest.raises(BudgetExceededError):
        check_device([None], RELEASE, max_epsilon=1000.0)
