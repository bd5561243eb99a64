"""Phones of the JVM that are stopped, or lose power, once their vector is in the sum, with a real coordinator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from device_sdk.models.models import Model
from mien.layout import model_id
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from tests.android.jvm import JvmDevice
from tests.android.story import TINY, Story, crops_file, enrolled, signed_story, three_phones
from tests.tiny import made_up_crops

pytestmark = pytest.mark.slow

MODEL: Final = Model(model_id(TINY.layout.sha256, TINY.theta), TINY.spec, TINY.layout, TINY.theta, None)
POPULATION: Final = "after-upload"
NUM_PHONES: Final = 6  # of so many, four uncover a sum
AGREED: Final = {"min_cohort": NUM_PHONES, "max_sums_per_model": 99, "unmet": []}
# Nobody who waited for a stage to end by itself would be done while the test still runs.
LONG: Final = DeadlineSpec(600.0, 600.0, *(3600.0,) * 5)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with signed_story(tmp_path_factory.mktemp("after-upload")) as running:
        running.release(MODEL)
        yield running


@pytest.fixture(scope="module")
def others(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[JvmDevice]]:
    """Five phones that see every round through."""
    folder = tmp_path_factory.mktemp("others")
    with (
        three_phones(story, POPULATION, folder) as three,
        JvmDevice(folder / "home-3") as fourth,
        JvmDevice(folder / "home-4") as fifth,
    ):
        for number, phone in enumerate((fourth, fifth), start=3):
            enrolled(phone, story, POPULATION, crops_file(folder, f"owner-{number}", made_up_crops(4, seed=number)))
        yield [*three, fourth, fifth]


def take_part(phone: JvmDevice, **told: Any) -> dict[str, Any]:
    """Have a phone look for work until there was some, and return how that ended."""
    while (outcome := phone.do("participate", **told, **AGREED))["kind"] == "WAIT":
        pass
    return outcome


@contextlib.contextmanager
def round_of_six(story: Story, others: list[JvmDevice], name: str) -> Iterator[list[Future[dict[str, Any]]]]:
    """Submit a task of one round, in which the others begin to take part; they end where the test fails."""
    story.fleet.submit(
        TaskSpec(
            name,
            method="fedavg",
            rounds=1,
            population=POPULATION,
            cohort=CohortSpec(size=NUM_PHONES, min_reports=NUM_PHONES),
            deadlines=LONG,
            local=LocalSpec(lr=0.05),
            options={"margin": 1.0},
            privacy=PrivacySpec(min_cohort=NUM_PHONES),
        )
    )
    with ThreadPoolExecutor(len(others)) as pool:
        try:
            yield [pool.submit(take_part, other) for other in others]
        except BaseException:
            for other in others:
                other.kill()
            raise


def counted(outcome: dict[str, Any]) -> bool:
    return (outcome["kind"], outcome["num_reports"]) == ("COUNTED", NUM_PHONES)


@pytest.mark.parametrize("at", ["uploaded", "consistency", "unmask"])
def test_a_phone_that_is_stopped_counts_and_keeps_nobody_waiting(
    story: Story, others: list[JvmDevice], tmp_path: Path, at: str
) -> None:
    """The others end without its help, before it is asked again; then it hears that it counted."""
    with JvmDevice(tmp_path / "home") as phone:
        enrolled(phone, story, POPULATION, crops_file(tmp_path, "crops", made_up_crops(4, seed=60)))
        with round_of_six(story, others, f"stopped-{at}") as told:
            while (outcome := phone.do("participate", at=at, unmet_then=["unmetered"], **AGREED))["kind"] == "WAIT":
                pass
            assert all(counted(each.result()) for each in told)
            if at != "unmask":
                assert outcome["words"][-1] == at, "nothing was said after it"
            if at != "unmask" or not counted(outcome):  # the round may close before it looks whether it may go on
                assert (outcome["kind"], outcome["reason"]) == ("NOT_NOW", "unmetered")
                assert phone.do("status")["pending"] == "round 1"
                again = take_part(phone)
                assert again["words"] == ["resumed"]
                assert counted(again)
            status = phone.do("status")
            assert (status["pending"], status["num_private_sums"]) == ("", 1)


@pytest.mark.parametrize("at", ["kept", "reported", "uploaded", "consistency"])
def test_a_phone_that_is_cancelled_goes_on_later(
    story: Story, others: list[JvmDevice], tmp_path: Path, at: str
) -> None:
    """Its thread is interrupted while the network is there: that is said as what it is, and nothing is lost."""
    with JvmDevice(tmp_path / "home") as phone:
        enrolled(phone, story, POPULATION, crops_file(tmp_path, "crops", made_up_crops(4, seed=62)))
        with round_of_six(story, others, f"cancelled-{at}") as told:
            while (outcome := phone.do("participate", at=at, then=[{"do": "cancel"}], **AGREED))["kind"] == "WAIT":
                pass
            assert (outcome["kind"], outcome["reason"]) == ("NOT_NOW", "cancelled")
            assert phone.do("status")["pending"] == "round 1"
            if at not in ("kept", "reported"):
                assert all(counted(each.result()) for each in told), "it is in the sum, and said that it cannot help"
            again = take_part(phone)
            assert again["words"][0] == "resumed"
            assert counted(again)
            assert all(counted(each.result()) for each in told)
            assert phone.do("status")["num_private_sums"] == 1


def test_a_phone_that_is_cancelled_while_it_waits_for_keys_keeps_nobody_waiting(
    story: Story, others: list[JvmDevice], tmp_path: Path
) -> None:
    """Its keys are gone, and so is the round: the others hear of it at once, and not by a stage's deadline."""
    go = tmp_path / "go"
    with JvmDevice(tmp_path / "home") as phone, ThreadPoolExecutor(1) as pool:
        enrolled(phone, story, POPULATION, crops_file(tmp_path, "crops", made_up_crops(4, seed=64)))
        with round_of_six(story, others[1:], "cancelled-waiting") as told:
            # One phone keeps its keys back until the other was cancelled, which has sent its own by then.
            held = pool.submit(take_part, others[0], at="keys", then=[{"do": "hold", "until": str(go)}])
            try:
                outcome = take_part(phone, at="keys", then=[{"do": "cancel", "after_ms": 1000}])
            finally:
                go.touch()
            assert outcome["kind"] == "NOT_COUNTED", outcome
            assert phone.do("status")["pending"] == ""
            assert {each.result()["kind"] for each in [*told, held]} == {"NOT_COUNTED"}
        all_count(phone, others)


def all_count(phone: JvmDevice, others: list[JvmDevice]) -> None:
    """Have a round that was aborted tried again, by all six."""
    with ThreadPoolExecutor(len(others)) as pool:
        told = [pool.submit(take_part, other) for other in others]
        assert counted(take_part(phone))
        assert all(counted(each.result()) for each in told)


@pytest.mark.parametrize(
    ("at", "how"), [("disclosure", "fail"), ("trained", "exhaust"), ("keys", "fail"), ("shares", "fail")]
)
def test_an_app_that_fails_keeps_nobody_waiting(
    story: Story, others: list[JvmDevice], tmp_path: Path, at: str, how: str
) -> None:
    """What the app throws while it is told how a round goes is its own error; the round is tried again at once."""
    with JvmDevice(tmp_path / "home") as phone:
        enrolled(phone, story, POPULATION, crops_file(tmp_path, "crops", made_up_crops(4, seed=63)))
        with round_of_six(story, others, f"failing-app-{at}") as told:
            while (answer := phone.answer("participate", at=at, then=[{"do": how}], **AGREED)).get("kind") == "WAIT":
                pass
            assert answer["error"] == "other", answer
            assert {each.result()["kind"] for each in told} == {"NOT_COUNTED"}
            if at in ("keys", "shares"):
                assert take_part(phone)["kind"] == "NOT_COUNTED", "what was made goes with its keys"
        all_count(phone, others)


@pytest.mark.parametrize("at", ["uploaded", "consistency"])
def test_an_app_that_fails_once_its_vector_is_in_counts(
    story: Story, others: list[JvmDevice], tmp_path: Path, at: str
) -> None:
    """It cannot help to uncover the sum, and says so: the others end without it, and it hears that it counted."""
    with JvmDevice(tmp_path / "home") as phone:
        enrolled(phone, story, POPULATION, crops_file(tmp_path, "crops", made_up_crops(4, seed=65)))
        with round_of_six(story, others, f"failing-in-{at}") as told:
            while (answer := phone.answer("participate", at=at, then=[{"do": "fail"}], **AGREED)).get("kind") == "WAIT":
                pass
            assert answer["error"] == "other", answer
            assert all(counted(each.result()) for each in told)
            assert counted(take_part(phone))


@pytest.mark.parametrize("at", ["uploaded", "consistency", "unmask"])
def test_a_phone_whose_power_is_cut_counts_once(story: Story, others: list[JvmDevice], tmp_path: Path, at: str) -> None:
    """Its keys are gone with its memory: it says so, the others end without its help, and it hears that it counted."""
    with contextlib.ExitStack() as stack:
        with JvmDevice(tmp_path / "home") as phone:
            enrolled(phone, story, POPULATION, crops_file(tmp_path, "crops", made_up_crops(4, seed=61)))
            told = stack.enter_context(round_of_six(story, others, f"cut-{at}"))
            phone.ends("participate", at=at, then=[{"do": "halt"}], **AGREED)
        with JvmDevice(tmp_path / "home") as phone:
            assert phone.do("status")["pending"] == "round 1"
            again = take_part(phone)
            assert again["words"] == ["resumed"]
            assert counted(again)
            assert all(counted(each.result()) for each in told)
            status = phone.do("status")
            assert (status["pending"], status["num_private_sums"]) == ("", 1)
