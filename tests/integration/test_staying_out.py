"""A phone on which nobody agrees any more asks to be left out of rounds, and is, until somebody agrees again."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from device_sdk import Device
from mien.errors import AuthError, RevokedError
from mien.protocol.v1 import operator_pb2
from tests.device_sdk.synthetic import STRANGER, images_of
from tests.integration.real_fleet import RealFleet, real_fleet, small_model

pytestmark = pytest.mark.slow

POPULATION = "out"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    with real_fleet(tmp_path_factory.mktemp("out")) as running:
        running.release(small_model())
        yield running


def seen_of(fleet: RealFleet, device_id: str) -> operator_pb2.SeenDevice:
    """Return what the coordinator tells its operator of a device."""

    async def story() -> list[operator_pb2.SeenDevice]:
        async with fleet.coordinator.operator() as operator:
            return [device async for device in operator.seen_devices()]

    (found,) = [device for device in fleet.loop.run(story()) if device.device_id == device_id]
    return found


def test_the_last_withdrawal_is_told_and_kept_until_somebody_agrees_again(fleet: RealFleet) -> None:
    with fleet.phone("phone", POPULATION, "asian_0007") as phone:
        own_id = phone.identity.device_id

        def is_out() -> bool:
            with fleet.coordinator.store() as store:
                return any(each.stays_out_since_ms for each in store.devices() if each.device_id == own_id)

        def why_it_waits() -> str:
            with phone.connect() as client:
                answer = client.check_in(())
            return answer.reason  # type: ignore[union-attr]  (there is no task, so nothing is assigned)

        phone.enroll("Guest", images_of(STRANGER)[:4], consent=True)
        phone.set_consent("Owner", agreed=False)
        assert phone.tell_participation()
        assert not is_out(), "the guest still agrees"
        phone.remove("Guest")
        assert phone.gallery.stays_out is True
        assert phone.tell_participation()
        assert phone.gallery.stays_out is None
        assert is_out()
        assert "asked to be left out" in why_it_waits()
        told = seen_of(fleet, own_id)
        assert told.stays_out_since_unix_ms > 0
        assert (list(told.engines), list(told.backbones), list(told.objectives)) == ([], [], []), "it said nothing"
        with phone.connect() as client:
            client.check_in(("sface",), engines=("onnxruntime",), parts={"a" * 64: ("cosface", "arcface")})
        told = seen_of(fleet, own_id)
        assert (list(told.engines), list(told.backbones)) == (["onnxruntime"], ["sface"])
        assert list(told.objectives) == ["arcface", "cosface"]

        fleet.coordinator.kill()
        phone.set_consent("Owner", agreed=True)
        assert not phone.tell_participation(), "the coordinator is away"
        phone.set_consent("Owner", agreed=False)
        assert phone.gallery.stays_out is None, "it knows already"
        fleet.coordinator.start()
        assert is_out(), "a restart does not forget it"

        phone.set_consent("Owner", agreed=True)
        with phone.connect():
            assert not is_out(), "told at the next connection"
        assert "left out" not in why_it_waits()

        phone.wipe()
        assert is_out(), "whoever wipes the gallery has nobody left who agrees"
        phone.enroll("Stranger", images_of(STRANGER)[:4], consent=False)
        assert phone.tell_participation()
        assert is_out(), "nobody agreed"
        phone.set_consent("Stranger", agreed=True)
        assert phone.gallery.stays_out is False, "a new gallery does not know what an earlier one told"
        with phone.connect():
            assert not is_out(), "somebody agrees again"
        assert phone.gallery.stays_out is None
        assert "left out" not in why_it_waits()
        with fleet.coordinator.store() as store:
            actions = [action for _, actor, action in store.events(own_id) if actor == f"device:{own_id}"]
        assert actions == ["device.stays_out", "device.takes_part"] * 2
        assert phone.status().revoked_unix_s is None
        phone.gallery.note_revoked(1)
        with phone.connect():
            assert phone.status().revoked_unix_s is None, "it is admitted"


def test_a_revoked_phone_is_wiped_and_forgets_people_all_the_same(fleet: RealFleet) -> None:
    with fleet.phone("revoked", POPULATION, "asian_0007") as phone:
        phone.enroll("Guest", images_of(STRANGER)[:4], consent=True)
        fleet.revoke(phone.identity.device_id)
        end = time.monotonic() + 60
        while not was_refused(phone):
            assert time.monotonic() < end, "the coordinator did not hear of the revocation"
            time.sleep(0.2)
        refused_unix_s = phone.status().revoked_unix_s
        assert refused_unix_s is not None, "who looks need not ask"
        with pytest.raises(RevokedError, match="ask the operator for a new invite, join with it in a new home"):
            phone.update()
        phone.remove("Guest")
        phone.set_consent("Owner", agreed=False)
        assert not phone.tell_participation()
        phone.wipe()
        assert not phone.home.gallery.exists()
        assert not (phone.home.folder / "keys" / "gallery.key").exists()
        assert phone.people() == ()


def was_refused(phone: Device) -> bool:
    try:
        with phone.connect():
            return False
    except AuthError:
        return True


def test_a_phone_that_cannot_reach_the_coordinator_says_so_and_loses_nothing(fleet: RealFleet) -> None:
    with fleet.phone("offline", POPULATION, "asian_0007") as phone:
        fleet.coordinator.kill()
        phone.set_consent("Owner", agreed=False)
        phone.wipe()
        assert phone.people() == ()
        fleet.coordinator.start()
