"""A phone without torch that tasks pass over, because a newer release brought graphs that it does not have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from coordinator.release.signing import sign_folder
from device_sdk.device import Device
from device_sdk.models.abilities import LOOK_EVERY_S, UNSAID, Abilities, GraphLook
from device_sdk.rounds.events import Event, Transfer
from device_sdk.server.identity import IdentityFiles
from device_sdk.storage.home import Home
from device_sdk.storage.keystore import open_key_store
from mien.models import bundles
from mien.protocol.rounds import Wait
from mien.protocol.v1 import common_pb2, models_pb2, rounds_pb2
from tests.device_sdk.clocks import HandClock, ShiftedClock
from tests.device_sdk.made_up_people import noise_crops
from tests.device_sdk.models.test_release_graphs import TINY, bundle
from tests.device_sdk.models.test_variant_switch import KEY, PLAIN, Shop, opened
from tests.device_sdk.scripted import Fleet, Script, scripted_coordinator

pytestmark = pytest.mark.numerics

__all__ = ["bundle"]

HERE = Abilities(("tiny",), ("onnxruntime",), {"a" * 64: ("softmax",)})
NONE = Abilities((), ("onnxruntime",))
WANTED, PASSED_OVER = Wait(1.0, "nothing"), Wait(1.0, "no graphs", cannot_train=True)


@dataclass
class Looks:
    """A phone's looks for graphs, of which the second brings some."""

    now: Abilities
    clock: HandClock = field(default_factory=HandClock)
    number: int = 0

    def update(self) -> None:
        self.number += 1
        if self.number == 2:
            self.now = HERE

    def of(self) -> GraphLook:
        return GraphLook(self.clock, lambda: self.now, self.update)


@pytest.mark.parametrize(("abilities", "wait"), [(NONE, WANTED), (NONE, PASSED_OVER), (HERE, PASSED_OVER)])
def test_a_phone_that_is_passed_over_looks_at_once_and_then_every_few_hours(abilities: Abilities, wait: Wait) -> None:
    looks = Looks(abilities)
    look = looks.of()
    assert [look.on_wait(wait) for _ in range(3)] == [False] * 3
    looks.clock.advance(LOOK_EVERY_S - 1)
    assert not look.on_wait(wait)
    assert looks.number == 1
    looks.clock.advance(1)
    assert look.on_wait(wait) is (abilities == NONE), "graphs came: what the phone says next is not what it said"
    assert looks.number == 2


@pytest.mark.parametrize(
    ("abilities", "wait"),
    [(HERE, WANTED), (UNSAID, PASSED_OVER), (Abilities(("tiny",), ("torch",)), PASSED_OVER)],
)
def test_a_phone_that_lacks_no_graphs_does_not_look(abilities: Abilities, wait: Wait) -> None:
    looks = Looks(abilities)
    assert not looks.of().on_wait(wait)
    assert looks.number == 0


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A phone with an enrolled person and no graphs, whose coordinator has no work for it."""
    shop = Shop(tmp_path / "phone", Script())
    home = Home.open(shop.home)
    files = IdentityFiles(home, open_key_store(home.folder, "file", warn=lambda _message: None))
    fleet = replace(Fleet.create(), key=files.key())
    shop.offer(PLAIN)
    with scripted_coordinator(fleet, shop.script) as address:
        files.save(fleet.identity(address, release_key=bundles.name_of(KEY)))
        with opened(shop.home) as phone:
            recogniser, crops = phone.recogniser(), noise_crops(1)
            phone.gallery.enroll("Ada", crops, recogniser.template(recogniser.embed(crops)), now_unix_s=0, consent=True)
        yield shop


def test_it_fetches_the_release_by_itself_and_says_at_once_what_it_can_train_now(shop: Shop, bundle: Path) -> None:
    sign_folder(bundle, KEY, sequence=9)
    signed = bundles.verify(
        bundles.name_of(KEY), (bundle / bundles.MANIFEST).read_bytes(), (bundle / bundles.SIGNATURE).read_bytes()
    )
    theta = signed.file(bundles.THETA)
    assert theta is not None
    released = models_pb2.ModelManifest(
        model_id=signed.model_id,
        spec_json=(bundle / bundles.MODEL).read_bytes(),
        theta=common_pb2.BlobRef(sha256=theta.sha256, size_bytes=theta.size_bytes),
        released=True,
        bundle_manifest=(bundle / bundles.MANIFEST).read_bytes(),
        bundle_signature=(bundle / bundles.SIGNATURE).read_bytes(),
    )
    shop.script.manifest = lambda: released
    shop.script.blobs = {hashlib.sha256(data).hexdigest(): data for data in map(Path.read_bytes, bundle.iterdir())}
    shop.script.check_in = lambda: rounds_pb2.CheckInReply(
        wait=rounds_pb2.Wait(retry_after_s=600.0, reason="no graphs", cannot_train=True)
    )
    shop.script.calls.clear()
    clock, told = ShiftedClock(), list[Event | Transfer]()
    options = {"keystore": "file", "runtime": "onnxruntime", "participation.allow_plain_sums": True}
    with Device.open(shop.home, options=options, clock=clock, tell=told.append) as phone:
        assert phone._abilities() == NONE
        assert list(phone.participate(idle_s=7 * 3600.0)) == []
        assert phone.gallery.model_id == signed.model_id
        assert TINY.part().sha256 in phone._abilities().parts
    check_ins = [n for n, name in enumerate(shop.script.calls) if name == "check_in"]
    manifests = [n for n, name in enumerate(shop.script.calls) if name == "manifest"]
    assert check_ins[0] < manifests[0] < check_ins[1], "it looks at the first wait"
    assert len(manifests) == 2, "and again six hours later"
    assert len(check_ins) == len(clock.pauses) + 2, "one check-in followed the graphs at once, the last ended the run"
