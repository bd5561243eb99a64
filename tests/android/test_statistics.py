"""Summed statistics by phones of two languages in one round: the real coordinator opens what all of them added."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk.runtimes.manifest import folder_for
from mien.methods.statistics import COUNTS, MEAN, STATISTICS
from mien.secagg.planner import plan_numbers
from mien.specs import CohortSpec
from tests.android.jvm import JvmPhone
from tests.android.story import crops_file
from tests.integration.real_fleet import RealFleet
from tests.integration.test_statistics import (
    AGREED,
    DIM,
    LONGEST,
    PART,
    PRIVACY,
    TINY,
    Phone,
    plain_sum,
    statistics_fleet,
    task,
)
from tests.tiny import made_up_crops

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with statistics_fleet(tmp_path_factory.mktemp("statistics")) as running:
        yield running


def jvm_phone(fleet: RealFleet, folder: Path, population: str, number: int) -> JvmPhone:
    """Start a phone of the JVM, with two people where it is the first; it writes what it sends before any mask."""
    guest = {"guest": crops_file(folder, "guest", made_up_crops(3, seed=80))} if number == 0 else {}
    return JvmPhone.start(
        home=folder / f"jvm-{number}",
        invite=fleet.invite(population),
        crops=crops_file(folder, f"crops-{number}", made_up_crops(1 if number == 2 else 4, seed=90 + number)),
        graphs=folder_for(fleet.folder / "graphs", TINY.layout),
        sent=folder / f"sent-{number}",
        min_cohort=3,
        reveals="class_moment",
        **guest,
    )


def test_the_total_over_phones_of_both_languages_is_the_plain_sum(fleet: RealFleet, tmp_path: Path) -> None:
    """Three of each kind, one Python phone for each engine, and two people on one of each: eight people in all."""
    spec = replace(task("both", "centre"), cohort=CohortSpec(size=6, min_reports=6))
    task_id = fleet.submit(spec)
    jvm = [jvm_phone(fleet, tmp_path, "both", number) for number in range(3)]
    python = [Phone(fleet, "both", number, **AGREED) for number in range(3)]
    with ThreadPoolExecutor(len(python)) as pool:
        running = [pool.submit(phone.run) for phone in python]
        told = [phone.end(limit_s=PATIENCE_S) for phone in jvm]
        outcomes = [each.result(PATIENCE_S) for each in running]
    (report,) = fleet.outcome(task_id, limit_s=PATIENCE_S)
    assert [outcome[0].num_reports for outcome in outcomes] == [6] * 3
    for lines in told:
        assert (lines[-1]["kind"], lines[-1]["model_id"], lines[-1]["num_reports"]) == ("COUNTED", report.model_id, "6")
        words = [line["word"] for line in lines if line["event"] == "progress"]
        assert "summed" in words
        assert "trained" not in words

    total = plain_sum(spec, python)
    for number in range(3):
        total = total.plus(total.layout.parse((tmp_path / f"sent-{number}").read_bytes()))
    people, pairs, _ = total[COUNTS] * 2
    assert (people, pairs) == (8.0, 7.0)
    assert report.metrics["people_in_total"] == people
    # Each phone's element is rounded by at most a step, so the sum's by six.
    step = 2.0 ** -plan_numbers(6, l2_clip=PRIVACY.l2_clip, max_weight=1).frac_bits
    mean = -fleet.theta(report.model_id)[-DIM:].astype(np.float64) / LONGEST * people / 2
    np.testing.assert_allclose(mean, total[MEAN], atol=6 * step + 1e-7)
    assert np.abs(total[MEAN]).max() > 1e3 * step


def test_the_map_of_phones_of_the_jvm_is_that_of_their_plain_sum(fleet: RealFleet, tmp_path: Path) -> None:
    """Second moments and scatter are in it, beside the means."""
    spec = task("alone", "plda")
    task_id = fleet.submit(spec)
    told = [phone.end(limit_s=PATIENCE_S) for phone in [jvm_phone(fleet, tmp_path, "alone", i) for i in range(3)]]
    (report,) = fleet.outcome(task_id, limit_s=PATIENCE_S)
    assert [lines[-1]["kind"] for lines in told] == ["COUNTED"] * 3
    total = plain_sum(spec, [])
    for number in range(3):
        total = total.plus(total.layout.parse((tmp_path / f"sent-{number}").read_bytes()))
    expected = STATISTICS.server_step(spec, PART, STATISTICS.server_start(spec, PART, TINY.theta), total, {}).theta
    found = fleet.theta(report.model_id)
    assert np.abs(found - TINY.theta).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-3)
