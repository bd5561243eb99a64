"""A further witness, run by somebody else: phones that were told of it train on nothing that it has not cosigned.

Coordinator and registrar together could show two histories; with a witness that neither runs, they cannot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from coordinator.home.home import CoordinatorHome
from coordinator.keys.note_keys import log_signer
from coordinator.registrar.home import RegistrarHome
from coordinator.registrar.public_witness import WitnessHome
from device_sdk.device import Device
from device_sdk.rounds.events import Event, Listener, Transfer
from device_sdk.rounds.participate import Counted
from mien.errors import UnreachableError
from mien.log.checkpoints import Note, NoteKey
from mien.specs import CohortSpec, DeadlineSpec, LocalSpec, PrivacySpec, TaskSpec
from simulation.testing import free_port
from tests.coordinator.registrar.test_public_witness import witness_process
from tests.integration.real_fleet import IDENTITIES, RealFleet, real_fleet, small_model

pytestmark = pytest.mark.slow


@dataclass
class Site:
    """Both servers, whose further witness is not running yet, and what phones told: the kinds of their events."""

    fleet: RealFleet
    witness: Path
    listen: str
    key: NoteKey
    told: dict[int, list[str]] = field(default_factory=dict)
    both_wait: threading.Event = field(default_factory=threading.Event)

    def listener(self, number: int) -> Listener:
        kinds = self.told[number] = []

        def tell(event: Event | Transfer) -> None:
            if isinstance(event, Event):
                kinds.append("unwitnessed" if "further witnesses" in event.text else event.kind)
            if all("unwitnessed" in each for each in self.told.values()):
                self.both_wait.set()

        return tell


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder, listen = tmp_path / "witness", f"127.0.0.1:{free_port()}"
    keys: list[NoteKey] = []

    def prepare(coordinator: CoordinatorHome, registrar: RegistrarHome) -> None:
        """The log's key goes to the witness, the witness's to registrar and coordinator."""
        home = WitnessHome(folder)
        keys.append(home.make())
        home.add([log_signer(coordinator.authority()).key])
        config = coordinator.resolve().config
        config = replace(config, witnesses=(f"{keys[0]} http://{listen}",))
        coordinator.settings.write(coordinator.config_path, config)
        told = replace(registrar.resolve().config, witnesses=(str(keys[0]),))
        registrar.settings.write(registrar.config_path, told)

    with real_fleet(tmp_path, prepare=prepare) as fleet:
        fleet.release(small_model())
        yield Site(fleet, folder, listen, keys[0])


def until_taken(phone: Device) -> None:
    """Update a phone, again and again: a witness that was silent is asked at pauses."""
    end = time.monotonic() + 240
    while True:
        try:
            phone.update()
        except UnreachableError:
            assert time.monotonic() < end
            time.sleep(0.2)
        else:
            return


def test_phones_wait_for_a_further_witness_and_train_on_what_it_cosigned(site: Site) -> None:
    # 0. Without the witness a phone does not take a release over either.
    with site.fleet.open("early") as early:
        early.join(site.fleet.invite("witnessed"))
        with pytest.raises(UnreachableError, match=r"1 of the 1 further witnesses .* with this release"):
            early.update()
    with witness_process(site.witness, site.listen):
        with site.fleet.open("early") as early:
            until_taken(early)
        phones = [site.fleet.phone(f"phone{n}", "witnessed", IDENTITIES[n], tell=site.listener(n)) for n in range(2)]
    before = [phone.log_files.last() for phone in phones]
    assert {str(phone.identity.quorum.keys[0]) for phone in phones} == {str(site.key)}
    task = TaskSpec(
        "witnessed",
        method="fedavg",
        rounds=1,
        population="witnessed",
        cohort=CohortSpec(size=2, min_reports=2),
        deadlines=DeadlineSpec(*(200.0,) * 7),
        local=LocalSpec(lr=0.05, flip=False),
        options={"margin": 1.0},
        privacy=PrivacySpec(min_cohort=2, secure_aggregation="off"),
    )
    site.fleet.submit(task)
    with ThreadPoolExecutor(2) as pool:
        outcomes = [pool.submit(lambda phone: list(phone.participate(rounds=1)), phone) for phone in phones]
        # 1. The witness is away: the registrar alone has cosigned, and no phone trains.
        assert site.both_wait.wait(240)
        assert [phone.log_files.last() for phone in phones] == before
        # 2. It is there: the round goes on.
        with witness_process(site.witness, site.listen):
            assert [type(outcome) for each in outcomes for outcome in each.result(240)] == [Counted] * 2
    for kinds in site.told.values():
        assert kinds.index("unwitnessed") < kinds.index("training")
    for phone in phones:
        last = phone.log_files.last()
        assert last is not None
        assert Note.parse(last.note).check(site.key) > 0
        assert phone.log_files.evidence() == []
        phone.close()
