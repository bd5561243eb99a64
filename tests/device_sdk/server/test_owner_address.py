"""A phone that is told where its population's tasks are run: it goes there, and comes back when that fails."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk.device import Device
from device_sdk.program.doctor import examine
from device_sdk.server.client import LEFT_ALONE_S, ClientSettings, CoordinatorClient
from device_sdk.server.identity import IdentityFiles
from device_sdk.server.retry import RetryPolicy
from device_sdk.storage.home import Home
from device_sdk.storage.keystore import open_key_store
from mien.errors import DiskFullError, DrainingError, MienError, RateLimitedError, UnreachableError
from mien.protocol.rounds import RoundRef, Stage, Wait
from mien.protocol.v1 import rounds_pb2
from simulation.testing import free_port
from tests.device_sdk.clocks import ShiftedClock
from tests.device_sdk.scripted import Fleet, Script, scripted_coordinator

pytestmark = pytest.mark.usefixtures("patient_glances")

SETTINGS = ClientSettings(connect=RetryPolicy(give_up_s=1.0), retry=RetryPolicy(first_s=0.5, give_up_s=30.0))
REF = RoundRef("task", 2, 1)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return Fleet.create()


def leads_to(script: Script, address: str) -> None:
    """Let a server tell every phone that checks in of an address."""
    wait = rounds_pb2.Wait(retry_after_s=1.5)
    script.check_in = lambda: rounds_pb2.CheckInReply(wait=wait, owner_address=address)


@contextmanager
def told(fleet: Fleet, first: Script, owner: Script) -> Iterator[tuple[CoordinatorClient, str, ExitStack]]:
    """A phone of the first of two servers, which tells it of the other; the stack ends the other one."""
    with scripted_coordinator(fleet, first) as joined_at, ExitStack() as serving:
        address = serving.enter_context(scripted_coordinator(fleet, owner))
        leads_to(first, address)
        with CoordinatorClient(fleet.identity(joined_at), ShiftedClock(), random.Random(0), SETTINGS) as client:
            client.check_in(())
            yield client, joined_at, serving


def test_a_phone_goes_on_at_the_replica_that_runs_its_tasks(fleet: Fleet) -> None:
    first, owner = Script(), Script()
    with told(fleet, first, owner) as (client, _, _):
        client.report_trained(REF)
        client.send_step(REF, Stage.KEYS, b"keys")
        client.upload(REF, b"vector")
    assert first.calls == ["check_in"]
    assert owner.calls == ["hello", "report_trained", "send_step", "upload"]


def test_an_older_server_tells_of_none(fleet: Fleet) -> None:
    first, owner = Script(), Script()
    with told(fleet, first, owner) as (client, _, _):
        where = client.address
        leads_to(owner, "")
        client.check_in(())
        assert client.address == where, "what is not told changes nothing"


def test_a_phone_whose_replica_ends_goes_on_where_it_joined(fleet: Fleet) -> None:
    first, owner = Script(), Script()
    with told(fleet, first, owner) as (client, joined_at, serving):
        serving.close()
        client.report_trained(REF)
        client.upload(REF, b"vector")
        assert client.address == joined_at
    assert first.calls == ["check_in", "report_trained", "upload"]


@pytest.mark.parametrize("stream", ["follow", "upload", "glance", "hello"])
def test_every_kind_of_call_finds_the_way_back(fleet: Fleet, stream: str) -> None:
    first, owner = Script(), Script()
    first.follow = lambda: [rounds_pb2.StageEvent(stage=rounds_pb2.CLOSED)]
    with told(fleet, first, owner) as (client, joined_at, serving):
        serving.close()
        calls = {
            "follow": lambda: list(client.follow(REF)),
            "upload": lambda: client.upload(REF, b"vector"),
            "glance": lambda: client.glance(REF),
            "hello": client.hello,
        }
        try:
            calls[stream]()
        except MienError:
            assert stream == "glance", "all others ask again"
        assert client.address == joined_at


def test_a_replica_that_drains_is_left_and_one_that_is_busy_is_not(fleet: Fleet) -> None:
    first, owner = Script(), Script()
    owner.report_trained = owner.fails_first(1, RateLimitedError("busy", retry_after_s=0.5), Script().report_trained())
    with told(fleet, first, owner) as (client, joined_at, _):
        client.report_trained(REF)
        assert client.address != joined_at
        owner.report_trained = owner.fails_first(1, DrainingError("soon over"), None)
        client.report_trained(REF)
        assert client.address == joined_at


def test_an_address_that_failed_is_left_alone_for_a_while(fleet: Fleet) -> None:
    first, port, clock = Script(), free_port(), ShiftedClock()
    owner = f"127.0.0.1:{port}"
    leads_to(first, owner)
    with (
        scripted_coordinator(fleet, first) as joined_at,
        CoordinatorClient(fleet.identity(joined_at), clock, random.Random(0), SETTINGS) as client,
    ):
        client.check_in(())
        assert client.address == joined_at, "nobody answers there"
        there = Script()
        with scripted_coordinator(fleet, there, port=port):
            client.check_in(())
            assert not there.calls
            clock.sleep(LEFT_ALONE_S)
            client.check_in(())
            assert client.address == owner


def test_a_phone_begins_where_its_tasks_were_run_last(fleet: Fleet) -> None:
    first, owner, noted = Script(), Script(), list[str]()

    def begun(last_address: str) -> CoordinatorClient:
        identity = fleet.identity(joined_at)
        told = {"last_address": last_address, "on_moved": noted.append}
        return CoordinatorClient(identity, ShiftedClock(), random.Random(0), SETTINGS, **told)

    with scripted_coordinator(fleet, first) as joined_at:
        with scripted_coordinator(fleet, owner) as address:
            leads_to(first, address)
            with begun("") as client:
                client.check_in(())
            assert noted == [address]
            with begun(address) as client:
                client.hello()
                client.check_in(())
                assert client.address == address
        with begun(address) as client:
            client.hello()
            assert client.address == joined_at
        assert noted == [address, ""], "it is forgotten once it fails"
        with begun("127.0.0.2:1") as client:
            assert client.address == joined_at
    assert first.calls == ["check_in", "hello"]
    assert owner.calls == ["hello", "hello", "check_in"]


@pytest.mark.parametrize("error", [UnreachableError("the gallery is in use"), DiskFullError("no space left")])
def test_an_address_that_cannot_be_noted_costs_no_assignment_and_no_upload(fleet: Fleet, error: MienError) -> None:
    def full(_address: str) -> None:
        raise error

    first, owner = Script(), Script()
    with scripted_coordinator(fleet, first) as joined_at, scripted_coordinator(fleet, owner) as address:
        leads_to(first, address)
        with CoordinatorClient(
            fleet.identity(joined_at), ShiftedClock(), random.Random(0), SETTINGS, on_moved=full
        ) as client:
            assert client.check_in(()) == Wait(1.5, "", cannot_train=False)
            assert client.address == address
            owner.upload = owner.fails_first(1, DrainingError("soon over"), None)
            client.upload(REF, b"vector")
            assert client.address == joined_at
    assert first.calls == ["check_in", "upload_status", "upload"]


def test_a_device_remembers_it_from_one_connection_to_the_next_and_doctor_says_where_it_is(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "phone")
    files = IdentityFiles(home, open_key_store(home.folder, "file", warn=lambda _message: None))
    fleet = replace(Fleet.create(), key=files.key())
    first, owner = Script(), Script()

    def doctor() -> str:
        with Device.open(home.folder, options={"keystore": "file"}) as device:
            return next(each.detail for each in examine(device, home.folder) if each.name == "coordinator")

    with scripted_coordinator(fleet, first) as joined_at:
        files.save(fleet.identity(joined_at))
        assert f" at {joined_at};" in doctor()
        with scripted_coordinator(fleet, owner) as address:
            leads_to(first, address)
            for _ in range(2):
                with Device.open(home.folder, options={"keystore": "file"}) as device, device.connect() as client:
                    client.check_in(())
                    assert client.address == address
            assert f" at {address};" in doctor()
        assert f" at {joined_at} ({address}, which it named for this phone, does not answer as it);" in doctor()
        assert f" at {joined_at};" in doctor(), "it was forgotten"
    assert first.calls.count("check_in") == 1, "the second time it began at the other one"
    assert owner.calls == ["hello", "hello", "check_in", "hello", "hello"]
