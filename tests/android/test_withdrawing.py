"""Phones of the JVM whose people or conditions change in the midst of a round, with a real coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from device_sdk.models.models import Model
from mien.layout import model_id
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.android.jvm import JvmDevice
from tests.android.story import TINY, Story, crops_file, enrolled, signed_story, three_phones, until
from tests.tiny import made_up_crops

pytestmark = pytest.mark.slow

MODEL: Final = Model(model_id(TINY.layout.sha256, TINY.theta), TINY.spec, TINY.layout, TINY.theta, None)
POPULATION: Final = "withdrawing"
LONG: Final = DeadlineSpec(120.0, 120.0, *(120.0,) * 5)
Command = dict[str, Any]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with signed_story(tmp_path_factory.mktemp("withdrawing")) as running:
        running.release(MODEL)
        yield running


@pytest.fixture(scope="module")
def others(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[JvmDevice]]:
    """Three phones on which nothing changes."""
    with three_phones(story, POPULATION, tmp_path_factory.mktemp("others")) as running:
        yield running


def take_part(phone: JvmDevice, **meanwhile: Any) -> dict[str, Any]:
    """Have a phone look for work until there was some, and return how that ended; all rounds are over one model."""
    told = {"min_cohort": 3, "max_sums_per_model": 99, "unmet": [], **meanwhile}
    while (outcome := phone.do("participate", **told))["kind"] == "WAIT":
        pass
    return outcome


def round_for_four(story: Story, name: str) -> str:
    """Submit a task of one round for four phones, three of which are enough; returns its id."""
    task = TaskSpec(
        name,
        method="fedavg",
        rounds=1,
        population=POPULATION,
        cohort=CohortSpec(size=4, min_reports=3),
        deadlines=LONG,
        local=LocalSpec(lr=0.05),
        options={"margin": 1.0},
        privacy=PrivacySpec(min_cohort=3),
    )
    return story.fleet.submit(task)


def replaced(crops: str) -> list[Command]:
    return [{"do": "remove", "person": 1}, {"do": "enrol", "name": "Other", "crops": crops, "agrees": True}]


def agreed_again(_: str) -> list[Command]:
    return [{"do": "consent", "person": 1, "agrees": agrees} for agrees in (False, True)]


def withdrawn(_: str) -> list[Command]:
    return [{"do": "consent", "person": 1, "agrees": False}]


def num_sent(story: Story, task_id: str) -> int:
    """Return how many phones' updates came in the first attempt, once the task is over, by order if need be."""

    async def cancel() -> None:
        async with story.fleet.coordinator.operator() as operator:
            await operator.cancel(task_id)

    story.fleet.loop.run(cancel())
    return story.fleet.outcome(task_id, limit_s=300.0)[0].num_reports


@pytest.mark.parametrize(
    ("at", "then"),
    [("training", replaced), ("training", agreed_again), ("reported", withdrawn), ("upload", withdrawn)],
    ids=["replaced-in-training", "agreed-again-in-training", "withdrawn-when-reported", "withdrawn-at-upload"],
)
def test_nothing_is_sent_of_an_agreement_that_ended(
    story: Story, others: list[JvmDevice], tmp_path: Path, at: str, then: Any, request: pytest.FixtureRequest
) -> None:
    crops = crops_file(tmp_path, "crops", made_up_crops(4, seed=50))
    with JvmDevice(tmp_path / "home") as phone, ThreadPoolExecutor(len(others)) as pool:
        enrolled(phone, story, POPULATION, crops)
        task_id = round_for_four(story, request.node.callspec.id)
        told = [pool.submit(take_part, other) for other in others]
        outcome = take_part(phone, at=at, then=then(crops))
        assert (outcome["kind"], outcome["code"]) == ("FAILED", "config"), outcome
        assert outcome["words"][-1] == at, "nothing was done after it"
        # Once shares are out, three hold too few of one another's to open a sum without the fourth.
        assert {each.result()["kind"] for each in told} == {"NOT_COUNTED" if at == "upload" else "COUNTED"}
        assert num_sent(story, task_id) == len(others)
        status = phone.do("status")
        assert status["pending"] == ""
        assert not list((phone.home / "gallery").glob("state-*")), "what it trained is kept for nobody"
        assert [person["id"] for person in status["people"]] == [2 if then is replaced else 1]


def counted(story: Story, task_id: str) -> list[int]:
    """Return how many phones' updates are in each model that a task made, once it is over."""
    reports = story.fleet.outcome(task_id, limit_s=300.0)
    return [report.num_reports for report in reports if report.model_id]


@pytest.mark.parametrize("at", ["training", "trained", "reported", "keys", "shares", "upload"])
def test_a_phone_that_is_stopped_goes_on_when_it_may_and_counts_once_at_most(
    story: Story, others: list[JvmDevice], tmp_path: Path, at: str
) -> None:
    """What was trained is sent later; a training that was cut short, and keys that lived in memory, are over."""
    crops = crops_file(tmp_path, "crops", made_up_crops(4, seed=51))
    with JvmDevice(tmp_path / "home") as phone, ThreadPoolExecutor(len(others)) as pool:
        enrolled(phone, story, POPULATION, crops)
        task_id = round_for_four(story, f"stopped-{at}")
        told = [pool.submit(take_part, other) for other in others]
        outcome = take_part(phone, at=at, unmet_then=["unmetered"])
        assert outcome["words"][-1] == at, "nothing was said after it"
        if at in ("trained", "reported"):
            assert (outcome["kind"], outcome["reason"]) == ("NOT_NOW", "unmetered")
            assert phone.do("status")["pending"] == "round 1"
            again = take_part(phone)
            assert again["words"][0] == "resumed"
        else:
            assert (outcome["kind"], outcome["code"]) == ("NOT_COUNTED", "late")
            assert phone.do("status")["pending"] == ""
        # Of four none may be lost once keys are out: the round is tried again, and it takes part.
        if at in ("keys", "shares", "upload"):
            assert {each.result()["kind"] for each in told} == {"NOT_COUNTED"}
            told = [pool.submit(take_part, other) for other in others]
            again = take_part(phone)
        assert {each.result()["kind"] for each in told} == {"COUNTED"}
        if at != "training":
            assert (again["kind"], again["num_reports"]) == ("COUNTED", 4)
        assert counted(story, task_id) == [3 if at == "training" else 4]
        assert phone.do("participate", min_cohort=3, max_sums_per_model=99, unmet=[])["kind"] == "WAIT"


@pytest.mark.parametrize("at", ["keys", "shares", "upload", "uploaded", "consistency"])
def test_keys_out_of_reach_in_the_midst_of_a_sum_keep_its_keys_and_it_goes_on(
    story: Story, others: list[JvmDevice], tmp_path: Path, at: str
) -> None:
    """A phone that is locked, say: nothing is lost for it, nor for those who share keys with it."""
    crops = crops_file(tmp_path, "crops", made_up_crops(4, seed=52))
    with JvmDevice(tmp_path / "home") as phone, ThreadPoolExecutor(len(others)) as pool:
        enrolled(phone, story, POPULATION, crops)
        task_id = round_for_four(story, f"locked-{at}")
        told = [pool.submit(take_part, other) for other in others]
        outcome = ended(phone, at, {"do": "lock", "away": True})
        assert outcome["error"] == "key_store", outcome
        assert phone.refused("participate", min_cohort=3, max_sums_per_model=99, unmet=[])[0] == "key_store"
        phone.do("lock", away=False)
        assert phone.do("status")["pending"] == "round 1"
        again = take_part(phone)
        assert (again["words"][0], again["kind"], again["num_reports"]) == ("resumed", "COUNTED", 4), again
        assert {each.result()["kind"] for each in told} == {"COUNTED"}
        assert counted(story, task_id) == [4]


def test_a_coordinator_out_of_reach_in_the_midst_of_a_sum_finds_its_keys_kept(
    story: Story, others: list[JvmDevice], tmp_path: Path
) -> None:
    """It is gone for longer than the phone asks again, and back before the stage ends."""
    crops, go = crops_file(tmp_path, "crops", made_up_crops(4, seed=54)), tmp_path / "go"
    with JvmDevice(tmp_path / "home") as phone, ThreadPoolExecutor(len(others) + 1) as pool:
        enrolled(phone, story, POPULATION, crops)
        phone.do("clock", ahead_ms=0, hurried=True)
        task_id = round_for_four(story, "away")
        told = [pool.submit(take_part, other) for other in others]
        ending = pool.submit(ended, phone, "keys", {"do": "hold", "until": str(go)})
        until(lambda: any((phone.home / "sums").glob("begun-*")), "the phone began no sum")
        story.fleet.coordinator.kill()
        go.touch()
        assert ending.result()["error"] == "unreachable"
        story.fleet.coordinator.start()
        phone.do("clock", ahead_ms=0)
        again = take_part(phone)
        assert (again["words"][0], again["kind"], again["num_reports"]) == ("resumed", "COUNTED", 4), again
        assert {each.result()["kind"] for each in told} == {"COUNTED"}
        assert counted(story, task_id) == [4]


def ended(phone: JvmDevice, at: str, then: Command) -> dict[str, Any]:
    """Have a phone take part, and something happen at one word of progress; returns how that ended, or its error."""
    told = {"min_cohort": 3, "max_sums_per_model": 99, "unmet": [], "at": at, "then": [then]}
    while (outcome := phone.answer("participate", **told)).get("kind") == "WAIT":
        pass
    return outcome


def test_an_app_that_fails_after_a_round_takes_it_out_of_no_journal(
    story: Story, others: list[JvmDevice], tmp_path: Path
) -> None:
    """The round is settled: what an app does when the next model is left to another time does not undo that."""
    crops = crops_file(tmp_path, "crops", made_up_crops(4, seed=53))
    with JvmDevice(tmp_path / "home") as phone, ThreadPoolExecutor(len(others)) as pool:
        enrolled(phone, story, POPULATION, crops)
        task_id = round_for_four(story, "failing-app")
        told = [pool.submit(take_part, other) for other in others]
        story.tamper("UPDATE releases SET model_id = ?", "0" * 64)
        try:
            outcome = take_part(phone, at="update_postponed", then=[{"do": "fail"}])
        finally:
            story.tamper("UPDATE releases SET model_id = ?", MODEL.model_id)
        assert outcome["kind"] == "COUNTED", outcome
        assert outcome["words"][-1] == "update_postponed"
        assert [entry["kind"] for entry in phone.do("status")["journal"]][:2] == ["COUNTED", "FAILED"]
        assert {each.result()["kind"] for each in told} == {"COUNTED"}
        assert counted(story, task_id) == [4]
