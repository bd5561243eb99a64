"""Hostile callers of a coordinator: nonsense bytes, absurd sizes, out-of-order streams. It refuses, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mien.errors import (
    BY_CODE,
    CorruptDataError,
    LateError,
    MienError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
)
from mien.protocol.status import CODE_KEY
from mien.protocol.v1 import common_pb2, models_pb2, operator_pb2, rounds_pb2
from mien.specs import CohortSpec, MustInclude
from simulation.testing import FakeDevice, FakeFleet, answer, contribution, running_out, tiny_task
from simulation.testing.device import is_lost, streamed
from tests.helpers import raised, run
from tests.integration.test_rounds import in_upload

METHODS = (
    "Rounds/Hello",
    "Rounds/CheckIn",
    "Rounds/ReportTrained",
    "Rounds/GetUploadStatus",
    "Rounds/Upload",
    "Rounds/LeaveRound",
    "Models/GetManifest",
    "Operator/SubmitTask",
    "Operator/ImportModel",
    "Operator/AddThreshold",
)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeFleet]:
    """A running coordinator with the tiny model; held check-ins are short."""
    folder = tmp_path_factory.mktemp("attacked")
    fleet = FakeFleet(folder, check_in_hold_s=0.0)
    try:
        fleet.start()

        async def prepare() -> None:
            async with fleet.operator() as operator:
                await fleet.release_tiny_model(operator)

        run(prepare())
        yield fleet
        assert fleet.process.poll() is None, "the coordinator did not survive"
        assert "Traceback" not in fleet.log.read_text()
        assert fleet.stop() == 0
    finally:
        fleet.close()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(junk=st.lists(st.binary(max_size=300), min_size=len(METHODS), max_size=len(METHODS)))
def test_nonsense_bytes_get_an_error_and_nothing_else(attacked: FakeFleet, junk: list[bytes]) -> None:
    """Whatever bytes a message is made of, the answer is a reply or a status; never a crash, never UNKNOWN of ours."""

    async def story() -> None:
        async with attacked.devices("junk", 1) as (device,):
            for method, data in zip(METHODS, junk, strict=True):
                await _throw(device, method, data)
            await device.hello()

    run(story())


async def _throw(device: FakeDevice, method: str, data: bytes) -> None:
    path = f"/mien.v1.{method}"
    as_is = {"request_serializer": bytes, "response_deserializer": bytes}
    try:
        if method in ("Rounds/Upload", "Operator/ImportModel"):
            await device.channel.stream_unary(path, **as_is)(iter([data, data]), timeout=60)  # type: ignore[arg-type]
        else:
            await device.channel.unary_unary(path, **as_is)(data, timeout=60)  # type: ignore[arg-type]
    except grpc.aio.AioRpcError as error:
        refusal = error
    else:
        return
    if is_lost(refusal) or "RST_STREAM" in (refusal.details() or ""):  # gRPC lost what was answered
        return
    assert dict(refusal.trailing_metadata() or ()).get(CODE_KEY) in BY_CODE, refusal


def test_streams_that_do_not_begin_or_go_on_as_they_should(attacked: FakeFleet) -> None:
    async def story() -> None:
        async with attacked.operator() as operator, attacked.devices("streams", 4) as devices:
            status = await operator.submit(tiny_task("streams", "streams"), "streams")
            ref, task = await in_upload(devices)
            good = contribution(task, 0)
            blob = common_pb2.BlobRef(sha256="0" * 64, size_bytes=len(good))
            header = rounds_pb2.UploadHeader(round=ref, contribution=blob)
            bad_hash = common_pb2.BlobRef(sha256="../../../etc", size_bytes=len(good))
            chunk = rounds_pb2.UploadChunk
            for stream, error in (
                ([], CorruptDataError),
                ([chunk(data=good)], CorruptDataError),
                ([chunk(header=rounds_pb2.UploadHeader(round=ref, contribution=bad_hash))], CorruptDataError),
                ([chunk(header=rounds_pb2.UploadHeader(contribution=blob))], NotFoundError),
                ([chunk(header=header, offset=2**63, data=b"x")], MienError),
                ([chunk(header=header, data=good[:100]), chunk(offset=50, data=good[:50])], ProtocolError),
                ([chunk(header=header, offset=100, data=good + good)], CorruptDataError),
                ([chunk(header=header, offset=100), chunk(offset=100)], CorruptDataError),
            ):
                assert isinstance(await raised(streamed(partial(devices[0].rounds.Upload, stream))), error)
            refs = (
                rounds_pb2.RoundRef(task_id=ref.task_id, round=2**32 - 1, attempt=1),
                rounds_pb2.RoundRef(task_id="' OR 1=1 --", round=1, attempt=1),
                rounds_pb2.RoundRef(task_id="\0", round=1, attempt=1),
                rounds_pb2.RoundRef(),
            )
            for strange in refs:
                assert isinstance(await raised(devices[0].report_trained(strange)), NotFoundError)
                assert isinstance(await raised(devices[0].until(strange)), NotFoundError)
                assert isinstance(await raised(devices[0].upload_status(strange)), NotFoundError)
            await operator.cancel(status.task_id)

    run(story())


def test_more_than_one_message_may_hold_is_refused_before_it_is_read(attacked: FakeFleet) -> None:
    async def story() -> None:
        async with attacked.devices("large", 1) as (device,):
            request = rounds_pb2.CheckInRequest(software="x" * (2 << 20))
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await device.rounds.CheckIn(request)
            assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            many = rounds_pb2.CheckInRequest(backbones=["b"] * 1000)
            assert isinstance(await raised(answer(device.rounds.CheckIn(many))), CorruptDataError)

    run(story())


def test_an_import_that_lies_about_itself_leaves_nothing(attacked: FakeFleet) -> None:
    async def story() -> None:
        async with attacked.operator() as operator:
            manifest = await operator.manifest()
            stub, header = operator._operator, operator_pb2.ImportModelHeader
            theta = common_pb2.BlobRef(sha256="1" * 64, size_bytes=manifest.theta.size_bytes)
            huge = common_pb2.BlobRef(sha256="1" * 64, size_bytes=2**62)
            shard = common_pb2.BlobRef(sha256="2" * 64, size_bytes=4)
            data = bytes(manifest.theta.size_bytes)
            for first, rest in (
                (header(spec_json=b"{}", theta=theta), [data]),
                (header(spec_json=manifest.spec_json, theta=huge), [data]),
                (header(spec_json=manifest.spec_json, theta=theta), [data]),
                (header(spec_json=manifest.spec_json, theta=theta), [data[:-1]]),
                (header(spec_json=manifest.spec_json, theta=theta, public_shard=huge), []),
                (header(spec_json=manifest.spec_json, theta=manifest.theta, public_shard=shard), []),
            ):
                assert isinstance(await raised(answer(stub.ImportModel(_import(first, rest)))), MienError)
            assert len(await operator.models()) == 1

    before = _files(attacked)
    run(story())
    assert _files(attacked) == before


async def _import(
    header: operator_pb2.ImportModelHeader, pieces: list[bytes]
) -> AsyncIterator[operator_pb2.ImportModelChunk]:
    yield operator_pb2.ImportModelChunk(header=header)
    for piece in pieces:
        yield operator_pb2.ImportModelChunk(data=piece)


def _files(fleet: FakeFleet) -> set[str]:
    return {path.name for path in (fleet.home.folder / "models").rglob("*") if path.is_file()}


def test_nothing_but_models_can_be_downloaded(attacked: FakeFleet) -> None:
    """Server state and spool files are content-addressed too, but no hash of theirs opens them to anybody."""

    async def story() -> None:
        async with attacked.operator() as operator, attacked.devices("state", 2) as devices:
            task = tiny_task("state", "state", rounds=2, cohort=CohortSpec(size=2, min_reports=2))
            status = await operator.submit(task, "state")
            ref, task = await in_upload(devices)
            for i, device in enumerate(devices):
                await device.upload(ref, contribution(task, i))
            await devices[0].until(ref)
            with attacked.store() as store:
                arrays = store.task(status.task_id).arrays_sha256
            assert arrays is not None
            assert isinstance(await raised(devices[0].download(arrays)), NotFoundError)
            request = models_pb2.DownloadRequest(sha256=arrays)
            assert isinstance(await raised(_drain(operator._models.Download(request))), NotFoundError)

    run(story())


async def _drain(call: Any) -> None:
    from mien.protocol.status import from_rpc_error

    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, peer="the coordinator") from error


def test_a_device_that_never_finishes_holds_up_nothing(attacked: FakeFleet) -> None:
    """Half-open uploads of one device give way to its next connection, and the others' round closes meanwhile."""

    async def story() -> None:
        async with attacked.operator() as operator, attacked.devices("slow", 4) as devices:
            await operator.submit(tiny_task("slow", "slow"), "slow")
            ref, task = await in_upload(devices)
            data = contribution(task, 0)
            hanging = [asyncio.create_task(devices[0].upload(ref, data, chunk=1, pause_s=60.0)) for _ in range(5)]
            await asyncio.sleep(0.3)
            for i, device in enumerate(devices[1:], start=1):
                assert (await device.upload(ref, contribution(task, i))).accepted
            received = (await devices[0].upload_status(ref)).received_bytes
            assert (await devices[0].upload(ref, data, offset=received)).accepted
            assert (await devices[0].until(ref)).num_reports == 4
            for task_of in hanging:
                task_of.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)

    run(story())


def test_an_upload_that_drips_ends_with_its_round(attacked: FakeFleet) -> None:
    async def story() -> None:
        async with attacked.operator() as operator, attacked.devices("drips", 4) as devices:
            await operator.submit(tiny_task("drips", "drips", deadlines=running_out("upload")), "drips")
            ref, task = await in_upload(devices)
            dripping = asyncio.create_task(devices[0].upload(ref, contribution(task, 0), chunk=1, pause_s=0.05))
            for i, device in enumerate(devices[1:], start=1):
                assert (await device.upload(ref, contribution(task, i))).accepted
            assert (await devices[1].until(ref)).num_reports == 3
            assert isinstance(await raised(asyncio.wait_for(dripping, 60.0)), LateError)

    run(story())


def test_no_method_answers_whom_its_service_is_not_for(attacked: FakeFleet) -> None:
    """Each method is guarded by itself, so that one that was given to the server past its guards would be open."""

    async def story() -> None:
        services = {
            name: each for file in (operator_pb2, rounds_pb2) for name, each in file.DESCRIPTOR.services_by_name.items()
        }
        assert {name: len(each.methods) > 10 for name, each in services.items()} == {"Operator": True, "Rounds": True}
        mine = attacked.home.operator_credentials()
        tls = grpc.ssl_channel_credentials(mine.ca_pem, mine.key_pem, mine.chain_pem)
        async with attacked.devices("anybody", 1) as (device,), grpc.aio.secure_channel(attacked.address, tls) as other:
            for service, channel in ((services["Operator"], device.channel), (services["Rounds"], other)):
                for method in service.methods:
                    replies = channel.unary_stream(f"/{service.full_name}/{method.name}")(b"")
                    assert isinstance(await raised(answer(anext(aiter(replies)))), PermissionDeniedError), method.name

    run(story())


def test_who_says_that_it_is_a_source_and_leaves_holds_a_task_up_until_that_pauses(attacked: FakeFleet) -> None:
    """Anybody of the population may say so, and is chosen for it: what it wins are aborted rounds.

    No sum is opened without a labelled device, and whoever watches is told of a pause, and which device it was.
    """

    async def story() -> None:
        cohort = CohortSpec(size=4, min_reports=3, must_include=MustInclude())
        task = tiny_task("claims", "claims", method="fedfr_uda", cohort=cohort)
        async with attacked.operator() as operator, attacked.devices("claims", 4) as devices:
            status = await operator.submit(task, "claims")
            liar = devices[0]
            liar.labelled = True
            for attempt in range(1, 6):
                assigned = await asyncio.gather(*(device.assignment() for device in devices))
                assert {each.round.attempt for each in assigned} == {attempt}
                await devices[1].report_trained(assigned[1].round)
                await liar.leave(assigned[0].round, "low_quality")
            async for event in operator.watch(status.task_id):
                if event.task.state == "paused":
                    assert "0 labelled devices are left; cohort.must_include asks for 1" in event.task.reason
                    assert event.task.rounds_closed == 0
                    break
            seen = [device.device_id async for device in operator.seen_devices() if device.labelled]
            assert liar.id in seen
            assert not {device.id for device in devices[1:]}.intersection(seen)

    run(story())


def test_saying_that_it_is_a_source_helps_nobody_into_a_cohort_that_needs_none(attacked: FakeFleet) -> None:
    """Nor does it keep one from beginning: a task that asks for no source does not look at who says so."""

    async def story() -> None:
        async with attacked.operator() as operator, attacked.devices("needless", 4) as devices:
            await operator.submit(tiny_task("needless", "needless"), "needless")
            devices[3].labelled = True
            ref, task = await in_upload(devices)
            for i, device in enumerate(devices):
                assert (await device.upload(ref, contribution(task, i))).accepted
            assert (await devices[0].until(ref)).num_reports == 4

    run(story())
