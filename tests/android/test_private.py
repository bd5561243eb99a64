"""Rounds of phones of the JVM alone: under differential privacy, with several people, and when one withdraws."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from device_sdk.models.models import Model
from mien.layout import model_id
from mien.specs import CohortSpec, DeadlineSpec, DpSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.android.jvm import JvmDevice
from tests.android.story import TINY, Story, crops_file, signed_story, three_phones
from tests.tiny import made_up_crops

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MODEL: Final = Model(model_id(TINY.layout.sha256, TINY.theta), TINY.spec, TINY.layout, TINY.theta, None)
LONG: Final = DeadlineSpec(120.0, 120.0, *(120.0,) * 5)
SKELLAM: Final = DpSpec("skellam", 2.0, 100.0, 1e-5, max_participations=1, dishonest_share=0.0)
CENTRAL: Final = DpSpec("central_gaussian", 2.0, 100.0, 1e-5, max_participations=1, target_quantile=0.5)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with signed_story(tmp_path_factory.mktemp("private")) as running:
        running.release(MODEL)
        yield running


@pytest.fixture(scope="module")
def phones(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[JvmDevice]]:
    """Three phones; on the first one two people agreed to training."""
    with three_phones(story, "private", tmp_path_factory.mktemp("phones")) as running:
        yield running


def private(dp: DpSpec) -> PrivacySpec:
    """Return a promise; a population that was given one is never asked for a sum without noise."""
    return PrivacySpec(min_cohort=3, max_weight=1, l2_clip=0.01, coordinate_clip=0.01, dp=dp)


def private_task(name: str, **changes: Any) -> TaskSpec:
    """Return a task of one round for three phones, with nothing in it that depends on how fast they are."""
    values = {
        "method": "fedavg",
        "rounds": 1,
        "population": "private",
        "trainable": TINY.spec.trainable,
        "cohort": CohortSpec(size=3, min_reports=3),
        "deadlines": LONG,
        "local": LocalSpec(lr=0.05),
        "options": {"margin": 1.0},
        "privacy": private(SKELLAM),
    }
    return TaskSpec(name, **{**values, **changes})


def take_part(phone: JvmDevice) -> dict[str, Any]:
    """Have a phone look for work until there was some, and return how that ended.

    All rounds here are over one model, and promise too little to count as noise: their owners let them into each.
    """
    while (outcome := phone.do("participate", min_cohort=3, max_sums_per_model=9, unmet=[]))["kind"] == "WAIT":
        pass
    return outcome


def round_of(story: Story, phones: list[JvmDevice], task: TaskSpec) -> tuple[list[dict[str, Any]], Any]:
    """Return what became of a task's one round on each phone, and the coordinator's report."""
    task_id = story.fleet.submit(task)
    with ThreadPoolExecutor(len(phones)) as pool:
        outcomes = list(pool.map(take_part, phones))
    (report,) = story.fleet.outcome(task_id, limit_s=300.0)
    return outcomes, report


def test_a_phone_says_beforehand_what_it_does_not_do(story: Story, phones: list[JvmDevice]) -> None:
    outcome = phones[0].do("participate", min_cohort=3, unmet=["charging", "idle"])
    assert (outcome["kind"], outcome["reason"]) == ("NOT_NOW", "charging, idle")
    newest = phones[0].do("status")["journal"][0]
    assert (newest["kind"], newest["reason"]) == ("NOT_NOW", "charging, idle")


def test_two_people_of_one_phone_train_and_one_who_withdraws_takes_their_part_along(
    story: Story, phones: list[JvmDevice], tmp_path: Path
) -> None:
    file = crops_file(tmp_path, "guest", made_up_crops(3, seed=9))
    guest = phones[0].do("enrol", name="Guest", crops=file, agrees=True)["person"]
    task = private_task("several", method="fedprox", options={"margin": 1.0, "mu": 0.1})
    outcomes, report = round_of(story, phones, task)
    assert [outcome["kind"] for outcome in outcomes] == ["COUNTED"] * 3
    assert report.num_reports == 3
    home = phones[0].home / "gallery"
    states = {path.name.split("-")[1] for path in home.glob("state-*")}
    assert states == {"0", "1", str(guest)}, "what is of each, and of both"
    phones[0].do("consent", person=guest, agrees=False)
    assert {path.name.split("-")[1] for path in home.glob("state-*")} == {"1"}
    phones[0].do("remove", person=guest)
    status = phones[0].do("status")
    assert [person["name"] for person in status["people"]] == ["Owner"]
    assert not status["stays_out"], "the owner still agrees"
    assert status["sent_bytes"] > 0


@pytest.mark.parametrize("dp", [SKELLAM, CENTRAL], ids=["skellam", "central"])
def test_a_round_under_differential_privacy(story: Story, phones: list[JvmDevice], dp: DpSpec) -> None:
    before = [phone.do("status")["num_private_sums"] for phone in phones]
    privacy = private(dp)
    outcomes, report = round_of(story, phones, private_task(f"noisy-{dp.mechanism}", privacy=privacy))
    assert [outcome["kind"] for outcome in outcomes] == ["COUNTED"] * 3
    assert report.num_reports == 3
    assert [phone.do("status")["num_private_sums"] for phone in phones] == [sums + 1 for sums in before]
    moved = TINY.part().gather(story.fleet.theta(report.model_id)) - TINY.part().gather(TINY.theta)
    assert np.isfinite(moved).all()
    # Clipped updates add up to three clips at most; what is beyond that in the mean's norm is noise.
    noise = dp.noise_multiplier * privacy.l2_clip * np.sqrt(len(moved)) / 3
    assert len(moved) > 40
    assert noise / 4 < np.linalg.norm(moved) < 4 * noise + privacy.l2_clip


def test_phones_say_that_their_pictures_are_used_up_and_are_not_chosen(story: Story, phones: list[JvmDevice]) -> None:
    """A second task over the model goes on without them, which a program of before would have left at once."""
    round_of(story, phones, private_task("first"))
    task_id = story.fleet.submit(private_task("second"))
    full = phones[1:]
    for phone in full:
        most = phone.do("status")["num_private_sums"]
        told = phone.do("participate", min_cohort=3, max_sums_per_model=most, unmet=[])
        assert (told["kind"], "in as many sums as its owner lets them" in told["reason"]) == ("WAIT", True), told

    async def stop() -> int:
        async with story.fleet.coordinator.operator() as operator:
            (task,) = [each for each in await operator.tasks() if each.task_id == task_id]
            await operator.cancel(task_id)
            return task.num_used_up

    assert story.fleet.loop.run(stop()) == len(full)
