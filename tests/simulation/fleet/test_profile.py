"""Profiles: what a file of one's own changes, what is refused, and what the defaults give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mien.errors import ConfigError, CorruptDataError
from mien.methods import find_method
from mien.protocol.rounds import Stage
from mien.secagg.planner import RoundIds, plan_round, stage_bytes
from mien.specs import CohortSpec, DpSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.faces.models import Model
from simulation.fleet.costs import round_cost
from simulation.fleet.phones import DrawnPhones, draw_capacity
from simulation.fleet.profile import default_text, parse_profile, read_profile
from simulation.fleet.windows import DAY_S, HOUR_S, Coming, Diurnal, End
from tests.tiny import tiny_cnn

TASK = TaskSpec("t", method="fedavg", local=LocalSpec(steps=10, batch_size=8))
PLAIN = replace(TASK, privacy=PrivacySpec(secure_aggregation="off"))


def test_a_file_changes_the_fields_that_it_names() -> None:
    profile, default = parse_profile("[failures]\nshare = 0.5\n"), read_profile(None)
    assert profile.failures.share == 0.5
    assert profile.failures.told_share == default.failures.told_share
    assert profile.tiers == default.tiers
    one = parse_profile('[[tiers]]\nname = "x"\nshare = 1.0\nslowdown = 2.0\n')
    assert [tier.name for tier in one.tiers] == ["x"]


def test_the_default_is_what_the_file_beside_the_code_says() -> None:
    assert parse_profile(default_text()) == read_profile(None)


MANY = "".join(f'[[{{0}}]]\nname = "c{i}"\nshare = {1 / 101}\n{{1}}\n' for i in range(101))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[failure]\nshare = 0.5\n", "did you mean 'failures'"),
        ("[failures]\nshares = 0.5\n", "did you mean 'failures.share'"),
        ("[failures]\nshare = 1.5\n", "failures.share is 1.5; it must lie between 0 and 1"),
        ("[failures]\nshare = nan\n", "failures.share"),
        ('[[tiers]]\nname = "x"\nshare = 0.5\nslowdown = 2.0\n', "add up to 0.5"),
        ("[availability]\nzones_h = []\n", "zones_h"),
        (f"[availability]\nzones_h = {[1] * 101}\n", "zones_h has 101 entries; it may have 100"),
        (MANY.format("tiers", "slowdown = 1.0"), "tiers has 101 entries"),
        (MANY.format("networks", "down_mbit_s = 1.0\nup_mbit_s = 1.0"), "networks has 101 entries"),
        ("[availability]\nday_from_h = 23.5\n", "day_to_h must lie after"),
        ("[availability]\njob_minutes = 70\n", "job_every_minutes is 60, from start to start; it must not be less"),
        ("[work]\ntrained_parameters = 0\n", "trained_parameters"),
        ("[work\n", "not valid TOML"),
        ("failures = 3\n", "failures"),
    ],
)
def test_a_profile_that_does_not_hold_is_refused_by_its_field(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_profile(text)
    assert what in caught.value.message


def test_a_profile_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match=r"mine\.toml"):
        read_profile(tmp_path / "mine.toml")


def there(profile_text: str, hours: range) -> list[float]:
    """Return the share of phones that are there at each hour of a local day in the middle of a week."""
    profile, num = parse_profile(profile_text), 4000
    diurnal = Diurnal(profile.availability, profile.battery, num, 3)
    days = [diurnal.day(day) for day in range(-1, 4)]
    phones, starts, ends = (
        np.concatenate([getattr(day, name) for day in days]) for name in ("phones", "starts_s", "ends_s")
    )
    times = [DAY_S + hour * HOUR_S for hour in hours]
    return [len(np.unique(phones[(starts <= at) & (ends > at)])) / num for at in times]


def test_four_times_as_many_phones_are_there_at_night_as_by_day() -> None:
    shares = there("", range(24, 48))
    assert 3.0 < max(shares) / min(shares) < 5.5
    assert np.argmax(shares) in (0, 1, 2, 3, 4)


def test_a_system_that_gives_ten_minutes_an_hour_lets_a_sixth_be_there() -> None:
    hours = range(24, 30)
    limited = there("[availability]\njob_minutes = 10\njob_every_minutes = 60\n", hours)
    ratios = np.array(limited) / np.array(there("", hours))
    np.testing.assert_allclose(ratios, 1 / 6, atol=0.04)
    profile = parse_profile("[availability]\njob_minutes = 10\njob_every_minutes = 60\nrestricted_share = 1\n")
    spans = Diurnal(profile.availability, profile.battery, 500, 3).day(0)
    assert len(np.unique(spans.phones)) == len(spans), "one start a day"
    assert (spans.ends_s - spans.starts_s).max() <= 600 + 1e-6
    assert set(spans.ends_by) == {End.IN_USE, End.OFFLINE, End.STOPPED}


def test_local_time_moves_the_night() -> None:
    shares = there("[availability]\nzones_h = [8.0]\n", range(24, 48))
    assert np.argmax(shares) in (16, 17, 18, 19, 20), "8 hours ahead it is night when the clock says the afternoon"


def test_a_battery_that_is_low_keeps_a_phone_away_until_it_is_charged() -> None:
    """From 10 % to 60 % at two hours for the whole take an hour."""
    battery = "[battery]\nstart_level = 0.1\nstart_level_sd = 0.0\nleast_level = 0.6\nfull_hours = 2.0\n"
    low, full = (
        Diurnal(profile.availability, profile.battery, 50, 1).day(0)
        for profile in (parse_profile(battery), read_profile(None))
    )
    longest = np.argsort(full.ends_s - full.starts_s)[-10:]
    moved = [low.starts_s[np.isclose(low.ends_s, full.ends_s[i])][0] - full.starts_s[i] for i in longest]
    assert min(moved) >= HOUR_S - 0.2 * 1.5 * HOUR_S - 1e-6, (
        "a phone of the default may have waited, too, up to 20 % of 1.5 hours"
    )
    assert max(moved) == pytest.approx(HOUR_S)


def test_spans_come_in_order_whatever_the_zone() -> None:
    profile = parse_profile("[availability]\nzones_h = [-11.0, 0.0, 13.0]\n")
    coming = Coming(Diurnal(profile.availability, profile.battery, 200, 2), 3 * DAY_S)
    last_s = 0.0
    for _ in range(600):
        start_s = coming.next_s()
        _, end_s, _ = coming.take()
        assert last_s <= start_s < end_s
        last_s = start_s


def test_medians_and_shares_are_the_profiles() -> None:
    profile = read_profile(None)
    capacity = draw_capacity(profile, 20_000, 0)
    for number, tier in enumerate(profile.tiers):
        mine = capacity.tier_of == number
        assert np.mean(mine) == pytest.approx(tier.share, abs=0.02)
        assert np.median(capacity.slowdown[mine]) == pytest.approx(tier.slowdown, rel=0.05)


def test_a_round_costs_the_bytes_of_the_protocol() -> None:
    work = read_profile(None).work
    cost, nobody = round_cost(TASK, work), RoundIds(bytes(16), 1, 1, bytes(32), bytes(32))
    tiny = tiny_cnn()
    on_model = round_cost(TASK, work, Model(tiny.spec, tiny.layout, tiny.theta))
    part = tiny.layout.part(tiny.spec.trainable or ("*",))
    layout = find_method("fedavg").contribution_layout(TASK, part, tiny.spec.input.dim)
    expected = stage_bytes(plan_round(TASK, layout, nobody), TASK.cohort.size).values()
    assert on_model.sent == sum(stage.sent for stage in expected)
    assert sum(stage.received for stage in on_model.stages.values()) == sum(stage.received for stage in expected)
    assert on_model.model_bytes == 4 * tiny.layout.size
    assert cost.sent > 4 * work.trained_parameters
    plain = round_cost(PLAIN, work)
    assert list(plain.stages) == [Stage.UPLOAD]
    assert plain.sent == 4 * (work.trained_parameters + 4)


@pytest.mark.parametrize(
    ("task", "what"),
    [
        (replace(TASK, method="pfm_fv", validators=CohortSpec()), "trainers alone"),
        (
            replace(
                TASK,
                trainable=("x",),
                privacy=PrivacySpec(
                    max_weight=1,
                    dp=DpSpec("central_gaussian", 1.0, 8.0, 1e-6, 10),
                ),
            ),
            "max_participations",
        ),
    ],
)
def test_what_the_fleet_does_not_emulate_is_refused(task: TaskSpec, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        round_cost(task, read_profile(None).work)


def test_a_phones_time_is_bytes_over_its_rates_and_steps_by_its_tier() -> None:
    """Without spread: 10 steps of 8 images at 170 ms, 9.61 times as long; 3.972 MB down at 29 Mbit/s; 5.2 s around."""
    text = (
        '[[tiers]]\nname = "low"\nshare = 1.0\nslowdown = 9.61\n'
        '[[networks]]\nname = "weak"\nshare = 1.0\ndown_mbit_s = 29.0\nup_mbit_s = 5.74\n'
        "[spread]\nnetwork = 0.0\ncompute = 0.0\nround = 0.0\n[failures]\nshare = 0.0\n[work]\nimages_spread = 0.0\n"
    )
    profile = parse_profile(text)
    phones = DrawnPhones(profile, PLAIN, round_cost(PLAIN, profile.work), 2, 0)
    fetched_s = 3_972_000 * 8 / 29e6
    assert phones.outlook(1, 0).training_s == pytest.approx(0.2 + fetched_s + 5.0 + 10 * 0.170 * 9.61)
    assert phones.outlook(1, 0).fails_after_s is None
    assert phones.stage_s(1, Stage.UPLOAD) == pytest.approx(0.2 + 4 * 298_004 * 8 / 5.74e6)
