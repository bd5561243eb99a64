"""Whole phones in rounds under secure aggregation, with both servers as real processes: sums, and sudden ends."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from device_sdk.rounds.participate import Counted
from mien.methods import METHODS
from mien.secagg.planner import plan_numbers
from mien.specs import CohortSpec, DeadlineSpec, PrivacySpec, TaskSpec
from tests.device_sdk.programs import has_died, mien_device, start_mien_device
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet, small_model
from tests.integration.test_device import Companion, expected_theta, task

pytestmark = pytest.mark.slow

PRIVATE = PrivacySpec(min_cohort=3)
DEADLINES = DeadlineSpec(150.0, 150.0, *(60.0,) * 5)


def private_task(name: str, **changes: Any) -> TaskSpec:
    values = {
        "cohort": CohortSpec(size=3, min_reports=3),
        "privacy": PRIVATE,
        "deadlines": DEADLINES,
        **changes,
    }
    return task(name, **values)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with real_fleet(tmp_path_factory.mktemp("private")) as running:
        running.release(small_model())
        yield running


def companions(fleet: RealFleet, population: str, numbers: range, **options: Any) -> list[Companion]:
    return [
        Companion(fleet, f"{population}{i}", population, IDENTITIES[i % len(IDENTITIES)], **options) for i in numbers
    ]


@pytest.mark.parametrize("profile", ["malicious_server", "honest_but_curious"])
def test_a_private_rounds_model_is_the_weighted_mean_of_the_phones_updates(fleet: RealFleet, profile: str) -> None:
    population = profile.replace("_", "-")
    privacy = PrivacySpec(min_cohort=3, secure_aggregation=profile)  # type: ignore[arg-type]
    spec = private_task(population, privacy=privacy)
    task_id = fleet.submit(spec)
    allowed = {"participation.allow_profiles": ("honest_but_curious",), "participation.allow_plain_sums": False}
    phones = companions(fleet, population, range(3), options=allowed)
    outcomes = [phone.join() for phone in phones]
    (report,) = fleet.outcome(task_id)
    assert all(outcome == [Counted(outcome[0].round, report.model_id, 3)] for outcome in outcomes)
    layout = METHODS["fedavg"].contribution_layout(spec, small_model().layout.part(small_model().spec.trainable), 128)
    uploads = [phone.contributions[0] for phone in phones]
    theta = fleet.theta(report.model_id)
    # Rounding moves an element of the mean by one step at most.
    step = 2.0 ** -plan_numbers(3, l2_clip=privacy.l2_clip, max_weight=privacy.max_weight).frac_bits
    np.testing.assert_allclose(theta, expected_theta(layout, spec, uploads), atol=step + 1e-6)
    assert not np.array_equal(theta, small_model().theta)


@pytest.mark.parametrize("stage", ["reported", "sum"])
def test_a_phone_killed_in_a_private_round_costs_at_most_an_attempt(fleet: RealFleet, stage: str) -> None:
    population = f"killed-{stage}"
    task_id = fleet.submit(private_task(population))
    home = fleet.folder / population
    fleet.phone(population, population, IDENTITIES[0]).close()
    others = companions(fleet, population, range(1, 3))
    command = ("participate", "--rounds", "1", "--min-cohort", "3", "--home", home, "--json")
    assert has_died(start_mien_device(*command, dies_at=stage))

    again = mien_device(*command)
    assert again.returncode == 0, again.stderr
    reports = fleet.outcome(task_id)
    assert reports[-1].num_reports == 3
    assert all(isinstance(other.join()[-1], Counted) for other in others)
    with fleet.open(population) as device:
        assert device.gallery.pending() is None
        assert device.gallery.private_state(device.people()[0].id, task_id)
        sums = [terms.attempt for terms in device.attempts.participations()]
        assert sums == sorted(set(sums))
        assert sums[-1] == reports[-1].round.attempt


def test_a_phone_killed_after_its_upload_is_in_the_sum_and_finds_out(fleet: RealFleet) -> None:
    task_id = fleet.submit(private_task("sent", cohort=CohortSpec(size=6, min_reports=5)))
    home = fleet.folder / "sent"
    fleet.phone("sent", "sent", IDENTITIES[0]).close()
    others = companions(fleet, "sent", range(1, 6))
    command = ("participate", "--rounds", "1", "--min-cohort", "3", "--home", home, "--json")
    assert has_died(start_mien_device(*command, dies_at="uploaded"))
    again = mien_device(*command)
    assert again.returncode == 0, again.stderr
    (report,) = fleet.outcome(task_id)
    assert report.num_reports == 6
    assert all(isinstance(other.join()[-1], Counted) for other in others)
    with fleet.open("sent") as device:
        assert device.gallery.private_state(device.people()[0].id, task_id)
        assert len(device.attempts.participations()) == 1


def test_phones_whose_pictures_are_used_up_take_no_place_in_another_task_over_the_model(fleet: RealFleet) -> None:
    """They are there before the others, and its cohort is filled in the first try by the others alone."""
    population = "used-up"
    first = fleet.submit(private_task(population))
    assert all(isinstance(each.join()[-1], Counted) for each in companions(fleet, population, range(3)))
    assert [report.num_reports for report in fleet.outcome(first)] == [3]
    second = fleet.submit(private_task("again", population=population))

    def looks_for_work(number: int) -> list[str]:
        told: list[str] = []
        with fleet.open(f"{population}{number}", tell=lambda event: told.append(str(event))) as device:
            assert list(device.participate(idle_s=0.1)) == []
        return told

    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(looks_for_work, range(3)))
    assert all(any("in as many sums as its owner lets them" in text for text in each) for each in told)
    assert all(isinstance(each.join()[-1], Counted) for each in companions(fleet, population, range(3, 6)))
    (report,) = fleet.outcome(second)
    assert (report.num_selected, report.num_reports, report.round.attempt) == (3, 3, 1)
